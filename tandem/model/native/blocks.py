"""Weights as the native step reads them: blocks of 16 outputs x 32 inputs, integers then scales (`abi.h`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tandem.model.weights.gguf import FourBit

OUTPUTS: Final = 16  # of one block
GROUP: Final = 32  # inputs of one block, which share a scale
_WIDENED: Final = 4096  # outputs packed at a time: what is needed beside the blocks stays small


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """weight = scale * integer + minimum, scales as IEEE halves. 0.625 bytes a weight of 4 bits, 1.125 of 8."""

    data: Tensor  # uint8, contiguous
    outputs: int
    inputs: int
    bits: int  # 4 or 8

    @staticmethod
    def fits(shape: tuple[int, int]) -> bool:
        return shape[0] % OUTPUTS == 0 and shape[1] % GROUP == 0


def pack_four(parts: Sequence[FourBit]) -> Blocks:
    """Stored 4-bit matrices, stacked along their outputs. Their scales are halves in the file: nothing is lost."""
    nibbles = torch.cat([part.nibbles for part in parts])
    outputs, inputs = nibbles.shape
    halves = nibbles.view(outputs // OUTPUTS, OUTPUTS, inputs // GROUP, 2, 4, 4)  # block, output, group, half, s, b
    packed = (halves[:, :, :, 0] | halves[:, :, :, 1] << 4).permute(0, 2, 3, 1, 4)  # block, group, s, output, b
    scale, minimum = (torch.cat([getattr(part, name) for part in parts]) for name in ("scale", "minimum"))
    return Blocks(_join(packed.flatten(2), scale, minimum), outputs, inputs, 4)


def pack_eight(weight: Tensor) -> Blocks:
    """float32 [outputs, inputs] in 8 bits a group of 32. What a file keeps as Q8_0 comes out as it was."""
    outputs, inputs = weight.shape
    parts = []
    for first in range(0, outputs, _WIDENED):
        groups = weight[first : first + _WIDENED].reshape(-1, inputs // GROUP, GROUP)
        scale = (groups.abs().amax(dim=2) / 127).half()
        numbers = torch.where(scale[..., None] > 0, groups / scale[..., None].float(), 0.0)
        unsigned = (numbers.round_().clamp_(-127, 127) + 128).to(torch.uint8)
        rows = unsigned.view(-1, OUTPUTS, inputs // GROUP, 8, 4).permute(0, 2, 3, 1, 4)  # block, group, s, output, b
        parts.append(_join(rows.flatten(2), scale.float(), scale.float() * -128))
    return Blocks(torch.cat(parts), outputs, inputs, 8)


def _join(integers: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """[blocks, groups, bytes] and twice [outputs, groups] -> uint8, block by block."""
    factors = torch.stack((scale, minimum)).view(2, -1, OUTPUTS, scale.shape[1]).permute(1, 3, 0, 2)
    halves = factors.half().contiguous().view(torch.uint8).flatten(2)  # [blocks, groups, 64]
    return torch.cat((integers, halves), dim=2).contiguous()
