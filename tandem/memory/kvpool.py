"""The KV pool: every slot's tensors have their full window as addresses, and memory for the rows that are written.

A slot's tensors grow and shrink together, from row 0: before a pass the rows it writes are committed, with a margin
so that most passes find them there, and at the end of a request the pages past what the slot keeps go back. Rows are
all the pool knows: neither requests nor what a row means. It belongs to one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tandem.memory.pages import AddressRange, CommitRefused, PageBackend


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kind of tensor takes on one slot, in bytes."""

    slot: int
    kind: str
    reserved: int  # addresses
    committed: int  # memory


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """One tensor: `rows` rows, of which a prefix has memory."""

    kind: str
    rows: int
    row_bytes: int
    addresses: AddressRange

    @property
    def committed_rows(self) -> int:
        return min(self.rows, self.addresses.committed // self.row_bytes)

    def bytes_below(self, row: int) -> int:
        return min(row, self.rows) * self.row_bytes


@dataclass(slots=True)
class _Slot:
    tensors: list[_Rows] = field(default_factory=list)
    window: int = 0  # rows of the longest tensor
    rows: int = 0  # every tensor has memory for this many

    def recount(self) -> None:
        """A tensor that is committed to its end holds no other back."""
        short = (tensor.committed_rows for tensor in self.tensors if tensor.committed_rows < tensor.rows)
        self.window = max(tensor.rows for tensor in self.tensors)
        self.rows = min(short, default=self.window)


class KVPool:
    def __init__(self, pages: PageBackend, margin_rows: int, make_room: Callable[[int], None] = lambda size: None):
        """`make_room` is called with the bytes a commit is about to take: it sees to it that they may be taken, or
        raises `CommitRefused`, and then nothing is."""
        self._pages = pages
        self._margin = margin_rows
        self._make_room = make_room
        self._slots: dict[int, _Slot] = {}

    def allocate(self, slot: int, kind: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor [rows, ...] for `slot`, like `torch.empty` but with memory for no row; `kind` is for accounting.

        It is the caller's, for as long as it likes. Raises `CommitRefused` when there are no addresses left.
        """
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        addresses = self._pages.reserve(shape[0] * row_bytes, row_bytes)
        held = self._slots.setdefault(slot, _Slot())
        held.tensors.append(_Rows(kind, shape[0], row_bytes, addresses))
        held.recount()
        return addresses.tensor(shape, dtype)

    def commit(self, slot: int, rows: int) -> int:
        """See that the first `rows` rows of `slot`, and the margin after them, have memory; returns the bytes taken.

        Call it before a pass or a copy writes them. Rows that had no memory are zero. All or nothing: raises
        `CommitRefused`, after which the slot is as it was.
        """
        held = self._slots[slot]
        assert rows <= held.window, f"slot {slot} has a window of {held.window} rows, not {rows}"
        target = min(rows + self._margin, held.window)
        if target <= held.rows:
            return 0
        self._make_room(sum(tensor.addresses.missing(0, tensor.bytes_below(target)) for tensor in held.tensors))
        taken = _commit_all(held.tensors, target)
        held.recount()
        return taken

    def give_back(self, slot: int, keep_rows: int) -> int:
        """Keep the first `keep_rows` rows of `slot`, return the pages past them; returns the bytes freed."""
        held = self._slots[slot]
        freed = sum(
            tensor.addresses.give_back(tensor.bytes_below(keep_rows), tensor.addresses.size) for tensor in held.tensors
        )
        held.recount()
        return freed

    def still_to_commit(self, slot: int, rows: int) -> int:
        """Bytes that committing `rows` rows, and the margin, would take: what admission reserves for a request."""
        held = self._slots[slot]
        target = min(rows + self._margin, held.window)
        return sum(tensor.addresses.missing(0, tensor.bytes_below(target)) for tensor in held.tensors)

    def committed_rows(self, slot: int) -> int:
        """Rows of `slot` that have memory in every tensor."""
        return self._slots[slot].rows

    # --- accounting ---

    @property
    def committed(self) -> int:
        """Bytes of memory behind rows. Spare memory of the backend is not among them."""
        return sum(usage.committed for usage in self.usage())

    @property
    def reserved(self) -> int:
        """Bytes of addresses."""
        return sum(usage.reserved for usage in self.usage())

    def usage(self) -> tuple[Usage, ...]:
        """By slot and kind, in the order they were allocated."""
        sums: dict[tuple[int, str], tuple[int, int]] = {}
        for slot, held in self._slots.items():
            for tensor in held.tensors:
                reserved, committed = sums.get((slot, tensor.kind), (0, 0))
                addresses = tensor.addresses
                sums[slot, tensor.kind] = (reserved + addresses.size, committed + addresses.committed)
        return tuple(Usage(slot, kind, *sizes) for (slot, kind), sizes in sums.items())

    def check_integrity(self) -> None:
        for slot, held in self._slots.items():
            for tensor in held.tensors:
                committed = tensor.addresses.committed
                assert tensor.addresses.missing(0, committed) == 0, f"slot {slot}: {tensor.kind} is not a prefix"
                assert tensor.bytes_below(held.rows) <= committed, f"slot {slot}: {tensor.kind} lacks rows"


def _commit_all(tensors: list[_Rows], rows: int) -> int:
    """Commit the first `rows` rows of all tensors, or of none."""
    before = [tensor.addresses.committed for tensor in tensors]
    try:
        return sum(tensor.addresses.commit(0, tensor.bytes_below(rows)) for tensor in tensors)
    except CommitRefused:
        for tensor, committed in zip(tensors, before, strict=True):
            tensor.addresses.give_back(committed, tensor.addresses.size)
        raise
