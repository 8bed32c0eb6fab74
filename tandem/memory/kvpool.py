"""The KV pool: every slot's tensors have their full window as addresses, and memory for the rows that are written.

A slot's tensors grow and shrink together, from row 0: before a pass the rows it writes are committed, with a margin
so that most passes find them there, and at the end of a request the pages past what the slot keeps go back. Rows are
all the pool knows: neither requests nor what a row means. It belongs to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from tandem.memory.pages import AddressRange, PageBackend


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kind of tensor takes on one slot, in bytes."""

    slot: int
    kind: str
    reserved: int  # addresses
    committed: int  # memory


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
    """How many rows have memory when the pages of the first `rows` rows do."""
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


@dataclass(slots=True)
class _Slot:
    tensors: list[_Rows] = field(default_factory=list)
    window: int = 0  # rows of the longest tensor
    asked: int = 0  # the pages of the first `asked` rows have memory, no others
    rows: int = 0  # so every tensor has memory for this many

    def hold(self, rows: int) -> None:
        self.asked = rows
        short = (rows_behind(t.geometry, rows) for t in self.tensors if t.geometry.rows > rows)
        self.rows = min(short, default=self.window)

    @property
    def committed(self) -> int:
        return sum(tensor.addresses.committed for tensor in self.tensors)

    def memory_for(self, rows: int) -> int:
        return sum(memory_behind(tensor.geometry, rows) for tensor in self.tensors)


class KVPool:
    def __init__(self, pages: PageBackend, margin_rows: int, make_room: Callable[[int], None] = lambda size: None):
        """`make_room` is called with the bytes a commit is about to take: it sees to it that they may be taken, or
        raises `CommitRefused`, and then nothing is."""
        self._pages = pages
        self._margin = margin_rows
        self._make_room = make_room
        self._slots: dict[int, _Slot] = {}
        self._usage: tuple[Usage, ...] | None = None  # as of the last change

    def allocate(self, slot: int, kind: str, shape: Sequence[int], dtype: torch.dtype, row_axis: int = 0) -> Tensor:
        """A tensor for `slot` like `torch.empty(shape, dtype=dtype)`, but without memory for its rows.

        Entry r of `row_axis` is row r; `kind` is for accounting. The tensor is the caller's, for as long as it likes.
        Raises `CommitRefused` when there are no addresses left.
        """
        row_bytes = math.prod(shape[row_axis + 1 :]) * dtype.itemsize
        addresses = self._pages.reserve(math.prod(shape) * dtype.itemsize, row_bytes)
        geometry = Geometry(math.prod(shape[:row_axis]), shape[row_axis], row_bytes, addresses.page)
        held = self._slots.setdefault(slot, _Slot())
        assert held.asked == 0, f"slot {slot} is in use"
        held.tensors.append(_Rows(kind, geometry, addresses))
        held.window = max(held.window, geometry.rows)
        self._usage = None
        return addresses.tensor(shape, dtype)

    def commit(self, slot: int, rows: int) -> int:
        """See that the first `rows` rows of `slot`, and the margin after them, have memory; returns the bytes taken.

        Call it before a pass or a copy writes them. Rows that had no memory are zero. All or nothing: raises
        `CommitRefused`, after which the slot is as it was.
        """
        held = self._slots[slot]
        target = self._with_margin(held, rows)
        if target <= held.rows:
            return 0
        size = held.memory_for(target) - held.committed
        self._make_room(size)
        _commit_all(held.tensors, target)
        held.hold(target)
        self._usage = None
        return size

    def give_back(self, slot: int, keep_rows: int) -> int:
        """Keep the first `keep_rows` rows of `slot`, return the pages past them; returns the bytes freed."""
        held = self._slots[slot]
        if keep_rows >= held.asked:
            return 0
        before = held.committed
        for tensor in held.tensors:
            tensor.addresses.give_back(tensor.geometry.spans(keep_rows, tensor.geometry.rows))
        held.hold(keep_rows)
        self._usage = None
        return before - held.committed

    def still_to_commit(self, slot: int, rows: int) -> int:
        """Bytes that committing `rows` rows, and the margin, would take: what admission reserves for a request."""
        held = self._slots[slot]
        return max(0, held.memory_for(self._with_margin(held, rows)) - held.committed)

    def committed_rows(self, slot: int) -> int:
        """Rows of `slot` that have memory in every tensor."""
        return self._slots[slot].rows

    def _with_margin(self, held: _Slot, rows: int) -> int:
        assert 0 <= rows <= held.window, f"{rows} rows in a window of {held.window}"
        return min(rows + self._margin, held.window)

    # --- accounting ---

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
    def usage(self) -> tuple[Usage, ...]:
        """By slot and kind, in the order they were allocated."""
        if self._usage is None:
            self._usage = tuple(_sum_up(self._slots.items()))
        return self._usage

    def check_integrity(self) -> None:
        for slot, held in self._slots.items():
            assert held.asked <= held.rows <= held.window, f"rows of slot {slot}"
            for tensor in held.tensors:
                tensor.addresses.check_integrity()
                expected = memory_behind(tensor.geometry, held.asked)
                assert tensor.addresses.committed == expected, f"slot {slot}: {tensor.kind} rows and pages"
        assert self.committed == sum(held.committed for held in self._slots.values()), "usage is up to date"


def _commit_all(tensors: Iterable[_Rows], rows: int) -> None:
    """Commit the first `rows` rows of all tensors, or of none."""
    with ExitStack() as undo:
        for tensor in tensors:
            taken = tensor.addresses.commit(tensor.geometry.spans(0, rows))
            undo.callback(tensor.addresses.give_back, taken)
        undo.pop_all()


def _sum_up(slots: Iterable[tuple[int, _Slot]]) -> Iterable[Usage]:
    for slot, held in slots:
        for kind in dict.fromkeys(tensor.kind for tensor in held.tensors):
            ranges = [tensor.addresses for tensor in held.tensors if tensor.kind == kind]
            yield Usage(slot, kind, sum(each.size for each in ranges), sum(each.committed for each in ranges))
