"""Rows of a round go to the likeliest guesses of all slots, as many as pay together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.draft.share import best_count, share
from tandem.draft.tree import NO_GUESS, DraftTree, Origin, chain

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
