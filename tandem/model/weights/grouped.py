"""The block formats of GGUF whose weights are whole numbers with a scale and a minimum for every 32 of them.

Knows bytes, not files. Other formats (a scale for every 16, as Q6_K has, or weights that are floats) are not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import Tensor  # headers are read without torch

BITS: Final = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q5_0": 5, "Q5_1": 5, "Q5_K": 5, "Q8_0": 8}
"""Of a number, by the format's name."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """A matrix as its file keeps it: `weight = scale * number + minimum`, groups of 32 along the inputs.

    Scales and minimums are IEEE halves; in Q4_K and Q5_K each is the product of one and a number of six bits.
    """

    numbers: Tensor  # uint8 [out, in], below 2 ** bits
    scale: Tensor  # float32 [out, in / 32]
    minimum: Tensor  # float32 [out, in / 32]
    bits: int  # 4, 5 or 8


def unpack(kind: str, stored: Tensor) -> Grouped:
    """uint8 [out, blocks, bytes of one] in the format `kind`, a key of `BITS`."""
    unpack_blocks = _blocks_of_256 if kind.endswith("_K") else _blocks_of_32
    numbers, scale, minimum = unpack_blocks(kind, stored)
    numbers, scale, minimum = (each.reshape(stored.shape[0], -1) for each in (numbers, scale, minimum))
    return Grouped(numbers, scale, minimum, BITS[kind])


def _blocks_of_32(kind: str, stored: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scale, minimum where the format has one, fifth bits, numbers."""
    import torch

    bits, has_minimum = BITS[kind], kind.endswith("_1")
    factors, numbers = _halves(stored, 2 if has_minimum else 1)
    scale = factors[..., :1]
    minimum = factors[..., 1:] if has_minimum else scale * -(2.0 ** (bits - 1))  # the others' are around zero
    if bits == 8:
        return numbers ^ 128, scale, minimum  # signed bytes
    low = torch.cat((numbers[..., -16:] & 15, numbers[..., -16:] >> 4), dim=-1)
    if bits == 5:  # a bit for each number, in its order
        low += (numbers[..., :4, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(-2) << 4
    return low, scale, minimum


def _blocks_of_256(kind: str, stored: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two factors; a scale and a minimum of six bits for each run of 32, in 12 bytes; fifth bits where the format has
    them; numbers, those of two runs in one byte."""
    import torch

    factors, rest = _halves(stored, 2)
    low, middle, high = rest[..., :4], rest[..., 4:8], rest[..., 8:12]
    scales = torch.cat((low & 63, high & 15 | low >> 6 << 4), dim=-1)
    minimums = torch.cat((middle & 63, high >> 4 | middle >> 6 << 4), dim=-1)
    pairs = rest[..., -128:].reshape(*stored.shape[:2], 4, 32)
    numbers = torch.stack((pairs & 15, pairs >> 4), dim=-2).flatten(-3, -2)  # [out, blocks, runs, 32]
    if BITS[kind] == 5:  # byte i has the bits of the i-th number of each run
        numbers += (rest[..., None, 12:44] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1) << 4
    return numbers, factors[..., :1] * scales, -factors[..., 1:] * minimums


def _halves(stored: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first IEEE halves of each block as float32, and the bytes behind them."""
    import torch

    return stored[..., : 2 * count].contiguous().view(torch.float16).float(), stored[..., 2 * count :]
