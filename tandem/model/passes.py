"""How blocks share runs of the weights, and how many rows may share one without touching each other's bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from tandem.model.interface import Block

LARGEST_BUCKET: Final = 16
_DRAWS: Final = 2  # independent sets of random rows a product is tried on


def passes(blocks: Sequence[Block], row_bucket: int) -> Iterator[Sequence[Block]]:
    """Cut the blocks of one call, in order, into runs of the weights.

    Blocks share a run while their rows fit `row_bucket`; a longer block runs alone. No block is ever split.
    """
    shared: list[Block] = []
    rows = 0
    for block in blocks:
        if shared and rows + block.rows > row_bucket:
            yield shared
            shared, rows = [], 0
        shared.append(block)
        rows += block.rows
    if shared:
        yield shared


RowFunction = Callable[[Tensor], Tensor]  # [rows, width] -> [rows, ...]


def measure_row_bucket(functions: Iterable[tuple[RowFunction, int]], dtype: torch.dtype) -> int:
    """The largest power of two up to `LARGEST_BUCKET` such that every function, given any number of rows up to it,
    gives each row the bits it gives the row alone. `functions` come with their row width; 1 when none is larger.
    """
    generator = torch.Generator().manual_seed(0)
    bucket = LARGEST_BUCKET
    for function, width in functions:
        for _ in range(_DRAWS):
            rows = torch.randn(bucket, width, generator=generator).to(dtype)
            bucket = _holds_up_to(function, rows)
            if bucket == 1:
                return 1
    return bucket


def _holds_up_to(function: RowFunction, rows: Tensor) -> int:
    """The largest power of two, at most the number of `rows`, up to which every count agrees with lone rows."""
    alone = torch.cat([function(rows[index : index + 1].clone()) for index in range(rows.shape[0])])
    for count in range(2, rows.shape[0] + 1):
        if not torch.equal(function(rows[:count].clone()), alone[:count]):
            return 1 << ((count - 1).bit_length() - 1)
    return rows.shape[0]
