"""Copies in memory: what is found has the bits that were put, and the books hold whatever comes and goes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sequences import CHUNK, Books, hybrid_state, kv_state, prompt, read, reading, same_rows, same_state

from tandem.caches.shelf import Hold, Shelf
from tandem.memory.budget import Level
from tandem.model.state import SequenceState

A = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
PIECE = kv_state().saved_bytes(CHUNK)
LOTS = 1 << 40


def kept(shelf: Shelf, tokens: list[int]) -> int:
    """Rows of `tokens` that are there from the first on."""
    rows = 0
    for piece in prompt(tokens).pieces(len(tokens)):
        match = shelf.index.match(piece)
        rows += match[1] if match else 0
        if not match or match[1] < piece.rows:
            break
    return rows


def put(shelf: Shelf, tokens: list[int], level: Level = Level.PARK) -> Hold | None:
    return shelf.put(prompt(tokens), len(tokens), reading(kv_state, tokens), level)


def test_what_two_conversations_begin_with_is_there_once() -> None:
    books = Books()
    shelf = Shelf(LOTS, books.holdings)
    put(shelf, [1, 2, 3, 4, 5, 6, 7, 8])
    put(shelf, [1, 2, 3, 4, 9, 9, 9, 9])
    assert shelf.held == 3 * PIECE == books.budget.held(Level.PARK)


def test_a_conversation_that_has_grown_is_copied_from_where_it_ended() -> None:
    shelf = Shelf(LOTS, Books().holdings)
    put(shelf, A)
    first = [copy.saved for copy in shelf.index]
    put(shelf, [*A, 11, 12, 13])
    assert kept(shelf, [*A, 11, 12, 13]) == 13
    assert [copy.saved for copy in shelf.index][:2] == first[:2] and len(shelf.index) == 4  # its old end went
    shelf.check_integrity()


def test_the_end_of_the_conversation_used_longest_ago_goes_first() -> None:
    shelf = Shelf(5 * PIECE, Books().holdings)
    old, new = [1] * 12, [2] * 8
    put(shelf, old)
    put(shelf, new)
    assert put(shelf, [3] * 4) is not None
    assert (kept(shelf, old), kept(shelf, new), kept(shelf, [3] * 4)) == (8, 8, 4)
    put(shelf, old[:4])  # used again: of both, the other one is older now
    assert put(shelf, [4] * 8) is not None
    assert (kept(shelf, old), kept(shelf, new), kept(shelf, [3] * 4)) == (4, 4, 4)
    assert shelf.num_given_back == 3


def test_a_conversation_makes_no_room_for_its_own_end() -> None:
    """Though it is the one used longest ago."""
    shelf = Shelf(3 * PIECE, Books().holdings)
    put(shelf, [1] * 8)
    put(shelf, [2] * 4)
    assert put(shelf, [1] * 12) is not None
    assert (kept(shelf, [1] * 12), kept(shelf, [2] * 4)) == (12, 0)
    shelf.check_integrity()


def test_a_conversation_longer_than_the_shelf_takes_nothing_from_anyone() -> None:
    shelf = Shelf(2 * PIECE, Books().holdings)
    put(shelf, [1] * 8)
    assert put(shelf, [2] * 12) is None
    assert kept(shelf, [1] * 8) == 8 and shelf.num_refused == 1


def test_heads_make_no_room_for_themselves_among_conversations() -> None:
    shelf = Shelf(2 * PIECE, Books().holdings)
    put(shelf, [1] * 8)
    assert put(shelf, [2] * 4, Level.STORE) is None
    assert put(shelf, [1] * 4, Level.STORE) is not None  # it is there already


def test_what_somebody_will_come_back_for_makes_no_room() -> None:
    shelf = Shelf(3 * PIECE, Books().holdings)
    stash, pin = put(shelf, [1] * 4, Level.STASH), put(shelf, [2] * 4, Level.PIN)
    put(shelf, [1] * 4)  # parked too, and still stashed
    assert stash and pin and put(shelf, [3] * 8) is None
    shelf.release(stash)
    assert put(shelf, [3] * 8) is not None
    assert (kept(shelf, [1] * 4), kept(shelf, [2] * 4)) == (0, 4)


def test_the_room_there_is_for_a_stash() -> None:
    shelf = Shelf(4 * PIECE, Books().holdings)
    put(shelf, [1] * 8)
    put(shelf, [2] * 4, Level.STORE)
    assert shelf.room == 4 * PIECE
    stash = put(shelf, [1] * 4, Level.STASH)  # parked too
    assert stash and shelf.room == 3 * PIECE
    put(shelf, [3] * 8, Level.PIN)
    assert shelf.room == PIECE
    shelf.release(stash)
    assert shelf.room == 2 * PIECE


def test_a_guests_stash_goes_before_conversations_moved_aside() -> None:
    """Refused, it would cost the resident conversation its rows."""
    shelf = Shelf(2 * PIECE, Books().holdings)
    put(shelf, [1] * 8)
    assert put(shelf, [2] * 8, Level.STASH) is not None


def test_what_nobody_claims_any_more_goes() -> None:
    books = Books()
    shelf = Shelf(LOTS, books.holdings)
    hold, twice = put(shelf, A, Level.STASH), put(shelf, A[:8], Level.STASH)
    assert hold and twice
    shelf.release(hold)
    assert kept(shelf, A) == 8
    shelf.release(hold)  # a second time means nothing: the claim left is another's
    shelf.release(twice)
    assert shelf.held == 0 == books.budget.cached


def test_a_released_pin_leaves_what_others_claim() -> None:
    books = Books()
    shelf = Shelf(LOTS, books.holdings)
    put(shelf, A[:4], Level.STORE)
    put(shelf, A[:8], Level.PARK)
    pin = put(shelf, A, Level.PIN)
    assert pin and books.budget.held(Level.PIN) == shelf.held
    shelf.release(pin)
    assert books.budget.held(Level.PARK) == 2 * PIECE == shelf.held
    shelf.check_integrity()


def test_levels_before_give_way_when_the_budget_says_so() -> None:
    books = Books(ceiling=4 * PIECE)
    shelf = Shelf(LOTS, books.holdings)
    put(shelf, [1] * 8, Level.STORE)
    put(shelf, [2] * 8, Level.PARK)
    assert put(shelf, [3] * 4, Level.PARK) is not None
    assert (kept(shelf, [1] * 8), kept(shelf, [2] * 8)) == (4, 8)
    assert put(shelf, [4] * 8, Level.PARK) is None  # parked ones do not give way to each other: that is the limit's
    assert books.holdings.num_refused == 1
    assert books.holdings.give_back(Level.PARK, 1) == PIECE
    assert books.budget.cached == 3 * PIECE


@pytest.mark.parametrize("new", [kv_state, hybrid_state])
def test_stashed_rows_are_put_back_bit_for_bit(new: Callable[[], SequenceState]) -> None:
    shelf = Shelf(LOTS, Books().holdings)
    state, cold = reading(new, A), reading(new, A)
    anchor = state.snapshot()
    hold = shelf.put(prompt(A), 6, state, Level.STASH)
    assert hold
    state.begin(0, 6, settled=True)
    read(state, [9] * 6)
    assert shelf.put_back(hold, state) == 6
    state.restore(anchor)
    assert same_state(state, cold, len(A))


def test_of_a_stash_that_was_given_back_the_beginning_is_left() -> None:
    shelf = Shelf(LOTS, Books().holdings)
    state = reading(kv_state, A)
    hold = shelf.put(prompt(A), 10, state, Level.STASH)
    assert hold and shelf.give_back(Level.STASH, 1) > 0
    read(state, [9] * 10)
    assert shelf.put_back(hold, state) == 8
    assert same_rows(state, reading(kv_state, A), 8)


def test_a_copy_that_the_system_refuses_is_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(LOTS, Books().holdings)
    state = reading(kv_state, A)
    save, left = state.save, [2]

    def save_twice(first: int, last: int) -> object:
        if not left[0]:
            raise OSError("no memory")
        left[0] -= 1
        return save(first, last)

    monkeypatch.setattr(state, "save", save_twice)
    assert shelf.put(prompt(A), 10, state, Level.STASH) is None
    assert shelf.held == 0
    left[0] = 2
    assert shelf.put(prompt(A), 10, state, Level.PARK) is None
    assert kept(shelf, A) == 8  # of no use to this one, and to the next
    shelf.check_integrity()
    shelf.give_back(Level.PARK, 1)
    shelf.check_integrity()


def test_snapshots_are_kept_at_the_ends_of_pieces() -> None:
    shelf = Shelf(LOTS, Books().holdings)
    state = hybrid_state()
    anchors = []
    for start, end in pairwise([0, 4, 8, 10]):
        read(state, A[:end], start)
        anchors.append(state.snapshot())
    shelf.put(prompt(A), 8, state, Level.PARK, anchors[:1])
    assert [copy.snapshot and copy.snapshot.position for copy in shelf.index] == [4, None]
    shelf.put(prompt(A), 10, state, Level.PARK, anchors)
    assert [copy.snapshot and copy.snapshot.position for copy in shelf.index] == [4, 8, 10]
    assert shelf.held == state.saved_bytes(4) * 2 + state.saved_bytes(2) + 3 * state.fixed_bytes
    shelf.put(prompt(A[:9]), 9, state, Level.PARK)  # all there
    longer = [*A, 11]
    shelf.put(prompt(longer), 11, reading(hybrid_state, longer), Level.PARK)
    assert kept(shelf, A) == 10 and len(shelf.index) == 4  # a place to go on is not outgrown
    shelf.check_integrity()


class Traffic(RuleBasedStateMachine):
    """Sequences over two tokens come and go at all levels, with little room; now and then a level gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books(ceiling=9 * PIECE)
        self.shelf = Shelf(8 * PIECE, self.books.holdings)
        self.holds: list[Hold] = []

    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=14)

    @rule(tokens=tokens, level=st.sampled_from([Level.STORE, Level.STASH, Level.PARK, Level.PIN]))
    def put(self, tokens: list[int], level: Level) -> None:
        hold = put(self.shelf, tokens, level)
        if hold is None:
            return
        assert kept(self.shelf, tokens) == hold.rows == len(tokens)
        state = kv_state()
        assert self.shelf.put_back(hold, state) == len(tokens)
        assert same_rows(state, reading(kv_state, tokens), len(tokens))
        if level in (Level.STASH, Level.PIN):
            self.holds.append(hold)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.holds:
            self.shelf.release(self.holds.pop(data.draw(st.integers(0, len(self.holds) - 1))))

    @rule(level=st.sampled_from(list(Level)), size=st.integers(1, 4 * PIECE))
    def give_back(self, level: Level, size: int) -> None:
        held = self.books.budget.held(level)
        given = self.books.holdings.give_back(level, size)
        assert given >= min(held, size)

    @invariant()
    def books_are_right(self) -> None:
        self.shelf.check_integrity()
        assert self.books.budget.cached == self.shelf.held

    def teardown(self) -> None:
        for hold in self.holds:
            self.shelf.release(hold)
        self.shelf.check_integrity()
        for level in Level:
            self.books.holdings.give_back(level, LOTS)
        assert self.shelf.held == 0 and len(self.shelf.index) == 0


Traffic.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestTraffic = Traffic.TestCase
