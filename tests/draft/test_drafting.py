"""What the engine's round asks: by hand, with drafters of known quality and a clock that only moves when told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

import pytest

from tandem.draft.drafting import Bid, Drafting, Followed, Guesses
from tandem.draft.price import Price, Staircase
from tandem.draft.tree import NO_GUESS, NOT_YET, DraftTree, Origin, chain, merge
from tandem.model.interface import SequenceState

STATE = cast(SequenceState, None)  # drafters here do not look at it
WRONG = 999
STEPS = [0.0] + [10.0] * 4 + [16.0] * 4 + [30.0] * 8  # ms of a pass, by its rows
SLOPED = [0.0] + [10.0 + 2.0 * rows for rows in range(16)]  # as 4-bit products on a CPU: every row costs


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Oracle:
    """Guesses the next tokens of a text it knows, each right as often as `rates` says of the place, and says so or not.

    A text is the count of its tokens: token n of every sequence is n.
    """

    def __init__(
        self, name: str, clock: Clock, rate: Callable[[int], float], opinion: float = 0.7, ask_ms: float = 0.1
    ) -> None:
        self.name = name
        self.ended = 0
        self._clock, self._rate, self._opinion, self._ask_ms = clock, rate, opinion, ask_ms
        self._random = Random(name)

    def begin(self, state: SequenceState, scope: str) -> list[int]:
        return []

    def follow(self, session: list[int], tokens: Sequence[int]) -> None:
        session += tokens

    def propose(self, sessions: Sequence[list[int]], limits: Sequence[int]) -> list[DraftTree]:
        self._clock.now += self._ask_ms / 1000
        return [self._guess(len(session), limit) for session, limit in zip(sessions, limits, strict=True)]

    def _guess(self, place: int, limit: int) -> DraftTree:
        right = [self._random.random() < self._rate(place + ahead) for ahead in range(limit)]
        tokens = [place + ahead if is_right else WRONG for ahead, is_right in enumerate(right)]
        return chain(tokens, [self._opinion ** (depth + 1) for depth in range(limit)], Origin(self.name))

    def end(self, session: list[int]) -> None:
        self.ended += 1


class Run:
    """Slots that write, one joint pass after the other, whose price is `ms[rows]`."""

    def __init__(self, drafting: Drafting, clock: Clock, ms: Sequence[float], slots: int = 1) -> None:
        self.drafting, self.clock, self.ms = drafting, clock, ms
        self.places = [0] * slots
        self.followed = [drafting.begin(STATE, "") for _ in range(slots)]
        self.rounds: list[Guesses] = []

    def round(self) -> None:
        bids = [Bid(followed, 100, 64) for followed in self.followed]
        guesses = self.drafting.propose(bids, 16)
        written = []
        for slot, (tree, place) in enumerate(zip(guesses.trees, self.places, strict=True)):
            accepted = len(tree.path(range(place, place + 64)))
            written.append(list(range(place, place + accepted + 1)))
            self.places[slot] += accepted + 1
        self.clock.now += self.ms[guesses.rows] / 1000
        self.drafting.learn(guesses, written, self.ms[guesses.rows] / 1000)
        for followed, tokens in zip(self.followed, written, strict=True):
            followed.follow(tokens)
        self.rounds.append(guesses)

    def speed(self, rounds: int) -> float:
        """Tokens of all slots a second, from now on."""
        start, tokens = self.clock.now, sum(self.places)
        for _ in range(rounds):
            self.round()
        return (sum(self.places) - tokens) / (self.clock.now - start)

    def gain(self, rounds: int) -> float:
        """Times as fast as without guesses."""
        return self.speed(rounds) * self.ms[len(self.places)] / 1000 / len(self.places)


def running(
    *rates: Callable[[int], float],
    ms: Sequence[float] = STEPS,
    slots: int = 1,
    measured: bool = False,
    **oracle: float,
) -> Run:
    clock = Clock()
    drafters = [Oracle(f"drafter-{number}", clock, rate, **oracle) for number, rate in enumerate(rates)]
    prices = Staircase(Price(rows, 100, each) for rows, each in enumerate(ms) if rows) if measured else Staircase()
    return Run(Drafting(drafters, 15, prices, clock), clock, ms, slots)


def always(rate: float) -> Callable[[int], float]:
    return lambda place: rate


# --- simulations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ms", "nodes"), [(STEPS, 7), (SLOPED, 10)], ids=["steps", "sloped"])
@pytest.mark.parametrize("measured", [True, False], ids=["measured", "learned"])
def test_copying_takes_long_trees(ms: Sequence[float], nodes: int, measured: bool) -> None:
    run = running(always(0.97), ms=ms, measured=measured)
    run.gain(100)
    assert run.gain(300) > 2.5
    assert sum(guesses.trees[0].nodes for guesses in run.rounds[-100:]) >= 95 * nodes


@pytest.mark.parametrize("ms", [STEPS, SLOPED], ids=["steps", "sloped"])
@pytest.mark.parametrize("ask_ms", [0.1, 2.0, 12.0])
@pytest.mark.parametrize("rate", [0.0, 0.03, 0.1])
def test_fresh_prose_is_not_slowed_down(ms: Sequence[float], ask_ms: float, rate: float) -> None:
    run = running(always(rate), ms=ms, ask_ms=ask_ms, opinion=0.9)
    run.gain(100)  # the drafter says 0.9 and has to be found out
    assert run.gain(2000) > 0.97


@pytest.mark.parametrize("ms", [STEPS, SLOPED], ids=["steps", "sloped"])
def test_finding_out_costs_little_too(ms: Sequence[float]) -> None:
    run = running(always(0.02), ms=ms, measured=True, opinion=0.7)
    assert run.gain(250) > 0.97


def test_prices_that_are_not_known_are_found_for_the_price_of_a_few_rounds() -> None:
    known, unknown = running(always(0.6), ms=STEPS, measured=True), running(always(0.6), ms=STEPS)
    assert unknown.gain(300) > 0.95 * known.gain(300)


def test_a_step_is_used_to_its_edge_and_no_further() -> None:
    run = running(always(0.5), ms=STEPS)
    run.gain(300)
    rows = [guesses.rows for guesses in run.rounds[-100:]]
    assert rows.count(4) > 90, "the row behind the edge costs six milliseconds, those before it nothing"


def test_a_copy_in_the_middle_of_prose_is_seen() -> None:
    def rate(place: int) -> float:
        return 0.98 if place % 400 >= 200 else 0.03

    run = running(rate, ms=SLOPED, measured=True)
    run.gain(200)
    both = 2 / (1 / 1.0 + 1 / 3.4)  # the copied half at the gain it has alone, the other at none
    assert run.gain(600) > 0.75 * both, "its guesses are told apart by nothing but how they fared"


def test_two_slots_share_and_the_one_that_copies_gets_more() -> None:
    clock = Clock()

    class TwoTexts(Oracle):
        def propose(self, sessions: Sequence[list[int]], limits: Sequence[int]) -> list[DraftTree]:
            first, second = (self._guess(len(session), limit) for session, limit in zip(sessions, limits, strict=True))
            copied = chain(first.tokens, first.scores, Origin(self.name, match=16))
            self._rate = always(0.8)
            second = self._guess(len(sessions[1]), limits[1])
            self._rate = always(0.97)
            return [copied, second]

    run = Run(
        Drafting([TwoTexts("d", clock, always(0.97), 0.8)], 15, Staircase(), clock), clock, [0.0] + [10.0] * 16, 2
    )
    run.gain(200)
    before = list(run.places)
    run.gain(200)
    copied, fresh = (place - start for place, start in zip(run.places, before, strict=True))
    assert copied > 5 * 200 and fresh > 1.5 * 200, "both write more than one token a round"
    assert all(guesses.rows <= 16 for guesses in run.rounds)


def test_of_two_drafters_the_one_that_costs_more_than_it_brings_falls_silent() -> None:
    clock = Clock()
    good = Oracle("good", clock, always(0.8), 0.8, 0.1)
    bad = Oracle("bad", clock, always(0.1), 0.8, 8.0)
    asked: list[float] = []
    propose = bad.propose
    bad.propose = lambda *given: (asked.append(clock.now), propose(*given))[1]  # type: ignore[method-assign]
    run = Run(Drafting([bad, good], 15, Staircase(), clock), clock, STEPS)
    run.gain(300)
    asked.clear()
    gain = run.gain(1000)
    assert len(asked) < 20
    alone = running(always(0.8), ms=STEPS)
    alone.gain(300)
    assert gain > 0.95 * alone.gain(1000)


class Late(Oracle):
    """Reads for a while, and takes its time, before it guesses."""

    reads = 30  # rounds

    def propose(self, sessions: Sequence[list[int]], limits: Sequence[int]) -> list[DraftTree]:
        if self.reads == 0:
            return super().propose(sessions, limits)
        self.reads -= 1
        self._clock.now += 0.005
        return [NOT_YET] * len(sessions)


def test_a_drafter_is_not_judged_while_it_reads() -> None:
    clock = Clock()
    run = Run(Drafting([Late("late", clock, always(0.9), 0.9)], 15, Staircase(), clock), clock, STEPS)
    run.gain(100)
    assert run.gain(200) > 3


def test_the_order_of_drafters_makes_no_difference() -> None:
    def told(*names: str) -> list[Guesses]:
        clock = Clock()
        drafters = [Oracle(name, clock, always(0.5 if name == "a" else 0.8), 0.6) for name in names]
        run = Run(Drafting(drafters, 15, Staircase(), clock), clock, STEPS)
        run.speed(60)
        return [guesses.trees for guesses in run.rounds]

    assert told("a", "b") == told("b", "a")


# --- forced tokens ----------------------------------------------------------------------------------------------


def free_rows() -> Staircase:
    return Staircase(Price(rows, 0, 10.0) for rows in range(1, 17))


def test_forced_tokens_come_before_all_guesses_and_guesses_behind_them() -> None:
    clock = Clock()
    drafting = Drafting([Oracle("d", clock, always(1.0), 0.9)], 6, free_rows(), clock)
    followed = drafting.begin(STATE, "")
    agreeing = drafting.propose([Bid(followed, 0, 64, forced=(0, 1))], 16)
    assert agreeing.trees[0].tokens == (0, 1, 2, 3, 4, 5)
    assert agreeing.trees[0].scores[:3] == pytest.approx((1.0, 1.0, 0.9))
    assert [origin.source for origin in agreeing.trees[0].origins] == ["forced", "forced", "d", "d", "d", "d"]
    contradicting = drafting.propose([Bid(followed, 0, 64, forced=(7, 8))], 16)
    assert contradicting.trees[0].tokens == (7, 8)
    drafting.learn(contradicting, [[7, 8, 3]], 0.01)
    assert drafting.drafted == {"forced": 2} == drafting.accepted


def test_forced_tokens_need_no_drafter_but_keep_to_the_limit() -> None:
    drafting = Drafting([], 15, free_rows(), Clock())
    followed = drafting.begin(STATE, "")
    bids = [Bid(followed, 0, 2, forced=(5, 6, 7)), Bid(followed, 0, 9), Bid(followed, 0, 0, forced=(5,))]
    assert [tree.tokens for tree in drafting.propose(bids, 16).trees] == [(5, 6), (), ()]


# --- limits, counts, failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "row_limit", "nodes"), [(3, 16, 3), (64, 16, 5), (64, 4, 3), (64, 1, 0), (0, 16, 0)])
def test_a_slot_gets_no_more_guesses_than_it_can_take(limit: int, row_limit: int, nodes: int) -> None:
    clock = Clock()
    drafting = Drafting([Oracle("d", clock, always(1.0), 0.99)], 5, free_rows(), clock)
    [tree] = drafting.propose([Bid(drafting.begin(STATE, ""), 0, limit)], row_limit).trees
    assert tree.nodes == nodes


def test_guesses_are_counted_by_source() -> None:
    clock = Clock()
    drafting = Drafting([Oracle("d", clock, always(1.0), 0.99)], 4, free_rows(), clock)
    guesses = drafting.propose([Bid(drafting.begin(STATE, ""), 0, 9), Bid(drafting.begin(STATE, ""), 0, 9)], 16)
    assert guesses.rows == 10
    drafting.learn(guesses, [[0, 1, 9], []], 0.01)  # of the second slot's request nothing is known: it failed
    assert (drafting.drafted, drafting.accepted) == ({"d": 8}, {"d": 2})
    assert drafting.draft_seconds == pytest.approx(0.0001)


class Failing(Oracle):
    def __init__(self, name: str, clock: Clock, failing: str, answer: Any = None) -> None:
        super().__init__(name, clock, always(1.0))
        if failing:
            setattr(self, failing, self._fail)
        else:
            self.propose = lambda *_: answer  # type: ignore[method-assign]

    def _fail(self, *_: object) -> None:
        raise RuntimeError("no more")


@pytest.mark.parametrize(
    ("failing", "answer"),
    [
        *((name, None) for name in ("begin", "follow", "propose", "end")),
        ("", []),
        ("", None),
        ("", [DraftTree((1,), (5,), (0.5,), (Origin("bad"),))]),
    ],
    ids=["begin", "follow", "propose", "end", "too few", "nothing", "no tree"],
)
def test_a_drafter_that_fails_is_dropped_from_the_sequence_with_one_line(
    failing: str, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    drafting = Drafting(
        [Failing("bad", clock, failing, answer), Oracle("good", clock, always(1.0), 0.9)], 4, free_rows()
    )
    followed = drafting.begin(STATE, "")
    with caplog.at_level(logging.ERROR):
        for place in range(3):
            guesses = drafting.propose([Bid(followed, 0, 9)], 16)
            assert {origin.source for origin in guesses.trees[0].origins} <= {"good", "bad"}
            drafting.learn(guesses, [[place]], 0.01)
            followed.follow([place])
        followed.end()
    assert len([line for line in caplog.messages if "bad" in line]) == 1
    if failing != "end":
        assert guesses.trees[0].origins[0].source == "good"


def test_a_sequence_that_ended_is_followed_no_more() -> None:
    clock = Clock()
    oracle = Oracle("d", clock, always(1.0))
    followed = Drafting([oracle], 4, free_rows(), clock).begin(STATE, "")
    followed.end()
    followed.end()
    followed.follow([1])
    assert oracle.ended == 1 and followed.sessions == {}


def test_without_drafters_a_round_costs_next_to_nothing() -> None:
    drafting = Drafting([], 15, Staircase())
    bids = [Bid(Followed(drafting, STATE, ""), 100, 64) for _ in range(4)]
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(50):
            drafting.learn(drafting.propose(bids, 16), [[1]] * 4, 0.01)
        best = min(best, (time.perf_counter() - start) / 50)
    assert drafting.propose(bids, 16).trees == (NO_GUESS,) * 4
    assert best < 4 * 20e-6


def test_merging_is_the_same_whatever_the_calibration() -> None:
    """Nothing learned leaves a lone drafter's tree as it is."""
    clock = Clock()
    drafting = Drafting([Oracle("d", clock, always(1.0), 0.9)], 15, free_rows(), clock)
    [tree] = drafting.propose([Bid(drafting.begin(STATE, ""), 0, 64)], 16).trees
    assert tree.scores == pytest.approx(
        merge([chain(range(15), [0.9 ** (n + 1) for n in range(15)], Origin("d"))]).scores
    )
