"""The KV pool: every slot's tensors have their full window as addresses, and memory for the rows that are written.

A slot's tensors grow and shrink together, from row 0: before a pass the rows it writes are committed, with a margin
so that most passes find them there, and at the end of a request the pages past what the slot keeps go back. Rows are
all the pool knows: neither requests nor what a row means. It belongs to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import torch
from torch import Tensor

from tandem.contract.messages import KvUsage
from tandem.memory.pages import AddressRange, CommitRefused, PageBackend


@dataclass(frozen=True, slots=True)
class Geometry:
    """How rows lie in the pages of a contiguous tensor: `planes` times (one a head, say) all `rows` rows in a row."""

    planes: int
    rows: int
    row_bytes: int
    page: int  # bytes

    def spans(self, first: int, last: int) -> list[range]:
        """The bytes of rows first..last, in order; rows past the end are left out.

        The last row ends with its page: nothing else will ever lie there.
        """
        first, last = min(first, self.rows), min(last, self.rows)
        plane = self.rows * self.row_bytes
        starts = [0] if (first, last) == (0, self.rows) else range(0, self.planes * plane, plane)
        spans = [range(start + first * self.row_bytes, start + last * self.row_bytes) for start in starts]
        if last == self.rows:
            spans[-1] = range(spans[-1].start, -(-self.planes * plane // self.page) * self.page)
        return spans


@lru_cache(maxsize=4096)
def memory_behind(geometry: Geometry, rows: int) -> int:
    """Bytes of the pages that the first `rows` rows touch. Planes may share a page; it counts once."""
    pages = end = 0
    for span in geometry.spans(0, rows):
        first, last = max(end, span.start // geometry.page), -(-span.stop // geometry.page)
        if span and first < last:
            pages, end = pages + last - first, last
    return pages * geometry.page


@lru_cache(maxsize=4096)
def rows_behind(geometry: Geometry, rows: int) -> int:
    """How many rows have memory, at least, when the pages of the first `rows` rows do."""
    if rows >= geometry.rows:
        return geometry.rows
    stops = [(span.stop, -(-span.stop // geometry.page) * geometry.page) for span in geometry.spans(0, rows)]
    return min(geometry.rows, rows + min((end - stop) // geometry.row_bytes for stop, end in stops))


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """One tensor."""

    kind: str
    geometry: Geometry
    addresses: AddressRange


class SlotRows:
    """The tensors of one slot, whose rows have memory together. Made by `KVPool.slot`."""

    def __init__(self, index: int, pages: PageBackend, margin_rows: int, make_room: Callable[[int], None]) -> None:
        self.index = index
        self._pages = pages
        self._margin = margin_rows
        self._make_room = make_room
        self._tensors: list[_Rows] = []
        self._window = 0  # rows of the longest tensor
        self._asked = 0  # the pages of the first so many rows have memory, no others
        self.rows = 0  # so every tensor has memory for this many
        self.usage: tuple[KvUsage, ...] = ()  # by kind, in the order they were allocated

    def allocate(self, shape: Sequence[int], dtype: torch.dtype, row_axis: int = 0, kind: str = "attention") -> Tensor:
        """A tensor like `torch.empty(shape, dtype=dtype)`, but without memory for its rows.

        Entry r of `row_axis` is row r; `kind` is for accounting. The tensor is the caller's, for as long as it likes.
        Raises `CommitRefused` when there are no addresses left.
        """
        assert self._asked == 0, f"slot {self.index} is in use"
        row_bytes = math.prod(shape[row_axis + 1 :]) * dtype.itemsize
        addresses = self._pages.reserve(math.prod(shape) * dtype.itemsize, row_bytes)
        geometry = Geometry(math.prod(shape[:row_axis]), shape[row_axis], row_bytes, addresses.page)
        self._tensors.append(_Rows(kind, geometry, addresses))
        self._window = max(self._window, geometry.rows)
        self._hold(0)
        return addresses.tensor(shape, dtype)

    def commit(self, rows: int) -> int:
        """See that the first `rows` rows, and the margin after them, have memory; returns the bytes taken.

        Call it before a pass or a copy writes them. Rows that had no memory are zero. All or nothing: raises
        `CommitRefused`, after which the slot is as it was. Where there is no room the margin is left away before the
        rows are refused.
        """
        target = self._with_margin(rows)
        if target <= self.rows:
            return 0
        try:
            size = self._room_for(target)
        except CommitRefused:
            if rows <= self.rows:
                return 0
            target, size = rows, self._room_for(rows)
        with ExitStack() as undo:
            for tensor in self._tensors:
                taken = tensor.addresses.commit(tensor.geometry.spans(0, target))
                undo.callback(tensor.addresses.give_back, taken)
            undo.pop_all()
        self._hold(target)
        return size

    def give_back(self, keep_rows: int) -> int:
        """Keep the first `keep_rows` rows, return the pages past them; returns the bytes freed."""
        if keep_rows >= self._asked:
            return 0
        before = self.committed
        for tensor in self._tensors:
            tensor.addresses.give_back(tensor.geometry.spans(keep_rows, tensor.geometry.rows))
        self._hold(keep_rows)
        return before - self.committed

    def still_to_commit(self, rows: int) -> int:
        """Bytes that committing `rows` rows, and the margin, would take: what admission reserves for a request."""
        return max(0, self._memory_for(self._with_margin(rows)) - self.committed)

    @property
    def committed(self) -> int:
        """Bytes of memory behind the rows."""
        return sum(tensor.addresses.committed for tensor in self._tensors)

    def check_integrity(self) -> None:
        assert self._asked <= self.rows <= self._window, f"rows of slot {self.index}"
        assert sum(usage.committed for usage in self.usage) == self.committed, f"usage of slot {self.index}"
        for tensor in self._tensors:
            tensor.addresses.check_integrity()
            expected = memory_behind(tensor.geometry, self._asked)
            assert tensor.addresses.committed == expected, f"slot {self.index}: {tensor.kind} rows and pages"

    def _room_for(self, rows: int) -> int:
        """The bytes that the first `rows` rows lack, which may be taken now."""
        size = self._memory_for(rows) - self.committed
        if size:  # a page of another plane may have had these rows already
            self._make_room(size)
        return size

    def _with_margin(self, rows: int) -> int:
        assert 0 <= rows <= self._window, f"{rows} rows in a window of {self._window}"
        return min(rows + self._margin, self._window)

    def _memory_for(self, rows: int) -> int:
        return sum(memory_behind(tensor.geometry, rows) for tensor in self._tensors)

    def _hold(self, rows: int) -> None:
        """The pages of the first `rows` rows have memory now."""
        self._asked = rows
        short = (rows_behind(each.geometry, rows) for each in self._tensors if each.geometry.rows > rows)
        self.rows = min(short, default=self._window)
        self.usage = tuple(map(self._sum_up, dict.fromkeys(tensor.kind for tensor in self._tensors)))

    def _sum_up(self, kind: str) -> KvUsage:
        ranges = [tensor.addresses for tensor in self._tensors if tensor.kind == kind]
        return KvUsage(self.index, kind, sum(each.size for each in ranges), sum(each.committed for each in ranges))


class KVPool:
    def __init__(self, pages: PageBackend, margin_rows: int, make_room: Callable[[int], None] = lambda size: None):
        """`make_room` is called with the bytes a commit is about to take: it sees to it that they may be taken, or
        raises `CommitRefused`, and then nothing is."""
        self._pages = pages
        self._margin = margin_rows
        self._make_room = make_room
        self.slots: list[SlotRows] = []

    def slot(self) -> SlotRows:
        """The next slot, without tensors yet."""
        self.slots.append(SlotRows(len(self.slots), self._pages, self._margin, self._make_room))
        return self.slots[-1]

    @property
    def committed(self) -> int:
        """Bytes of memory behind rows."""
        return sum(usage.committed for usage in self.usage)

    @property
    def reserved(self) -> int:
        """Bytes of addresses."""
        return sum(usage.reserved for usage in self.usage)

    @property
    def spare(self) -> int:
        """Bytes the backend keeps for the next commit, behind no row."""
        return self._pages.spare

    @property
    def usage(self) -> tuple[KvUsage, ...]:
        """By slot and kind."""
        return tuple(chain.from_iterable(slot.usage for slot in self.slots))

    def check_integrity(self) -> None:
        for slot in self.slots:
            slot.check_integrity()
