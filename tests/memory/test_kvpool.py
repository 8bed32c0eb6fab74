"""The pool's arithmetic, its refusals, and random lives of slots against the kernel's and the driver's own books."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from failing_kernel import FailingKernel
from fake_driver import PAGE, FakeDriver, FakeStream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from residency_of import resident_bytes
from torch import Tensor

from tandem.memory.cuda_pages import CudaPages
from tandem.memory.host_pages import HostPages
from tandem.memory.kvpool import Geometry, KVPool, SlotRows, memory_behind, rows_behind
from tandem.memory.pages import CommitRefused, PageBackend
from tandem.units import KIB

pytestmark = pytest.mark.usefixtures("one_thread")

WINDOW = 2048
MARGIN = 64
SHAPE = (WINDOW, 3, 64)  # bfloat16: 384 bytes a row, 341 rows a page of 128 KiB
PAGE_384 = 128 * KIB
PAGES_OF_ROWS = (341, 256, 655, 1310)  # the most rows a page of any tensor here holds


def fill(pool: KVPool, slots: int = 2, layers: int = 2) -> list[list[Tensor]]:
    """Keys and values of `layers` layers and a drafter's narrower rows, for each slot."""
    tensors = []
    for _ in range(slots):
        rows = pool.slot()
        own = [rows.allocate(SHAPE, torch.bfloat16) for _ in range(2 * layers)]
        tensors.append([*own, rows.allocate((WINDOW, 64), torch.float32, kind="drafter")])
    return tensors


@given(planes=st.integers(1, 5), rows=st.integers(1, 30), row_bytes=st.integers(1, 50), asked=st.integers(0, 30))
def test_geometry_counts_what_lies_in_pages(planes: int, rows: int, row_bytes: int, asked: int) -> None:
    geometry = Geometry(planes, rows, row_bytes, page=64)
    asked = min(asked, rows)
    plane = rows * row_bytes
    row = [
        [range(p * plane + r * row_bytes, p * plane + (r + 1) * row_bytes) for p in range(planes)] for r in range(rows)
    ]

    def pages_of(wanted: range) -> set[int]:
        return {byte // 64 for r in wanted for span in row[r] for byte in span}

    held = pages_of(range(asked))
    assert memory_behind(geometry, asked) == len(held) * 64
    behind = rows_behind(geometry, asked)
    assert asked <= behind <= rows
    assert pages_of(range(behind)) == held


@pytest.fixture
def pool() -> KVPool:
    return KVPool(HostPages(), MARGIN)


def test_a_slot_costs_nothing_until_it_is_written(pool: KVPool) -> None:
    fill(pool)
    window = WINDOW * (4 * 384 + 256)
    assert pool.reserved == 2 * window
    assert pool.committed == 0
    assert pool.slots[0].rows == 0


def test_rows_are_committed_with_the_margin(pool: KVPool) -> None:
    fill(pool)
    taken = pool.slots[0].commit(341 - MARGIN)
    assert taken == 4 * PAGE_384 + 2 * 64 * KIB  # 341 rows: one page, and two of 256 rows for the drafter
    assert pool.slots[0].rows == 341
    assert pool.slots[0].commit(341 - MARGIN) == 0
    assert pool.slots[0].commit(342 - MARGIN) == 4 * PAGE_384
    assert pool.slots[0].rows == 512
    assert pool.slots[1].rows == 0


def test_the_margin_ends_at_the_window(pool: KVPool) -> None:
    fill(pool)
    pool.slots[0].commit(WINDOW)
    assert pool.slots[0].rows == WINDOW
    assert pool.committed == pool.reserved / 2
    with pytest.raises(AssertionError, match="window of 2048"):
        pool.slots[0].commit(WINDOW + 1)


def test_what_is_still_to_commit_is_what_a_commit_takes(pool: KVPool) -> None:
    fill(pool)
    for rows in (1, 100, 341, 700, 700, 2048):
        expected = pool.slots[0].still_to_commit(rows)
        assert pool.slots[0].commit(rows) == expected
        assert pool.slots[0].still_to_commit(rows) == 0


def test_giving_back_keeps_the_page_of_the_last_kept_row(pool: KVPool) -> None:
    [rows, *_], *_ = fill(pool)
    pool.slots[0].commit(WINDOW)
    rows[:] = 1
    full = pool.committed
    freed = pool.slots[0].give_back(342)
    assert freed == full - pool.committed
    assert pool.committed == 4 * 2 * PAGE_384 + 2 * 64 * KIB
    assert pool.slots[0].rows == 512
    assert (rows[:342] == 1).all()
    assert pool.slots[0].give_back(342) == 0
    pool.slots[0].give_back(0)
    assert pool.committed == 0


def test_usage_by_slot_and_kind(pool: KVPool) -> None:
    fill(pool)
    pool.slots[1].commit(10)
    usage = {(use.slot, use.kind): (use.reserved, use.committed) for use in pool.usage}
    assert usage == {
        (0, "attention"): (4 * WINDOW * 384, 0),
        (0, "drafter"): (WINDOW * 256, 0),
        (1, "attention"): (4 * WINDOW * 384, 4 * PAGE_384),
        (1, "drafter"): (WINDOW * 256, 64 * KIB),
    }


def test_heads_may_lie_outside_rows(pool: KVPool) -> None:
    """[keys and values, 1, heads, rows, head_dim]: six planes, each with its own first rows."""
    tensor = pool.slot().allocate((2, 1, 3, WINDOW, 64), torch.bfloat16, row_axis=3)
    plane_page = 32 * KIB  # 256 rows of 128 bytes
    assert pool.slots[0].commit(256 - MARGIN) == 6 * plane_page == resident_bytes(tensor)
    tensor[..., :256, :] = 1
    assert resident_bytes(tensor) == pool.committed  # no page but the committed ones was touched
    assert pool.slots[0].rows == 256
    pool.slots[0].commit(WINDOW)
    assert pool.slots[0].give_back(256) == 6 * (WINDOW // 256 - 1) * plane_page
    assert tensor[..., :256, :].eq(1).all()
    assert pool.slots[0].give_back(0) == 6 * plane_page


def test_a_slot_in_use_gets_no_more_tensors(pool: KVPool) -> None:
    fill(pool)
    pool.slots[0].commit(1)
    with pytest.raises(AssertionError, match="in use"):
        pool.slots[0].allocate(SHAPE, torch.bfloat16)


def test_a_tensor_shorter_than_the_window_holds_nobody_back(pool: KVPool) -> None:
    fill(pool, slots=1)
    pool.slots[0].allocate((300, 64), torch.float32, kind="drafter")
    pool.slots[0].commit(1000)
    assert pool.slots[0].rows >= 1000
    pool.check_integrity()


def test_no_room_no_page() -> None:
    asked: list[int] = []

    def refuse(size: int) -> None:
        asked.append(size)
        raise CommitRefused("9.5 GiB would be left and 10.0 is the hard floor")

    pool = KVPool(HostPages(), MARGIN, refuse)
    fill(pool)
    expected = pool.slots[0].still_to_commit(1)
    with pytest.raises(CommitRefused, match="hard floor"):
        pool.slots[0].commit(1)
    assert asked[0] == expected
    assert asked[1:] == [sum(memory_behind(t.geometry, 1) for t in pool.slots[0]._tensors)]  # without the margin
    assert pool.committed == 0


def test_the_margin_waits_for_memory_and_the_rows_do_not() -> None:
    room: list[bool] = [True]

    def make_room(size: int) -> None:
        if not room[0]:
            raise CommitRefused("no")

    pool = KVPool(HostPages(), MARGIN, make_room)
    fill(pool)
    pool.slots[0].commit(1)
    held, taken = pool.slots[0].rows, pool.committed
    room[0] = False
    assert pool.slots[0].commit(held) == 0
    assert pool.committed == taken
    with pytest.raises(CommitRefused):
        pool.slots[0].commit(held + 1)
    room[0] = True
    assert pool.slots[0].commit(held + 1) > 0


def test_room_is_asked_for_only_when_pages_are_missing() -> None:
    asked: list[int] = []
    pool = KVPool(HostPages(), MARGIN, asked.append)
    fill(pool)
    for rows in range(1, 600):
        pool.slots[0].commit(rows)
    assert len(asked) == 4  # 341, 512 and 682 rows, and the first
    assert sum(asked) == pool.committed


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_a_failure_at_every_step_of_a_commit_leaks_nothing(device: str) -> None:
    """Each request to the kernel, each call of the driver, fails once; then the commit goes through."""
    world = Device(device)
    pool = KVPool(world.pages, MARGIN)
    tensors = fill(pool)
    pool.slots[0].commit(300)
    for tensor in tensors[0]:
        tensor[:300] = 2
    committed, steps = pool.committed, 0
    while True:
        world.fail_in(steps)
        try:
            pool.slots[0].commit(700)
        except CommitRefused:
            steps += 1
        else:
            break
        pool.check_integrity()
        assert pool.committed == committed == world.taken(tensors)
        assert all((tensor[:300] == 2).all() for tensor in tensors[0])
    world.fail_in(None)
    assert steps >= 5  # at least one a tensor
    assert pool.committed == world.taken(tensors)
    assert all(tensor[300:700].count_nonzero() == 0 for tensor in tensors[0])


class Device:
    """A page backend that can be told to fail, and the book kept on the other side of it."""

    def __init__(self, kind: str) -> None:
        self.pages: PageBackend
        if kind == "host":
            self._door: Any = FailingKernel()
            self.pages = HostPages(kernel=self._door)
        else:
            stream = FakeStream()
            self._door = FakeDriver(stream)
            self.pages = CudaPages(torch.device("cpu"), self._door, lambda: stream, spare_pages=3)

    def fail_in(self, calls: int | None) -> None:
        self._door.fails_in = calls

    def taken(self, tensors: list[list[Tensor]]) -> int:
        """Bytes behind rows, as the kernel or the driver counts them."""
        if isinstance(self._door, FailingKernel):
            return sum(resident_bytes(tensor) for own in tensors for tensor in own)
        assert len(self._door.live) * PAGE == len(self._door.mapped) * PAGE + self.pages.spare
        assert self._door.open == set(self._door.mapped)
        return len(self._door.mapped) * PAGE


class Lives(RuleBasedStateMachine):
    """Slots that are written, copied, kept, refused and forgotten, beside ordinary tensors that do the same."""

    device = "host"
    slots = st.integers(0, 1)
    rows = st.integers(0, WINDOW)

    def __init__(self) -> None:
        super().__init__()
        self.world = Device(self.device)
        self.has_room = True
        self.pool = KVPool(self.world.pages, MARGIN, self.make_room)
        self.tensors = [self.own(self.pool.slot()) for _ in range(2)]
        self.plain = [[torch.zeros_like(tensor) for tensor in own] for own in self.tensors]
        self.written = [0, 0]
        self.value = 0

    def own(self, rows: SlotRows) -> list[Tensor]:
        """Rows first; heads outside rows; and planes that begin within a page."""
        return [
            rows.allocate(SHAPE, torch.bfloat16),
            rows.allocate((2, 1, 3, WINDOW, 32), torch.float16, row_axis=3).movedim(3, 0),
            rows.allocate((4, WINDOW, 25), torch.int16, row_axis=1, kind="drafter").movedim(1, 0),
        ]

    def make_room(self, size: int) -> None:
        assert size > 0
        if not self.has_room:
            raise CommitRefused("no room")

    def commit(self, slot: int, rows: int) -> bool:
        """Whether it went through; if so, every row that had no memory before is zero."""
        expected = self.pool.slots[slot].still_to_commit(rows)
        before, committed = self.pool.slots[slot].rows, self.pool.committed
        try:
            assert self.pool.slots[slot].commit(rows) == (expected if self.has_room else 0)
        except CommitRefused:
            assert (self.pool.slots[slot].rows, self.pool.committed) == (before, committed)
            return False
        after = self.pool.slots[slot].rows
        assert after >= min(rows + MARGIN * self.has_room, WINDOW)
        fresh = before + max(PAGES_OF_ROWS)  # rows of the page in which `before` ends may be old
        assert all(tensor[fresh:after].count_nonzero() == 0 for tensor in self.tensors[slot])
        return True

    @rule(slot=slots, rows=rows)
    def write(self, slot: int, rows: int) -> None:
        """A pass: the rows after what is written, up to `rows`."""
        if not self.commit(slot, rows):
            return
        self.value = self.value % 100 + 1
        start = min(self.written[slot], rows)
        for tensor, plain in zip(self.tensors[slot], self.plain[slot], strict=True):
            tensor[start:rows] = self.value
            plain[start:rows] = self.value
        self.written[slot] = rows

    @rule(rows=rows, source=slots)
    def copy(self, rows: int, source: int) -> None:
        """A carry: rows of one slot into the other."""
        rows = min(rows, self.written[source])
        if not self.commit(1 - source, rows):
            return
        for own in (self.tensors, self.plain):
            for origin, target in zip(own[source], own[1 - source], strict=True):
                target[:rows] = origin[:rows]
        self.written[1 - source] = max(rows, self.written[1 - source])

    @rule(slot=slots, keep=rows)
    def give_back(self, slot: int, keep: int) -> None:
        keep = min(keep, self.written[slot])
        before = self.pool.committed
        assert self.pool.slots[slot].give_back(keep) == before - self.pool.committed
        assert self.pool.slots[slot].rows <= keep + max(PAGES_OF_ROWS)
        self.written[slot] = keep

    @rule(slot=slots, rows=rows)
    def refuse(self, slot: int, rows: int) -> None:
        expected = self.pool.slots[slot].still_to_commit(rows)
        self.has_room = False
        held = self.pool.slots[slot].rows
        assert self.commit(slot, rows) >= (expected == 0 or rows <= held)
        self.has_room = True

    @rule(slot=slots, rows=rows, step=st.integers(0, 30))
    def fail(self, slot: int, rows: int, step: int) -> None:
        self.world.fail_in(step)
        self.commit(slot, rows)
        self.world.fail_in(None)

    @rule()
    def trim(self) -> None:
        self.world.pages.trim()

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity()
        assert self.pool.committed == self.world.taken(self.tensors)
        assert self.pool.committed == sum(usage.committed for usage in self.pool.usage)

    @invariant()
    def written_rows_hold_their_values(self) -> None:
        for own, plain, rows in zip(self.tensors, self.plain, self.written, strict=True):
            for tensor, expected in zip(own, plain, strict=True):
                assert torch.equal(tensor[:rows], expected[:rows])


class CudaLives(Lives):
    device = "cuda"


_few = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
TestHostLives = Lives.TestCase
TestHostLives.settings = _few
TestCudaLives = CudaLives.TestCase
TestCudaLives.settings = _few
