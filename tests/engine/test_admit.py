"""The boundary between two passes, with the seed documents' tables, and the arithmetic of a reservation."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.admit import PAGE, Boundary, Offer, RowCost, Running, Shortage, decide


def blocks(tokens: int, block: int) -> int:
    return ceil(tokens / block)


def boundary(
    running: list[tuple[str, int, int]], waiting: list[tuple[str, int]], slots: int, capacity: int
) -> Boundary[str]:
    """`running` is (id, tokens left, blocks), each on a slot of its own; `waiting` is (id, blocks)."""
    need = dict(waiting)
    return decide(
        [Running(slot, left, held) for slot, (_, left, held) in enumerate(running)],
        list(need),
        range(slots),
        capacity,
        lambda id, free: Offer(min(free), need[id]) if free else None,
    )


# name, running, waiting, slots, capacity, admitted
TABLE = [
    ("A released, C takes the place", [("A", 0, 2), ("B", 3, 2)], [("C", blocks(2 + 2, 2)), ("D", 1)], 2, 6, "C"),
    ("3 of 4 free blocks, then no slot", [("A", 0, 2), ("B", 3, 2)], [("C", blocks(3 + 2, 2)), ("D", 1)], 2, 6, "C"),
    ("D may not pass C", [("A", 0, 2), ("B", 3, 2)], [("C", blocks(8 + 2, 2)), ("D", blocks(1 + 1, 2))], 3, 6, ""),
    ("both fit", [("A", 0, 2), ("B", 3, 2)], [("C", 2), ("D", 2)], 3, 6, "CD"),
    ("the second no longer fits", [("B", 3, 2)], [("C", 3), ("D", 2)], 3, 6, "C"),
    ("to the last block", [("B", 3, 2)], [("C", 4)], 2, 6, "C"),
    ("one block short", [("B", 3, 2)], [("C", 5)], 2, 6, ""),
    ("nothing finished, no slot", [("A", 1, 1), ("B", 3, 1)], [("C", 1)], 2, 6, ""),
    ("spare slots are no memory", [], [("C", 7)], 8, 6, ""),
    ("nobody waits", [("A", 0, 2)], [], 2, 6, ""),
    ("capacity already overdrawn", [("B", 3, 9)], [("C", 1)], 2, 6, ""),
]


@pytest.mark.parametrize(("running", "waiting", "slots", "capacity", "admitted"), [row[1:] for row in TABLE])
def test_the_tables(
    running: list[tuple[str, int, int]], waiting: list[tuple[str, int]], slots: int, capacity: int, admitted: str
) -> None:
    assert "".join(id for id, _ in boundary(running, waiting, slots, capacity).admitted) == admitted


def test_a_shortage_names_the_first_that_did_not_fit_with_its_numbers() -> None:
    found = boundary([("A", 0, 2), ("B", 3, 2)], [("C", 5), ("D", 1)], 3, 6)
    assert found.shortage == Shortage("C", need=5, left=4, slot=found.shortage.slot)


def test_no_free_slot_is_no_shortage() -> None:
    assert boundary([("B", 3, 2)], [("C", 5)], 1, 6).shortage is None


def test_a_finished_request_gives_its_own_slot() -> None:
    found = boundary([("A", 2, 1), ("B", 0, 1)], [("C", 1)], 2, 6)
    assert found.admitted == (("C", Offer(1, 1)),)


def test_one_that_only_a_busy_slot_can_hold_is_passed_by_those_that_take_other_slots() -> None:
    def offer(id: str, free: frozenset[int]) -> Offer | None:
        usable = free & {0} if id == "long" else free
        return Offer(max(usable), 1) if usable else None

    found = decide([Running(0, 9, 1)], ["long", "short", "late"], range(3), 6, offer)
    assert [(id, place.slot) for id, place in found.admitted] == [("short", 2), ("late", 1)]
    assert found.shortage is None
    found = decide([Running(1, 9, 1)], ["long", "short"], range(2), 6, offer)
    assert [(id, place.slot) for id, place in found.admitted] == [("long", 0)]


REQUESTS = st.lists(st.integers(0, 8), max_size=8)


@given(
    running=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8)), max_size=4),
    waiting=REQUESTS,
    spare=st.integers(0, 4),
    capacity=st.integers(0, 30),
)
def test_the_boundary_never_overdraws_and_never_skips(
    running: list[tuple[int, int]], waiting: list[int], spare: int, capacity: int
) -> None:
    held = [(f"r{i}", left, reserved) for i, (left, reserved) in enumerate(running)]
    queue = [(f"w{i}", need) for i, need in enumerate(waiting)]
    slots = len(running) + spare
    found = boundary(held, queue, slots, capacity)
    active = [reserved for _, left, reserved in held if left]
    admitted = [id for id, _ in found.admitted]
    assert admitted == [id for id, _ in queue[: len(admitted)]]  # a prefix of the queue: nobody is skipped
    used = sum(place.need for _, place in found.admitted)
    assert not admitted or sum(active) + used <= capacity
    taken = [place.slot for _, place in found.admitted]
    busy = {slot for slot, (_, left, _) in enumerate(held) if left}
    assert len(set(taken)) == len(taken) and not set(taken) & busy and set(taken) <= set(range(slots))
    if len(admitted) < len(queue):  # the walk stopped for a reason
        full = len(active) + len(admitted) == slots
        assert full or sum(active) + used + queue[len(admitted)][1] > capacity


COST = RowCost(a_token=106_752, workspace=512 << 20)  # the 27B profile's row


def test_a_reservation_is_the_workspace_and_the_pages_not_yet_committed() -> None:
    assert COST.pages(0) == 0
    assert COST.pages(1) == PAGE
    assert COST.pages(19) == PAGE and COST.pages(20) == 2 * PAGE  # 2 MiB / 106,752 B = 19.6 rows
    assert COST.pages(65_536) == pytest.approx(6.516 * 2**30, abs=PAGE)
    assert COST.reservation(1000, committed=0) == (512 << 20) + COST.pages(1000)
    assert COST.reservation(1000, committed=0, reading=False) == COST.pages(1000)
    assert COST.reservation(1000, committed=5000) == 512 << 20


@given(rows=st.integers(1, 10_000), steps=st.lists(st.integers(0, 10_000), min_size=2, max_size=6))
def test_a_reservation_shrinks_as_the_slot_commits(rows: int, steps: list[int]) -> None:
    shrinking = [COST.reservation(rows, committed) for committed in sorted(steps)]
    assert shrinking == sorted(shrinking, reverse=True)
    assert COST.reservation(rows, committed=rows) == COST.workspace
    for committed in steps:  # what is reserved and what is committed together hold the whole request
        assert COST.reservation(rows, committed, reading=False) + COST.pages(committed) >= COST.pages(rows)
