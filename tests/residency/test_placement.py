"""The residency table of the design, row by row, and the rule's edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.contract.plan import Placement
from tandem.residency.placement import gib, may_load
from tandem.units import GIB


def ask(available: float, now: float, peak: float, claim: float, floor: float = 15, margin: float = 4) -> Placement:
    def size(gibibytes: float) -> int:
        return round(gibibytes * GIB)

    return may_load(
        "role",
        available=size(available),
        engine_now=size(now),
        declared_peak=size(peak),
        claim=size(claim),
        floor=size(floor),
        margin=size(margin),
    )


def test_a_shadow_reader_under_the_floor_itself() -> None:
    placement = ask(28.97, 76.40, 84.65, 6.5)
    assert not placement.admitted
    assert placement.after / GIB == pytest.approx(14.22, abs=0.005)
    assert placement.sentence == (
        "not loaded: kept free for requests: 28.97 available, 8.25 still to grow, 6.5 claimed, 14.22 would be left, "
        "15 is the floor"
    )


def test_a_second_decider_above_the_floor_and_under_its_margin() -> None:
    placement = ask(28.97, 76.40, 84.65, 3.0)
    assert not placement.admitted
    assert placement.after / GIB == pytest.approx(17.72, abs=0.005)
    assert placement.sentence == (
        "not loaded: kept free for requests: 28.97 available, 8.25 still to grow, 3 claimed, 17.72 would be left, "
        "15 is the floor and 4 its margin"
    )


def test_exactly_floor_and_margin_is_enough() -> None:
    assert ask(30, 80, 80, 11).admitted
    assert not ask(30, 80, 80, 11.01).admitted


def test_an_engine_past_its_declared_peak_owes_nothing_more() -> None:
    assert ask(30, 90, 80, 5).growth == 0


@given(*[st.integers(0, 1 << 45)] * 6)
def test_the_growth_is_counted_once(
    available: int, engine_now: int, declared_peak: int, claim: int, floor: int, margin: int
) -> None:
    placement = may_load(
        "role",
        available=available,
        engine_now=engine_now,
        declared_peak=declared_peak,
        claim=claim,
        floor=floor,
        margin=margin,
    )
    assert placement.after + placement.claim + placement.growth == available
    assert placement.admitted == (placement.after >= floor + margin)


def test_sizes_in_sentences() -> None:
    assert [gib(round(size * GIB)) for size in (28.97, 6.5, 15, 0, 0.001, -0.001, -2.25)] == [
        "28.97",
        "6.5",
        "15",
        "0",
        "0",
        "0",
        "-2.25",
    ]
