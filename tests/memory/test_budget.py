"""The memory policy on the figures it was written for, and on any others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.memory.budget import Budget, Denied, GiveBack, Granted, Level
from tandem.units import GIB

CEILING, PEAK = 70 * GIB, 77 * GIB
SIDE_SLOT = round(7.65 * GIB)
sizes = st.integers(0, 100 * GIB)


def test_fixed_bytes_are_part_of_both_limits() -> None:
    budget = Budget(CEILING, PEAK)
    budget.add_fixed(SIDE_SLOT)
    assert (budget.ceiling, budget.peak) == (CEILING + SIDE_SLOT, PEAK + SIDE_SLOT)
    assert budget.growth(round(76.40 * GIB)) == pytest.approx(8.25 * GIB, abs=2)


def test_setting_the_limits_again_does_not_lose_the_fixed_bytes() -> None:
    """A document read after the side slots were built once set both limits to their bare figures."""
    budget = Budget(CEILING, PEAK)
    budget.add_fixed(SIDE_SLOT)
    engine_now = 70 * GIB  # side slot included
    budget.set_limits(CEILING, PEAK)
    assert budget.ask(Level.ANCHORS, 2 * GIB, engine_now) == Granted()
    lost = Budget(CEILING, PEAK)
    assert isinstance(lost.ask(Level.ANCHORS, 2 * GIB, engine_now), Denied)


@given(st.lists(st.one_of(sizes, st.tuples(sizes, sizes)), max_size=20))
def test_limits_are_the_last_configured_figures_and_all_that_is_fixed(changes: list[int | tuple[int, int]]) -> None:
    budget = Budget(CEILING, PEAK)
    configured, fixed = (CEILING, PEAK), 0
    for change in changes:
        if isinstance(change, int):
            budget.add_fixed(change)
            fixed += change
        else:
            configured = min(change), max(change)
            budget.set_limits(*configured)
        assert (budget.ceiling, budget.peak) == (configured[0] + fixed, configured[1] + fixed)
        assert budget.fixed == fixed


def test_with_the_pool_slot_0s_window_is_part_of_neither_limit() -> None:
    window = 262_144 * 106_752
    budget = Budget(CEILING, PEAK, pooled=window)
    assert (budget.ceiling, budget.peak) == (CEILING - window, PEAK - window)
    budget.set_limits(80 * GIB, 90 * GIB)
    assert (budget.ceiling, budget.peak) == (80 * GIB - window, 90 * GIB - window)


def test_levels_give_back_in_their_order_and_no_more_than_is_needed() -> None:
    budget = Budget(CEILING, PEAK)
    for level, held in zip(Level, (1, 2, 0, 4, 5, 6), strict=True):
        budget.report(level, held * GIB)
    assert [level.name for level in Level] == ["STORE", "ANCHORS", "END", "STASH", "PARK", "PIN"]
    assert budget.free(0) == ()
    assert budget.free(GIB) == (GiveBack(Level.STORE, GIB),)
    assert budget.free(4 * GIB) == (
        GiveBack(Level.STORE, GIB),
        GiveBack(Level.ANCHORS, 2 * GIB),
        GiveBack(Level.STASH, GIB),
    )
    assert sum(step.size for step in budget.free(100 * GIB)) == budget.cached == 18 * GIB


def test_a_cache_takes_from_the_levels_before_its_own_only() -> None:
    budget = Budget(10 * GIB, 12 * GIB)
    budget.report(Level.ANCHORS, 2 * GIB)
    budget.report(Level.PARK, 5 * GIB)
    full = 10 * GIB
    assert budget.ask(Level.STASH, GIB, full) == Granted((GiveBack(Level.ANCHORS, GIB),))
    denied = budget.ask(Level.STASH, 3 * GIB, full)
    assert denied == Denied(GIB, "stash: 3.00 GiB asked, the engine holds 10.00 of 10.00 and the levels before it 2.00")
    assert isinstance(budget.ask(Level.ANCHORS, GIB, full), Denied)  # its own older ones are its own affair
    assert budget.ask(Level.PIN, 6 * GIB, full) == Granted(
        (GiveBack(Level.ANCHORS, 2 * GIB), GiveBack(Level.PARK, 4 * GIB))
    )


@given(
    held=st.lists(sizes, min_size=len(Level), max_size=len(Level)),
    level=st.sampled_from(Level),
    size=sizes,
    beside=sizes,
)
def test_what_is_granted_fits(held: list[int], level: Level, size: int, beside: int) -> None:
    budget = Budget(CEILING, PEAK)
    for each, bytes_held in zip(Level, held, strict=True):
        budget.report(each, bytes_held)
    engine_now = beside + sum(held)
    lower = sum(bytes_held for each, bytes_held in zip(Level, held, strict=True) if each < level)
    match budget.ask(level, size, engine_now):
        case Granted(first):
            freed = sum(step.size for step in first)
            short = max(0, size - budget.cache_growth(engine_now))
            assert freed == short
            assert all(step.level < level and 0 < step.size <= budget.held(step.level) for step in first)
            assert list(first) == sorted(first, key=lambda step: step.level)
        case Denied(missing):
            assert missing == size - budget.cache_growth(engine_now) - lower > 0
