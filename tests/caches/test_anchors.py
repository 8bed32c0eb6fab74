"""Anchors of one slot: the newest stay, what stays is spread, and nobody holds more than was allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sequences import CHUNK, Books, hybrid_state, kv_state, read, reading, same_state

from tandem.caches.anchors import NEWEST, Anchors
from tandem.memory.budget import Level
from tandem.model.state import SequenceState

ONE = hybrid_state().fixed_bytes


def standing(rows: int) -> SequenceState:
    state = hybrid_state(1024)
    state.begin(0, rows, settled=True)
    return state


def noting(anchors: Anchors, *positions: int) -> list[bool]:
    return [anchors.note(standing(position)) for position in positions]


def positions(anchors: Anchors) -> list[int]:
    return [anchor.position for anchor in anchors]


def test_the_newest_stay_and_the_others_are_spread() -> None:
    anchors = Anchors(5 * ONE, Books().holdings)
    noting(anchors, *range(CHUNK, 16 * CHUNK + 1, CHUNK))
    kept = positions(anchors)
    assert kept[-NEWEST:] == [15 * CHUNK, 16 * CHUNK] and len(kept) == 5
    gaps = [after - before for before, after in zip([0, *kept], kept[: -NEWEST + 1], strict=False)]
    assert max(gaps) <= 8 * CHUNK
    anchors.check_integrity()


def test_a_restored_anchor_is_where_the_sequence_stood() -> None:
    anchors, tokens = Anchors(4 * ONE, Books().holdings), [1, 2, 3, 4, 5, 6, 7, 8, 9]
    state = reading(hybrid_state, tokens[:8])
    assert anchors.note(state)
    read(state, tokens, 8)
    anchor = anchors.at(8)
    assert anchor is not None
    state.restore(anchor)
    assert same_state(state, reading(hybrid_state, tokens[:8]), 8) and state.resumable(8) == 8


def test_the_last_place_not_past_what_is_shared() -> None:
    anchors = Anchors(9 * ONE, Books().holdings)
    noting(anchors, 4, 8, 12)
    anchors.note_end(standing(14))
    found = [anchor.position if (anchor := anchors.at(rows)) else None for rows in (3, 4, 11, 13, 14, 99)]
    assert found == [None, 4, 8, 12, 14, 14]


def test_rows_of_another_sequence_end_its_anchors() -> None:
    books = Books()
    anchors = Anchors(9 * ONE, books.holdings)
    noting(anchors, 4, 8, 12)
    anchors.note_end(standing(14))
    anchors.cut(8)
    assert positions(anchors) == [4, 8] and books.budget.held(Level.END) == 0
    noting(anchors, 12)
    anchors.cut(0)
    assert positions(anchors) == [] and books.budget.cached == 0


def test_an_anchor_is_taken_once_a_place() -> None:
    books = Books()
    anchors = Anchors(9 * ONE, books.holdings)
    assert noting(anchors, 4, 4) == [True, True] and books.budget.held(Level.ANCHORS) == ONE


def test_the_end_anchor_is_the_last_ends() -> None:
    books = Books()
    anchors = Anchors(9 * ONE, books.holdings)
    anchors.note_end(standing(14))
    anchors.note_end(standing(20))
    assert positions(anchors) == [20] and books.budget.held(Level.END) == ONE


def test_a_state_that_can_rewind_needs_none() -> None:
    anchors, state = Anchors(1 << 30, Books().holdings), kv_state()
    assert not anchors.note(state) and not anchors.note_end(state) and positions(anchors) == []


@pytest.mark.parametrize(("limit", "kept"), [(ONE - 1, []), (ONE, [8]), (2 * ONE, [4, 8])])
def test_the_limit_counts_bytes(limit: int, kept: list[int]) -> None:
    anchors = Anchors(limit, Books().holdings)
    noting(anchors, 4, 8)
    assert positions(anchors) == kept


def test_under_a_full_budget_the_newest_anchor_takes_the_place_of_an_old_one() -> None:
    books = Books(ceiling=3 * ONE)
    anchors = Anchors(9 * ONE, books.holdings)
    assert noting(anchors, 4, 8, 12, 16) == [True, True, True, True]
    assert positions(anchors) == [8, 12, 16] or positions(anchors) == [4, 12, 16]


def test_slots_give_back_one_after_the_other() -> None:
    books = Books()
    one, other = Anchors(9 * ONE, books.holdings), Anchors(9 * ONE, books.holdings)
    noting(one, 4, 8)
    noting(other, 4, 8)
    other.note_end(standing(9))
    assert books.holdings.give_back(Level.ANCHORS, 3 * ONE) == 3 * ONE
    assert positions(one) == [] and len(positions(other)) == 2
    assert books.holdings.give_back(Level.END, 1) == ONE and books.budget.held(Level.ANCHORS) == ONE


@given(
    limit=st.integers(0, 6),
    ceiling=st.integers(1, 8),
    steps=st.lists(st.one_of(st.just("note"), st.just("end"), st.integers(0, 80)), max_size=40),
)
def test_the_books_hold_whatever_comes(limit: int, ceiling: int, steps: list[str | int]) -> None:
    books = Books(ceiling * ONE)
    anchors = Anchors(limit * ONE, books.holdings)
    at = 0
    for step in steps:
        if step == "note":
            at += CHUNK
            anchors.note(standing(at))
        elif step == "end":
            anchors.note_end(standing(at + 1))
        elif isinstance(step, int):
            if step % 3:
                anchors.cut(step)
                at = min(at, step)
            else:
                books.holdings.give_back(Level.ANCHORS, step * ONE // 20)
        anchors.check_integrity()
        assert books.budget.cached == sum(anchor.bytes for anchor in anchors) <= ceiling * ONE
        assert books.budget.held(Level.ANCHORS) <= limit * ONE
