"""How many rows one product computes without their bits depending on each other: measured, because no library says.

Matrix libraries choose their kernel, and with it the order of a row's sum, by the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import torch
from torch import Tensor

RowFunction = Callable[[Tensor], Tensor]  # [rows, width] -> [rows, ...]

LARGEST: Final = 16
_DRAWS: Final = 2  # independent sets of random rows each function is tried on


@torch.inference_mode()
def measure_row_bucket(functions: Iterable[tuple[RowFunction, int]], dtype: torch.dtype) -> int:
    """The largest power of two up to `LARGEST` such that every function, given any number of rows up to it, gives
    each row the bits it gives the row alone; 1 when none is larger. `functions` come with their row width.
    """
    generator = torch.Generator().manual_seed(0)
    bucket = LARGEST
    for function, width in functions:
        for _ in range(_DRAWS):
            bucket = _holds_up_to(function, torch.randn(bucket, width, generator=generator).to(dtype))
            if bucket == 1:
                return 1
    return bucket


def _holds_up_to(function: RowFunction, rows: Tensor) -> int:
    """The largest power of two, at most the number of `rows`, up to which every count agrees with lone rows."""
    alone = torch.cat([function(row.clone()) for row in rows.split(1)])  # clones: aligned as a pass's tensors are
    for count in range(2, rows.shape[0] + 1):
        if not torch.equal(function(rows[:count].clone()), alone[:count]):
            return 1 << ((count - 1).bit_length() - 1)
    return rows.shape[0]
