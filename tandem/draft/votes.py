"""Places where the last tokens stood before vote on what comes next: their continuations become a small tree.

Pure: continuations and weights in, a tree out.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

from tandem.draft.tree import NO_GUESS, ROOT, DraftTree, Origin

MOST_VOTES: Final = 64  # places; what the others could say weighs little by then

# A continuation nobody saw yet weighs this much, over the square of the tokens that matched: one vote is no certainty,
# and the longer a match, the surer what follows. 2 tokens and one vote: 1/3; 4 tokens: 2/3; 16 tokens: 32/33. Fitted to
# source files and prose that were replayed; what fresh text and edits make of it, the rounds' own calibration learns.
_UNSEEN: Final = 8.0
_RECENT: Final = 8.0  # places; the one that is this many behind the latest weighs half
_LEAST: Final = 0.02  # paths less likely than this are not worth their place in a tree


class Vote(NamedTuple):
    """One place's word on what comes next."""

    tokens: Sequence[int]  # its continuation, from the place on
    match: int  # tokens before it that are the same as the last ones
    rank: int  # places of the same text that are later
    trust: float = 1.0  # in the text it stands in: 1 is this request's own
    realm: int = 0  # which text that is; places of one realm are right about equally often


def weight(vote: Vote, longest: int) -> float:
    """Of a vote beside others of which the longest match has `longest` tokens: half for each token less."""
    return float(vote.trust * 0.5 ** (longest - vote.match) / (1.0 + vote.rank / _RECENT))


def length_class(tokens: int) -> int:
    """0, 1, 2-3, 4-7, 8-15, 16-31, 32 and more."""
    return min(tokens, 32).bit_length()


@dataclass(slots=True)
class _Side:
    """The voters whose texts have agreed so far."""

    voters: list[int]  # the longest match first
    weight: float


class _Branch(NamedTuple):
    """Not yet in the tree. Ordered as the heap needs it: the likeliest first, then the first found."""

    minus_score: float
    number: int
    parent: int
    depth: int  # of the token: 0 is the first one guessed
    side: _Side


def elect(votes: Sequence[Vote], limit: int, ends: Container[int], source: str, run: int) -> DraftTree:
    """The at most `limit` likeliest guesses. A node's score is the product, along its path, of the share its token
    got of the votes that had agreed so far, the unseen among them.

    No token of `ends` is guessed, and nothing behind one: a text that ended votes against all that go on, and the
    model's own end comes for free.

    A node's match class is that of the tokens that match when it is checked: those at the start and its own parents.
    `Origin.match` is `realm * 10 + length_class`.
    """
    if not votes or limit <= 0:
        return NO_GUESS
    votes = sorted(votes, key=lambda vote: (-vote.match, -vote.trust))
    weights = [weight(vote, votes[0].match) for vote in votes]
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    origins: list[Origin] = []
    open_branches: list[_Branch] = []
    numbers = count()

    def split(parent: int, depth: int, side: _Side, score: float) -> None:
        """One branch for each token that follows at some of these places."""
        total = side.weight + _UNSEEN / (votes[side.voters[0]].match + depth) ** 2
        for same in _sides(votes, weights, side.voters, depth, ends):
            share = score * same.weight / total
            if share >= _LEAST:
                heapq.heappush(open_branches, _Branch(-share, next(numbers), parent, depth, same))

    split(ROOT, 0, _Side(list(range(len(votes))), sum(weights)), 1.0)
    while open_branches and len(tokens) < limit:
        minus_score, _, parent, depth, side = heapq.heappop(open_branches)
        best = votes[side.voters[0]]
        tokens.append(best.tokens[depth])
        parents.append(parent)
        scores.append(-minus_score)
        origins.append(Origin(source, best.realm * 10 + length_class(best.match + depth), run))
        split(len(tokens) - 1, depth + 1, side, -minus_score)
    return _in_pre_order(tokens, parents, scores, origins)


def _sides(
    votes: Sequence[Vote], weights: Sequence[float], voters: Sequence[int], depth: int, ends: Container[int]
) -> Iterable[_Side]:
    """The voters whose text goes on at this depth, those of one token together."""
    sides: dict[int, _Side] = {}
    for voter in voters:
        continuation = votes[voter].tokens
        if depth >= len(continuation) or (token := continuation[depth]) in ends:
            continue
        if (side := sides.get(token)) is None:
            sides[token] = _Side([voter], weights[voter])
        else:
            side.voters.append(voter)
            side.weight += weights[voter]
    return sides.values()


def _in_pre_order(tokens: list[int], parents: list[int], scores: list[float], origins: list[Origin]) -> DraftTree:
    """Nodes were found likeliest first; siblings keep that order."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    order: list[int] = []
    waiting = children.get(ROOT, [])[::-1]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += children.get(node, [])[::-1]
    place = {node: at for at, node in enumerate(order)} | {ROOT: ROOT}
    return DraftTree(
        tuple(tokens[node] for node in order),
        tuple(place[parents[node]] for node in order),
        tuple(scores[node] for node in order),
        tuple(origins[node] for node in order),
    )
