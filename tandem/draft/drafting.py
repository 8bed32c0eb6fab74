"""What a round asks of drafting: guesses for every slot, and what became of them.

The engine's device thread is the only caller, so nothing here locks. Guesses change when text arrives, never what it
says: a drafter that fails is dropped from the sequences it failed on, with one line in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.draft.calibration import Calibration
from tandem.draft.interface import Drafter
from tandem.draft.price import Staircase
from tandem.draft.share import share
from tandem.draft.tree import NO_GUESS, NOT_YET, DraftTree, Origin, force, merge, prune
from tandem.draft.worth import Worth
from tandem.model.interface import SequenceState

log = logging.getLogger("tandem.draft")

FORCED: Final = Origin("forced")  # the source of tokens that come whatever the model says
_MS: Final = 1000.0


@dataclass(eq=False, slots=True)
class _Guesser:
    """A drafter, and what is known of it."""

    drafter: Drafter[Any]
    worth: Worth = field(default_factory=Worth)
    followed_ms: float = 0.0  # following, since it was last asked


class Followed:
    """One sequence as the drafters know it. Made by `Drafting.begin`."""

    def __init__(self, drafting: Drafting, state: SequenceState, scope: str) -> None:
        self._drafting = drafting
        self.sessions: dict[_Guesser, Any] = {}
        for guesser in drafting.guessers:
            with drafting.calling(guesser, self):
                self.sessions[guesser] = guesser.drafter.begin(state, scope)

    def follow(self, tokens: Sequence[int]) -> None:
        """These tokens come behind all that was followed so far: the prompt, then what each round committed."""
        for guesser, session in list(self.sessions.items()):
            with self._drafting.calling(guesser, self) as took:
                guesser.drafter.follow(session, tokens)
            guesser.followed_ms += took.ms

    def end(self) -> None:
        """The sequence is over."""
        for guesser, session in list(self.sessions.items()):
            with self._drafting.calling(guesser, self):
                guesser.drafter.end(session)
        self.sessions.clear()


@dataclass(frozen=True, slots=True)
class Bid:
    """A slot that takes part in a round."""

    followed: Followed
    rows: int  # of its sequence that lie in the slot: how far its next row looks back
    limit: int  # the most guesses it can take: tokens it may write beside the one that comes anyway, and room for rows
    forced: Sequence[int] = ()  # tokens that come next whatever the model says


@dataclass(frozen=True, slots=True)
class Guesses:
    """What a round has checked. `Drafting.learn` takes it back."""

    trees: tuple[DraftTree, ...]  # one a bid
    context: int  # rows the slots look back on, on average
    answers: tuple[_Answer, ...] = ()  # of the drafters that were asked

    @property
    def rows(self) -> int:
        """Of the joint pass."""
        return len(self.trees) + sum(tree.nodes for tree in self.trees)


@dataclass(frozen=True, slots=True)
class _Answer:
    guesser: _Guesser
    trees: tuple[DraftTree, ...]  # one a bid, as the drafter made them
    ms: float

    @property
    def is_not_yet(self) -> bool:
        """The drafter was busy reading, and is not judged by it."""
        return any(tree is NOT_YET for tree in self.trees) and not any(tree.nodes for tree in self.trees)


@dataclass(slots=True)
class _Took:
    ms: float = 0.0


class Drafting:
    """All drafters, what their guesses are worth, and what it costs to have them checked."""

    def __init__(
        self,
        drafters: Sequence[Drafter[Any]],
        nodes: int,
        prices: Staircase,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`nodes`: the most guesses a slot brings to a round. In whose order drafters come makes no difference."""
        self.guessers = [_Guesser(drafter) for drafter in sorted(drafters, key=lambda each: each.name)]
        self.drafted: dict[str, int] = {}  # guesses checked, by source
        self.accepted: dict[str, int] = {}  # of them, the model's own choice
        self.draft_seconds = 0.0
        self.nodes = nodes
        self._prices = prices
        self._calibration = Calibration()
        self._clock = clock

    def begin(self, state: SequenceState, scope: str) -> Followed:
        """A sequence starts on the slot whose state this is; it has read nothing yet."""
        return Followed(self, state, scope)

    def propose(self, bids: Sequence[Bid], row_limit: int) -> Guesses:
        """A tree for each bid, in order; one row a slot and all trees together are at most `row_limit` rows, if the
        slots alone are not more."""
        context = sum(bid.rows for bid in bids) // len(bids) if bids else 0
        limits = [max(0, min(bid.limit, self.nodes, row_limit - len(bids))) for bid in bids]
        if not any(limits) or not (self.guessers or any(bid.forced for bid in bids)):
            return Guesses((NO_GUESS,) * len(bids), context)
        if not self._prices.knows(len(bids), context):  # what guesses have to beat comes first
            return Guesses((NO_GUESS,) * len(bids), context)
        prices = self._prices.table(row_limit, context)
        due = [guesser for guesser in self.guessers if guesser.worth.is_due(prices[len(bids)])]
        asked = [self._ask(guesser, bids, limits) for guesser in due]
        answers = tuple(answer for answer in asked if not answer.is_not_yet)
        rated = [[self._calibration.rate(answer.trees[slot]) for answer in answers] for slot in range(len(bids))]
        trees = [
            prune(_join(mine, bid.forced[:limit]), limit) for mine, bid, limit in zip(rated, bids, limits, strict=True)
        ]
        spent = sum(answer.ms for answer in answers)
        return Guesses(tuple(share(trees, prices, row_limit, spent)), context, answers)

    def learn(self, guesses: Guesses, written: Sequence[Sequence[int]], seconds: float) -> None:
        """What the model chose, a bid each: the accepted guesses' tokens and the one that came with them, all that it
        chose whether or not a stop token stands among them; nothing for a slot whose request failed.

        `seconds`: the joint pass, accepting and committing.
        """
        checked, true = _count(guesses.trees, written)
        for source, number in checked.items():
            self.drafted[source] = self.drafted.get(source, 0) + number
            self.accepted[source] = self.accepted.get(source, 0) + true.get(source, 0)
        if guesses.answers:
            self._judge(guesses, written, checked, true)
        self._prices.observe(guesses.rows, guesses.context, seconds * _MS)

    def _ask(self, guesser: _Guesser, bids: Sequence[Bid], limits: Sequence[int]) -> _Answer:
        asked = [slot for slot, bid in enumerate(bids) if limits[slot] and guesser in bid.followed.sessions]
        trees = [NO_GUESS] * len(bids)
        with self.calling(guesser, *(bids[slot].followed for slot in asked)) as took:
            sessions = [bids[slot].followed.sessions[guesser] for slot in asked]
            proposed = guesser.drafter.propose(sessions, [limits[slot] for slot in asked]) if asked else []
            if len(proposed) != len(asked) or not all(tree.is_sound for tree in proposed):
                raise ValueError("what it proposes is no tree for each sequence")
            for slot, tree in zip(asked, proposed, strict=True):
                trees[slot] = tree
        ms, guesser.followed_ms = took.ms + guesser.followed_ms, 0.0
        return _Answer(guesser, tuple(trees), ms)

    def _judge(
        self, guesses: Guesses, written: Sequence[Sequence[int]], checked: dict[str, int], true: dict[str, int]
    ) -> None:
        """A true guess saved the time of a token that is written without guesses; all guesses of the round together
        cost what its rows cost more than the slots alone."""
        slots, rows = len(guesses.trees), guesses.rows
        prices = self._prices.table(rows, guesses.context)
        token = prices[slots] / slots
        guess = (prices[rows] - prices[slots]) / (rows - slots) if rows > slots else 0.0
        for answer in guesses.answers:
            source = answer.guesser.drafter.name
            answer.guesser.worth.learn(true.get(source, 0) * token - checked.get(source, 0) * guess, answer.ms)
            for tree, tokens in zip(answer.trees, written, strict=True):
                self._calibration.learn(tree, tokens)

    @contextmanager
    def calling(self, guesser: _Guesser, *sequences: Followed) -> Iterator[_Took]:
        """A drafter that fails in here follows these sequences no more."""
        took = _Took()
        started = self._clock()
        try:
            yield took
        except Exception:
            log.exception("drafter %s failed; the sequences it failed on go on without it", guesser.drafter.name)
            for followed in sequences:
                followed.sessions.pop(guesser, None)
        finally:
            seconds = self._clock() - started
            took.ms = seconds * _MS
            self.draft_seconds += seconds


def _join(trees: Sequence[DraftTree], forced: Sequence[int]) -> DraftTree:
    tree = merge(trees)
    return force(tree, forced, FORCED) if forced else tree


def _count(trees: Sequence[DraftTree], written: Sequence[Sequence[int]]) -> tuple[dict[str, int], dict[str, int]]:
    """Guesses that were checked, and of them those that came true, by source."""
    checked: dict[str, int] = {}
    true: dict[str, int] = {}
    for tree, tokens in zip(trees, written, strict=True):
        for origin in tree.origins:
            checked[origin.source] = checked.get(origin.source, 0) + 1
        for node in tree.path(tokens):
            source = tree.origins[node].source
            true[source] = true.get(source, 0) + 1
    return checked, true
