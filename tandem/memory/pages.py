"""Addresses and the memory behind them, kept apart: reserve many, commit the pages that are written, give them back.

A tensor over such addresses has the shape, dtype and strides of an ordinary one, so whatever computes on it needs
no change; only the memory behind its rows comes and goes. This file holds what every device shares: which pages
have memory (the book the planner reads), all-or-nothing commits, tensors. `host_pages` and `cuda_pages` know how
their device gives memory to an address.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
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
        self._num_held = 0

    @property
    def size(self) -> int:
        """Bytes of addresses."""
        return len(self._held) * self.page

    @property
    def committed(self) -> int:
        """Bytes of memory behind them."""
        return self._num_held * self.page

    def commit(self, spans: Sequence[range]) -> list[range]:
        """Put memory behind every page that these byte ranges touch; returns the byte ranges that got some.

        New memory reads as zero. All or nothing: raises `CommitRefused` and leaves every page as it was.
        """
        runs = self._runs(map(self._touching, spans), held=False)
        if runs:
            self._back(runs)
        return self._mark(runs, held=True)

    def give_back(self, spans: Sequence[range]) -> list[range]:
        """Return the memory of every page that lies wholly in one of these byte ranges; returns what that freed."""
        runs = self._runs(map(self._inside, spans), held=True)
        if runs:
            self._drop(runs)
        return self._mark(runs, held=False)

    def check_integrity(self) -> None:
        assert self._held.count(1) == self._num_held, "the count of pages with memory is their number"

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

    def _touching(self, span: range) -> range:
        return range(span.start // self.page, -(-span.stop // self.page)) if span else range(0)

    def _inside(self, span: range) -> range:
        return range(-(-span.start // self.page), span.stop // self.page)

    def _runs(self, pages: Iterable[range], held: bool) -> list[range]:
        """The longest runs among `pages` that have memory, or that have none: each is one request to the device.

        Ranges come in order; neighbours may share a page, which is then in one run only.
        """
        runs: list[range] = []
        done = 0
        for few in pages:
            assert few.start >= 0 and few.stop <= len(self._held), "a span outside the addresses"
            at = max(done, few.start)
            while (first := self._held.find(held, at, few.stop)) >= 0:
                end = self._held.find(not held, first, few.stop)
                at = end if end >= 0 else few.stop
                runs.append(range(first, at))
            done = max(done, few.stop)
        return runs

    def _mark(self, runs: list[range], held: bool) -> list[range]:
        for run in runs:
            self._held[run.start : run.stop] = bytes([held]) * len(run)
            self._num_held += len(run) if held else -len(run)
        return [range(run.start * self.page, run.stop * self.page) for run in runs]


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
