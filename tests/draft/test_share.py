"""Rows of a round go to the likeliest guesses of all slots, as many as pay together."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.draft.calibration import Calibration
from tandem.draft.share import best_count, share
from tandem.draft.tree import NO_GUESS, ROOT, DraftTree, Origin, chain, merge
from tandem.draft.worth import Worth

A, B = Origin("a"), Origin("b")
FLAT = [10.0] * 17
STEPS = [10.0] * 5 + [16.0] * 4 + [30.0] * 8  # up to 4, 8 and 16 rows
STEEP = [10.0 * max(1, rows) for rows in range(17)]


def run(nodes: int, q: float, origin: Origin = A) -> DraftTree:
    """A chain in which each guess comes true with probability `q` once its parent has."""
    return chain(range(nodes), [q ** (depth + 1) for depth in range(nodes)], origin)


scores = st.lists(st.floats(0, 1), max_size=20).map(lambda given: sorted(given, reverse=True))
stairs = st.lists(st.floats(0, 20), min_size=25, max_size=25).map(
    lambda rises: [5 + sum(rises[:rows]) for rows in range(len(rises))]
)


@given(scores, st.integers(1, 6), stairs, st.integers(0, 20), st.floats(0, 5))
def test_no_other_number_of_guesses_writes_more_a_millisecond(
    given: list[float], slots: int, prices: list[float], limit: int, spent: float
) -> None:
    def rate(count: int) -> float:
        return (slots + sum(given[:count])) / (prices[slots + count] + spent)

    count = best_count(given, slots, prices, limit, spent)
    allowed = range(min(len(given), max(0, limit - slots)) + 1)
    assert count in allowed
    assert rate(count) >= max(map(rate, allowed)) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("prices", "q", "kept"),
    [
        (FLAT, 0.5, 15),  # rows are free: all that fit
        (FLAT, 0.0, 0),  # nothing to win
        (STEEP, 0.95, 0),  # a row costs as much as a round
        (STEPS, 0.5, 3),  # to the edge of the first step
        (STEPS, 0.9, 7),  # the second step pays, the third does not
        (STEPS, 0.99, 15),  # all of the third: its single rows would not pay, all of them together do
    ],
)
def test_a_step_is_used_to_its_edge(prices: list[float], q: float, kept: int) -> None:
    [tree] = share([run(15, q)], prices, 16, 0.0)
    assert tree.nodes == kept


def test_a_later_step_is_found_behind_rows_that_do_not_pay() -> None:
    """Two rows for the price of one and a half pay nothing; eight for the same price do."""
    prices = [10.0] * 2 + [15.0] * 7
    assert share([run(1, 0.4)], prices, 8, 0.0) == [NO_GUESS]
    assert share([run(7, 0.8)], prices, 8, 0.0)[0].nodes == 7


def test_what_asking_took_makes_longer_trees_worth_it() -> None:
    prices = [10.0 + 4 * max(0, rows - 1) for rows in range(17)]
    [cheap], [dear] = share([run(15, 0.8)], prices, 16, 0.0), share([run(15, 0.8)], prices, 16, 20.0)
    assert cheap.nodes < dear.nodes < 15


def test_a_copying_slot_does_not_starve_another() -> None:
    copying, careful = run(15, 0.97), run(4, 0.9, B)
    first, second = share([copying, careful], FLAT, 10, 0.0)
    assert first.nodes + second.nodes == 8
    assert second.nodes >= 1 and first.nodes >= 5
    worst_kept, best_lost = (
        min(*first.scores, *second.scores),
        max(copying.scores[first.nodes], careful.scores[second.nodes]),
    )
    assert worst_kept >= best_lost, "one line, by nothing but how likely a guess is"
    assert share([careful, copying], FLAT, 10, 0.0) == [second, first], "nor does it matter which slot it is"
    same = share([run(15, 0.97), run(15, 0.97)], FLAT, 16, 0.0)
    assert [tree.nodes for tree in same] == [7, 7]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(0, 20), stairs)
def test_the_pass_never_has_more_rows_than_it_may(sizes: list[int], limit: int, prices: list[float]) -> None:
    trees = share([run(nodes, 0.9) for nodes in sizes], prices, limit, 0.0)
    assert len(trees) == len(sizes) and all(tree.is_sound for tree in trees)
    assert sum(tree.nodes for tree in trees) <= max(0, limit - len(sizes))


# --- how likely guesses are -------------------------------------------------------------------------------------


def test_a_drafters_opinion_counts_until_its_guesses_were_judged() -> None:
    calibration = Calibration()
    assert calibration.rate(run(3, 0.8)).scores == pytest.approx(run(3, 0.8).scores)
    for turn in range(300):
        calibration.learn(run(1, 0.8), [0 if turn % 4 == 0 else 9])
    assert calibration.probability(A, 0.8) == pytest.approx(0.25, abs=0.05)
    assert calibration.probability(B, 0.8) == pytest.approx(0.8), "another origin"
    assert calibration.probability(A, 0.2) == pytest.approx(0.2), "another grade of certainty"


def test_what_was_learned_fades() -> None:
    calibration = Calibration()
    for is_true in [False] * 1000 + [True] * 150:
        calibration.judge(A, 0.5, is_true)
    assert calibration.probability(A, 0.5) > 0.85


def test_guesses_are_judged_where_their_parent_came() -> None:
    tree = merge([chain([1, 2, 3], [0.6, 0.5, 0.4], A), chain([4, 5], [0.3, 0.2], B)])
    calibration = Calibration()
    before = [calibration.probability(origin, 0.9) for origin in (A, B)]
    calibration.learn(tree, [1, 7])  # 1 came, 2 did not, of 3 nothing is known; 4 did not come, of 5 nothing is known
    assert calibration.probability(A, 0.6) > 0.6
    assert calibration.probability(A, 0.5 / 0.6) < 0.5 / 0.6
    assert calibration.probability(A, 0.4 / 0.5) < 0.8  # of the grade of 0.5 / 0.6
    assert calibration.probability(B, 0.3) < 0.3
    assert calibration.probability(B, 0.2 / 0.3) == pytest.approx(0.2 / 0.3)
    assert [calibration.probability(origin, 0.9) for origin in (A, B)] == before
    calibration.learn(tree, [])
    assert [calibration.probability(origin, 0.9) for origin in (A, B)] == before


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60), st.floats(0, 1))
def test_ratings_are_probabilities_that_never_rise_along_a_path(judged: list[tuple[float, bool]], q: float) -> None:
    calibration = Calibration()
    for opinion, is_true in judged:
        calibration.judge(A, opinion, is_true)
    rated = calibration.rate(run(6, q))
    assert rated.is_sound and all(high >= low for high, low in pairwise((1.0, *rated.scores)))


def test_a_node_behind_an_impossible_one_is_impossible() -> None:
    tree = DraftTree((1, 2), (ROOT, 0), (0.0, 0.0), (A, A))
    assert Calibration().rate(tree).scores == (0.0, 0.0)


# --- whether a drafter pays -------------------------------------------------------------------------------------


def asked_in(worth: Worth, rounds: int, saved: float, cost: float, round_ms: float = 15.0) -> int:
    asked = 0
    for _ in range(rounds):
        if worth.is_due(round_ms):
            asked += 1
            worth.learn(saved, cost)
    return asked


@pytest.mark.parametrize("cost", [0.5, 5.0, 50.0])
def test_asking_what_does_not_pay_takes_a_hundredth_of_the_time(cost: float) -> None:
    worth = Worth()
    asked_in(worth, 50, 0.0, cost)
    assert not worth.pays
    rounds = 40_000
    assert 0 < asked_in(worth, rounds, 0.0, cost) * cost <= 0.011 * rounds * 15.0


def test_what_pays_is_asked_every_round_and_what_starts_to_pay_is_found() -> None:
    worth = Worth()
    assert asked_in(worth, 100, 6.0, 5.0) == 100
    asked_in(worth, 2000, 0.0, 5.0)
    assert not worth.pays
    asked_in(worth, 500, 20.0, 5.0)
    assert worth.pays and asked_in(worth, 100, 20.0, 5.0) == 100


def test_what_costs_next_to_nothing_is_always_asked() -> None:
    worth = Worth()
    assert asked_in(worth, 1000, 0.0, 0.1) == 1000


def test_a_slow_first_ask_is_no_verdict() -> None:
    worth = Worth()
    worth.learn(0.0, 900.0)
    assert asked_in(worth, 100, 6.0, 5.0) == 100
