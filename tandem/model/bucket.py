"""How many rows one product computes without their bits depending on each other: measured, because no library says.

Matrix libraries choose their kernel, and with it the order of a row's sum, by the number of rows. Two facts help.
Above a few rows the choice settles, so that short passes padded to `least_rows` rows use the kernel of longer ones;
and up to `row_bucket` rows every count agrees with the lone row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import torch
from torch import Tensor

from tandem.model.placement import HOST

RowFunction = Callable[[Tensor], Tensor]  # [rows, width] -> [rows, ...]

LARGEST: Final = 16
_SAMPLES: Final = 1 << 17  # numbers compared a function: bfloat16 hides all but one in some 10,000 differing sums
_MOST_DRAWS: Final = 16

_least: dict[tuple[torch.Size, torch.dtype, int, torch.device], int] = {}  # what this process has measured


def pad_rows(rows: Tensor, least: int) -> Tensor:
    """[rows, width] -> [at least `least`, width]; the rows added are zeros."""
    padded = rows.new_zeros(least, rows.shape[1])
    padded[: rows.shape[0]] = rows
    return padded


@torch.inference_mode()
def least_rows(function: RowFunction, weight: Tensor) -> int:
    """The smallest power of two such that `function`, a product with `weight` [out, in], gives each row the same bits
    at every count up to `LARGEST` when fewer rows are padded to it; 1 when padding does not help.

    Measured once a shape, dtype and number of threads.
    """
    key = (weight.shape, weight.dtype, torch.get_num_threads(), weight.device)
    if key not in _least:
        _least[key] = _measure_least_rows(function, weight.shape[1], weight.dtype, weight.device)
    return _least[key]


def _measure_least_rows(function: RowFunction, width: int, dtype: torch.dtype, device: torch.device) -> int:
    least = 1
    while least <= LARGEST:

        def padded(rows: Tensor, least: int = least) -> Tensor:
            count = rows.shape[0]
            return function(pad_rows(rows, least))[:count] if count < least else function(rows)

        if _bucket(padded, width, dtype, device) == LARGEST:
            return least
        least *= 2
    return 1


@torch.inference_mode()
def measure_row_bucket(
    functions: Iterable[tuple[RowFunction, int]], dtype: torch.dtype, device: torch.device = HOST.device
) -> int:
    """The largest power of two up to `LARGEST` such that every function, given any number of rows up to it, gives
    each row the bits it gives the row alone; 1 when none is larger. `functions` come with their row width.
    """
    bucket = LARGEST
    for function, width in functions:
        bucket = min(bucket, _bucket(function, width, dtype, device))
        if bucket == 1:
            break
    return bucket


def _bucket(function: RowFunction, width: int, dtype: torch.dtype, device: torch.device) -> int:
    bucket = LARGEST
    for rows in _draws(function, width, dtype, device):
        bucket = min(bucket, _holds_up_to(function, rows))
        if bucket == 1:
            break
    return bucket


def _draws(function: RowFunction, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Tensor]:
    """Random rows, until enough numbers were compared."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(LARGEST, width, generator=generator).to(device, dtype)
    outputs = function(rows).numel()
    yield rows
    for _ in range(min(_SAMPLES // outputs, _MOST_DRAWS - 1)):
        yield torch.randn(LARGEST, width, generator=generator).to(device, dtype)


def _holds_up_to(function: RowFunction, rows: Tensor) -> int:
    """The largest power of two, at most the number of `rows`, up to which every count agrees with lone rows."""
    # Clones: aligned as the tensors of a pass are.
    alone = torch.cat([function(row.clone()) for row in torch.split(rows, 1)])
    for count in range(2, rows.shape[0] + 1):
        if not torch.equal(function(rows[:count].clone()), alone[:count]):
            return 1 << ((count - 1).bit_length() - 1)
    return rows.shape[0]
