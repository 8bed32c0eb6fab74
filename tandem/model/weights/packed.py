"""A weight matrix as a device holds it: the values it is stored in, and what they are multiplied with.

    weight[o, i] = value[o, i] x scale[o // rows_a_scale, i // inputs_a_scale] x factor[o]

Every stored format is this with parts left out. Outputs can be stacked and rearranged without touching a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import torch
from torch import Tensor

from tandem.model.weights.blockscaled import Format

FP8_BLOCK: Final = 128
"""Outputs and inputs of an fp8 block that stays packed; blocks of other sizes are widened when they are loaded."""


class Element(IntEnum):
    BF16 = 0
    E4M3 = 1  # a byte a value
    E2M1 = 2  # two values a byte, the earlier one in its low half


class Scale(IntEnum):
    NONE = 0
    FLOAT32 = 1
    E8M0 = 2  # a power of two, as the exponent byte of a float
    E4M3 = 3


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    element: Element
    scale: Scale
    shape: tuple[int, int]  # [out, in]
    values: Tensor  # bfloat16 [out, in], or bytes [out, in or in / 2]
    scales: Tensor | None  # float32, or bytes: [scale rows, scales a row]
    factor: Tensor | None  # float32 [out]
    inputs_a_scale: int = 0
    rows_a_scale: int = 1

    @property
    def kind(self) -> tuple[Element, Scale, bool]:
        """Matrices of one kind can be stacked."""
        return self.element, self.scale, self.factor is not None

    @property
    def bytes(self) -> int:
        """What a product reads of it."""
        return sum(each.nbytes for each in (self.values, self.scales, self.factor) if each is not None)

    def rearranged(self, order: Tensor) -> Packed:
        """Its outputs in another order."""
        order = order.to(self.values.device)
        scales = None if self.scales is None else self._scales_an_output()[order]
        factor = None if self.factor is None else self.factor[order]
        shape = (order.shape[0], self.shape[1])
        return replace(self, shape=shape, values=self.values[order], scales=scales, factor=factor, rows_a_scale=1)

    def lookup(self, tokens: Tensor) -> Tensor:
        """float32 [rows, in]"""
        return self.rearranged(tokens).float32()

    def float32(self) -> Tensor:
        """[out, in], dequantized: what the kernels must agree with."""
        match self.element:
            case Element.BF16:
                numbers = self.values.float()
            case Element.E4M3:
                numbers = self.values.view(torch.float8_e4m3fn).float()
            case Element.E2M1:
                numbers = _e2m1(torch.stack([self.values & 15, self.values >> 4], dim=-1).flatten(-2))
        if self.scales is not None:
            scales = _numbers(self.scale, self._scales_an_output())
            numbers = numbers * scales.repeat_interleave(self.inputs_a_scale, 1)[:, : self.shape[1]]
        return numbers if self.factor is None else numbers * self.factor[:, None]

    def _scales_an_output(self) -> Tensor:
        """As they are stored, a row of them an output."""
        assert self.scales is not None
        return self.scales.repeat_interleave(self.rows_a_scale, 0)[: self.shape[0]]


def _numbers(kind: Scale, scales: Tensor) -> Tensor:
    """float32"""
    match kind:
        case Scale.E8M0:
            return (scales.int() << 23).view(torch.float32)
        case Scale.E4M3:
            return scales.view(torch.float8_e4m3fn).float()
        case _:
            return scales


def _e2m1(codes: Tensor) -> Tensor:
    magnitude = (codes & 7).int()
    exponent = (magnitude >> 1).clamp_min(1) - 1
    number = ((magnitude & 1) + 2 * (magnitude > 1)) * 0.5 * torch.exp2(exponent.float())
    return torch.where(codes > 7, -number, number)


def stacked(parts: Sequence[Packed]) -> Packed:
    """Matrices of one kind over the same inputs, outputs behind outputs."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    assert all(part.kind == first.kind and part.shape[1] == first.shape[1] for part in parts)
    whole_blocks = all(part.shape[0] % part.rows_a_scale == 0 for part in parts[:-1])
    if not whole_blocks or any(part.rows_a_scale != first.rows_a_scale for part in parts):
        parts = [part.rearranged(torch.arange(part.shape[0])) if part.rows_a_scale > 1 else part for part in parts]
    scales = [part.scales for part in parts if part.scales is not None]
    factors = [part.factor for part in parts if part.factor is not None]
    return replace(
        parts[0],
        shape=(sum(part.shape[0] for part in parts), first.shape[1]),
        values=torch.cat([part.values for part in parts]),
        scales=torch.cat(scales) if scales else None,
        factor=torch.cat(factors) if factors else None,
    )


def plain(weight: Tensor) -> Packed:
    """bfloat16 [out, in], as it is."""
    return Packed(Element.BF16, Scale.NONE, (weight.shape[0], weight.shape[1]), weight, None, None)


def can_stay_packed(format: Format, block: tuple[int, int]) -> bool:
    return format is not Format.FP8_BLOCKS or block == (FP8_BLOCK, FP8_BLOCK)


def pack(format: Format, shape: tuple[int, int], values: Tensor, scales: Tensor, overall: Tensor | None) -> Packed:
    """Values and scales as they are stored, on the device already."""
    out = shape[0]
    values = values.view(torch.uint8)
    match format:
        case Format.FP8_BLOCKS:
            return Packed(
                Element.E4M3, Scale.FLOAT32, shape, values, scales.float(), None, FP8_BLOCK, rows_a_scale=FP8_BLOCK
            )
        case Format.FP8_ROWS:
            factor = scales.float().reshape(-1).expand(out).contiguous()
            return Packed(Element.E4M3, Scale.NONE, shape, values, None, factor)
        case Format.MXFP8:
            return Packed(Element.E4M3, Scale.E8M0, shape, values, scales.view(torch.uint8), None, 32)
        case Format.NVFP4_MODELOPT | Format.NVFP4_COMPRESSED:
            assert overall is not None
            factor = overall.float().reshape(1)
            factor = (factor if format is Format.NVFP4_MODELOPT else 1 / factor).expand(out).contiguous()
            return Packed(Element.E2M1, Scale.E4M3, shape, values, scales.view(torch.uint8), factor, 16)
