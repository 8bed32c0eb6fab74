"""Guesses made up to try the engine: wrong ones, and half-right ones that know how the text goes on.

They are put into every round whatever they cost and however often they fail, which no served drafter would be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from tandem.draft.drafting import Bid, Drafting, Followed, Guesses
from tandem.draft.price import Staircase
from tandem.draft.tree import NO_GUESS, ROOT, DraftTree, Origin
from tandem.model.interface import SequenceState

Text = Sequence[int]
Texts = Mapping[tuple[str, tuple[int, ...]], Text]  # (scope, prompt) -> what was written behind it
Invent = Callable[[Text, int, np.random.Generator], DraftTree]  # (how it goes on, nodes, luck)

Branch = tuple[int, tuple[int, ...]]  # a node, and tokens in a row behind it

_WRONG: Final = Origin("wrong")
_HALF_RIGHT: Final = Origin("half-right")


class Told(Followed):
    """A sequence as it was told: the prompt first, then what was written."""

    def __init__(self, scope: str) -> None:
        self.scope = scope
        self.prompt: tuple[int, ...] | None = None
        self.written: list[int] = []

    def follow(self, tokens: Sequence[int]) -> None:
        if self.prompt is None:
            self.prompt = tuple(tokens)
        else:
            self.written += tokens

    def end(self) -> None:
        pass


class Inventing(Drafting):
    """Guesses for every slot in every round, as many as there is room for."""

    def __init__(self, texts: Texts, invent: Invent, nodes: int, seed: int = 0) -> None:
        super().__init__((), nodes, Staircase())
        self._texts = texts
        self._invent = invent
        self._luck = np.random.default_rng(seed)

    def begin(self, state: SequenceState, scope: str) -> Told:
        return Told(scope)

    def propose(self, bids: Sequence[Bid], row_limit: int) -> Guesses:
        share = (row_limit - len(bids)) // len(bids)
        return Guesses(tuple(self._guess(bid, min(bid.limit, share)) for bid in bids), context=0)

    def learn(self, guesses: Guesses, written: Sequence[Sequence[int]], seconds: float) -> None:
        for tree, chosen in zip(guesses.trees, written, strict=True):
            if tree.nodes and chosen:
                self._count(self.drafted, tree.origins[0].source, tree.nodes)
                self._count(self.accepted, tree.origins[0].source, len(tree.path(chosen)))

    def _guess(self, bid: Bid, nodes: int) -> DraftTree:
        told = bid.followed
        assert isinstance(told, Told) and told.prompt is not None
        text = self._texts.get((told.scope, told.prompt), ())
        return self._invent(text[len(told.written) :], nodes, self._luck) if nodes > 0 else NO_GUESS

    @staticmethod
    def _count(counts: dict[str, int], source: str, number: int) -> None:
        counts[source] = counts.get(source, 0) + number


def wrong(text: Text, nodes: int, luck: np.random.Generator) -> DraftTree:
    """Two branches that start with what does not come, and go on with what would."""
    if not text:
        return NO_GUESS
    branches = [(ROOT, (_other(text[0], step), *text[1 : (nodes + 1) // 2])) for step in (1, 2)]
    return _grow(branches, nodes, _WRONG)


def half_right(text: Text, nodes: int, luck: np.random.Generator) -> DraftTree:
    """What comes, with a branch that does not beside some tokens, up to a token that is wrong: four deep on average."""
    branches: list[Branch] = []
    path = ROOT
    used = 0
    for token in text:
        if luck.random() < 0.3:
            aside = tuple(_other(token, 1 + step) for step in range(luck.integers(1, 4)))
            branches.append((path, aside))
            used += len(aside)
        is_wrong = luck.random() < 0.2
        branches.append((path, (_other(token, 5) if is_wrong else token,)))
        path = used
        used += 1
        if used >= nodes:
            break
    return _grow(branches, nodes, _HALF_RIGHT)


def _other(token: int, step: int) -> int:
    """A token that is not this one. Ids are never below 0; the smallest few exist in every vocabulary."""
    return token - step if token >= step else token + step


def _grow(branches: Sequence[Branch], nodes: int, origin: Origin) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    for parent, row in branches:
        for token in row:
            tokens.append(token)
            parents.append(parent)
            parent = len(tokens) - 1
    kept = min(nodes, len(tokens))
    return DraftTree(tuple(tokens[:kept]), tuple(parents[:kept]), (1.0,) * kept, (origin,) * kept)
