"""Rows and fixed tensors as they lie outside a state: on the host, in one stretch of memory of their own.

A copy knows neither tokens nor whose it is. Its memory is mapped for it alone, so that dropping it gives every page
back at once, and its bytes are what a file holds. Each tensor keeps the order its numbers have in memory (heads
outside rows): copying is a few long runs a head, not one short run a row.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

_ALIGNED: Final = 64  # bytes; where a tensor begins in a copy, so that it can be viewed as any type


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """Rows `first` to `first + rows` of a state. Its bits are never changed, so any thread may read them."""

    first: int
    rows: int
    data: Tensor  # uint8 [bytes], on the host

    @property
    def end(self) -> int:
        return self.first + self.rows

    @property
    def bytes(self) -> int:
        return self.data.nbytes


def host_memory(size: int) -> Tensor:
    """uint8 [size], zero, in pages of its own that go back when the tensor does. Raises `OSError` without memory."""
    pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared ones count as no one's
    return torch.frombuffer(pages, dtype=torch.uint8)[:size]


def rows_size(tensors: Sequence[Tensor], rows: int) -> int:
    """Bytes of a copy of `rows` rows of `tensors` [window, ...]."""
    return sum(_aligned(rows * _row_bytes(tensor)) for tensor in tensors)


def save_rows(tensors: Sequence[Tensor], first: int, last: int) -> Saved:
    """A copy of rows `first` to `last`, which must have been written."""
    saved = Saved(first, last - first, host_memory(rows_size(tensors, last - first)))
    for mine, theirs in _pairs(saved, tensors, saved.rows):
        mine.copy_(theirs)
    return saved


def load_rows(saved: Saved, tensors: Sequence[Tensor], rows: int) -> None:
    """Put the first `rows` rows of a copy back to where they were, which must have memory."""
    for mine, theirs in _pairs(saved, tensors, rows):
        theirs.copy_(mine)


def fixed_size(tensors: Sequence[Tensor]) -> int:
    """Bytes of a copy of whole tensors."""
    return sum(_aligned(tensor.nbytes) for tensor in tensors)


def pack(tensors: Sequence[Tensor]) -> Tensor:
    """uint8 [bytes] on the host: whole tensors, one behind the other."""
    data = host_memory(fixed_size(tensors))
    for mine, theirs in zip(_split(data, tensors), tensors, strict=True):
        mine.copy_(theirs)
    return data


def unpack(data: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What `pack` was given, as views of `data`; `like` has the shapes and types."""
    assert data.nbytes == fixed_size(like), "packed tensors of another shape"
    return tuple(_split(data, like))


def describe(rows: Sequence[Tensor], fixed: Sequence[Tensor]) -> str:
    """How copies of such a state lie: equal words, exchangeable copies. Windows may differ."""
    by_row = (f"{tensor.dtype}{list(tensor.shape[1:])}{_order(tensor)}" for tensor in rows)
    whole = (f"{tensor.dtype}{list(tensor.shape)}" for tensor in fixed)
    return f"rows {' '.join(by_row)} fixed {' '.join(whole)}"


def _pairs(saved: Saved, tensors: Sequence[Tensor], rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The first `rows` rows of each tensor in the copy and in the state, in the order of memory."""
    assert saved.bytes == rows_size(tensors, saved.rows) and 0 <= rows <= saved.rows, "rows of another state"
    at = 0
    for tensor in tensors:
        order = _order(tensor)
        there = tensor[saved.first : saved.first + rows].permute(order)
        shape = [saved.rows if axis == 0 else tensor.shape[axis] for axis in order]
        size = saved.rows * _row_bytes(tensor)
        here = saved.data[at : at + size].view(tensor.dtype).view(shape).narrow(order.index(0), 0, rows)
        yield here, there
        at += _aligned(size)


def _split(data: Tensor, like: Sequence[Tensor]) -> Iterator[Tensor]:
    at = 0
    for tensor in like:
        yield data[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        at += _aligned(tensor.nbytes)


def _order(tensor: Tensor) -> list[int]:
    """Its axes, outermost in memory first."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda axis: -strides[axis])


def _row_bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape[1:]) * tensor.dtype.itemsize


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
