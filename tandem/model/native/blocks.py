"""Weights as the native step reads them: blocks of 16 outputs x 32 inputs (`abi.h`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tandem.model.weights.grouped import Grouped

OUTPUTS: Final = 16  # of one block
GROUP: Final = 32  # inputs of one block, which share a scale
_FACTORS: Final = 4 * OUTPUTS  # bytes of a block's scales and minimums
_WIDENED: Final = 4096  # outputs packed at a time: what is needed beside the blocks stays small


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Of 4 and 8 bits: weight = scale * number + minimum, both IEEE halves, in 0.625 and 1.125 bytes a weight. Of 16:
    bfloat16."""

    data: Tensor  # uint8 [outputs / 16, inputs / 32, bytes], contiguous
    outputs: int
    inputs: int
    bits: int  # 4, 8 or 16

    @staticmethod
    def fits(shape: tuple[int, int]) -> bool:
        return shape[0] % OUTPUTS == 0 and shape[1] % GROUP == 0


class Rows:
    """A matrix whose rows are looked up. Views of its blocks are made once: each call into torch costs a step time."""

    def __init__(self, blocks: Blocks) -> None:
        self._bits = blocks.bits
        outer = blocks.data.shape[:2]
        if blocks.bits == 16:
            self._numbers = blocks.data.view(torch.bfloat16).view(*outer, -1, OUTPUTS, 2)  # block, group, word, output
            return
        self._numbers = blocks.data[..., :-_FACTORS].view(*outer, -1, OUTPUTS, 4)
        self._factors = blocks.data[..., -_FACTORS:].view(torch.float16).view(*outer, 2, OUTPUTS)

    def lookup(self, tokens: Tensor) -> Tensor:
        """int64 [rows] -> float32 [rows, inputs], as they are"""
        block, output = tokens // OUTPUTS, tokens % OUTPUTS
        numbers = self._numbers[block, :, :, output].flatten(2)  # [rows, groups, GROUP], or pairs of nibbles
        if self._bits == 16:
            return numbers.flatten(1).float()
        if self._bits == 4:
            numbers = torch.cat((numbers & 15, numbers >> 4), dim=-1)
        scale, minimum = self._factors[block, :, :, output].float().unsqueeze(-1).unbind(2)
        return (numbers * scale).add_(minimum).flatten(1)


def pack(matrix: Grouped, bits: int) -> Blocks:
    """What a file keeps as whole numbers, in 4 or 8 bits, no fewer than it has.

    Nothing is lost where scales and minimums are halves; those of Q4_K and Q5_K are rounded to halves, by one part in
    2,048 at most.
    """
    assert matrix.bits <= bits, "numbers must have room"

    def some(rows: slice) -> Tensor:
        numbers = matrix.numbers[rows]
        return _join(_nibbles(numbers) if bits == 4 else _bytes(numbers), matrix.scale[rows], matrix.minimum[rows])

    return _packed(matrix.numbers.shape, bits, some)


def round_to_eight(weight: Tensor) -> Blocks:
    """float32 [outputs, inputs] to 8 bits a group of 32."""

    def some(rows: slice) -> Tensor:
        groups = weight[rows].view(-1, weight.shape[1] // GROUP, GROUP)
        scale = (groups.abs().amax(dim=2) / 127).half().float()
        numbers = torch.where(scale[..., None] > 0, groups / scale[..., None], 0.0).round_().clamp_(-127, 127)
        return _join(_bytes((numbers + 128).to(torch.uint8).flatten(1)), scale, scale * -128)

    return _packed(weight.shape, 8, some)


def round_to_sixteen(weight: Tensor) -> Blocks:
    """[outputs, inputs] of any floats to bfloat16, which is what bfloat16 is."""

    def some(rows: slice) -> Tensor:
        pairs = weight[rows].bfloat16().view(-1, OUTPUTS, weight.shape[1] // GROUP, GROUP // 2, 2)
        return pairs.permute(0, 2, 3, 1, 4).contiguous().view(torch.uint8).flatten(2)

    return _packed(weight.shape, 16, some)


def stacked(parts: Sequence[Blocks]) -> Blocks:
    """Matrices of equal bits as one, a part's outputs behind the other's."""
    if len(parts) == 1:
        return parts[0]
    data = torch.cat([part.data for part in parts])
    return Blocks(data, sum(part.outputs for part in parts), parts[0].inputs, parts[0].bits)


def _packed(shape: Sequence[int], bits: int, some: Callable[[slice], Tensor]) -> Blocks:
    outputs, inputs = shape
    pieces = [some(slice(first, first + _WIDENED)) for first in range(0, outputs, _WIDENED)]
    return Blocks(pieces[0] if len(pieces) == 1 else torch.cat(pieces), outputs, inputs, bits)


def _nibbles(numbers: Tensor) -> Tensor:
    """uint8 [outputs, inputs] below 16 -> [blocks, groups, 256]: input i in the low, i + 16 in the high half"""
    halves = numbers.view(-1, OUTPUTS, numbers.shape[1] // GROUP, 2, 4, 4)  # block, output, group, half, word, byte
    return (halves[:, :, :, 0] | halves[:, :, :, 1] << 4).permute(0, 2, 3, 1, 4).flatten(2)


def _bytes(numbers: Tensor) -> Tensor:
    """uint8 [outputs, inputs] -> [blocks, groups, 512]"""
    return numbers.view(-1, OUTPUTS, numbers.shape[1] // GROUP, 8, 4).permute(0, 2, 3, 1, 4).flatten(2)


def _join(numbers: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """[blocks, groups, bytes] and twice [outputs, groups] -> uint8 [blocks, groups, bytes + 64]"""
    factors = torch.stack((scale, minimum)).view(2, -1, OUTPUTS, scale.shape[1]).permute(1, 3, 0, 2)
    halves = factors.half().contiguous().view(torch.uint8).flatten(2)
    return torch.cat((numbers, halves), dim=2)
