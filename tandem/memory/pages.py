"""Addresses and the memory behind them, kept apart: reserve many, commit the pages that are written, give them back.

A tensor over such addresses has the shape, dtype and strides of an ordinary one, so whatever computes on it needs
no change; only the memory behind its rows comes and goes. This file holds what every device shares: which pages
have memory (the book the planner reads), all-or-nothing commits, tensors. `host_pages` and `cuda_pages` know how
their device gives memory to an address.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tandem.errors import TandemError
from tandem.memory.dlpack import bytes_at


class CommitRefused(TandemError):
    """There is no memory for these pages. Nothing was taken; what asked must end or wait."""


class AddressRange(ABC):
    """Reserved addresses in pages. Not thread-safe: one thread commits and gives back.

    The addresses stay reserved as long as this object or any tensor over them lives.
    """

    def __init__(self, base: int, num_pages: int, page: int, device: torch.device) -> None:
        self.page = page  # bytes
        self.device = device
        self._base = base
        self._held = bytearray(num_pages)  # 1: has memory

    @property
    def size(self) -> int:
        """Bytes of addresses."""
        return len(self._held) * self.page

    @property
    def committed(self) -> int:
        """Bytes of memory behind them."""
        return self._held.count(1) * self.page

    def missing(self, start: int, stop: int) -> int:
        """Bytes that `commit(start, stop)` would take."""
        return sum(map(len, self._runs(self._touching(start, stop), held=False))) * self.page

    def commit(self, start: int, stop: int) -> int:
        """Put memory behind every page that bytes start..stop touch; returns how many bytes that took.

        New memory reads as zero. All or nothing: raises `CommitRefused` and leaves every page as it was.
        """
        runs = self._runs(self._touching(start, stop), held=False)
        if runs:
            self._back(runs)
        return self._mark(runs, held=True)

    def give_back(self, start: int, stop: int) -> int:
        """Return the memory of every page that lies wholly in start..stop; returns how many bytes that freed."""
        runs = self._runs(self._inside(start, stop), held=True)
        if runs:
            self._drop(runs)
        return self._mark(runs, held=False)

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The first bytes of the range as a contiguous tensor. Only committed rows may be touched."""
        num_bytes = math.prod(shape) * dtype.itemsize
        assert num_bytes <= self.size, f"{num_bytes} bytes do not fit into {self.size}"
        return bytes_at(self._base, num_bytes, self.device, owner=self).view(dtype).view(*shape)

    @abstractmethod
    def _back(self, runs: list[range]) -> None:
        """Give zeroed memory to these pages, which have none. Raises `CommitRefused` with nothing taken."""

    @abstractmethod
    def _drop(self, runs: list[range]) -> None:
        """Take the memory of these pages away, when the device has finished with them."""

    # --- pages ---

    def _touching(self, start: int, stop: int) -> range:
        assert 0 <= start <= stop <= self.size, f"{start}..{stop} is not in 0..{self.size}"
        return range(start // self.page, -(-stop // self.page)) if start < stop else range(0)

    def _inside(self, start: int, stop: int) -> range:
        assert 0 <= start <= stop <= self.size, f"{start}..{stop} is not in 0..{self.size}"
        return range(-(-start // self.page), stop // self.page)

    def _runs(self, pages: range, held: bool) -> list[range]:
        """The longest runs of `pages` that have memory, or that have none: each is one request to the device."""
        runs: list[range] = []
        at = pages.start
        while (first := self._held.find(held, at, pages.stop)) >= 0:
            end = self._held.find(not held, first, pages.stop)
            at = end if end >= 0 else pages.stop
            runs.append(range(first, at))
        return runs

    def _mark(self, runs: list[range], held: bool) -> int:
        for run in runs:
            self._held[run.start : run.stop] = bytes([held]) * len(run)
        return sum(map(len, runs)) * self.page


class PageBackend(Protocol):
    """Where a device's addresses come from."""

    def reserve(self, size: int, row_bytes: int) -> AddressRange:
        """At least `size` bytes of addresses with no memory behind them, in pages that suit rows of `row_bytes`."""
        ...

    @property
    def spare(self) -> int:
        """Bytes of memory that lie behind no address and are kept to make the next commit cheap."""
        ...

    def trim(self) -> int:
        """Give the spare memory back to the system; returns how many bytes that freed."""
        ...
