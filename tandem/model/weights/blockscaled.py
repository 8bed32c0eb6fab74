"""Weights stored as small floats with a scale for every block: what is what on disk, and its value.

| format | values | scales, and the value of an element |
|---|---|---|
| fp8, blocks | `weight` e4m3 | `weight_scale_inv`, one a block (128x128): value x scale |
| fp8, rows | `weight` e4m3 | `weight_scale`, one an output row, or one in all: value x scale |
| mxfp8 | `weight` e4m3 | `weight_scale` e8m0, one a 32 inputs: value x 2^(scale - 127) |
| nvfp4, ModelOpt | `weight` e2m1 | `weight_scale` e4m3, one a 16 inputs, `weight_scale_2`: value x scale x scale_2 |
| nvfp4, compressed-tensors | `weight_packed` e2m1 | the same, `weight_global_scale`: value x scale / global |

A byte of two e2m1 values holds the earlier one in its low half. Scales of activations that lie beside them are not
weights and are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tandem.model.weights.safetensors import Entry, WrongWeights

if TYPE_CHECKING:
    from torch import Tensor  # what is on disk is recognised without torch


class Format(StrEnum):
    FP8_BLOCKS = "fp8-blocks"
    FP8_ROWS = "fp8-rows"
    MXFP8 = "mxfp8"
    NVFP4_MODELOPT = "nvfp4-modelopt"
    NVFP4_COMPRESSED = "nvfp4-compressed-tensors"


ACTIVATION_SCALES: Final = ("input_scale", "input_global_scale", "k_scale", "v_scale")
"""Last parts of names that quantized checkpoints carry beside weights and that weights do not need."""

_E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""By bit pattern: sign, two bits of exponent, one of mantissa."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One matrix on disk: its values, the scales that belong to it, and what it is as a matrix."""

    format: Format
    shape: tuple[int, int]  # [out, in] of the matrix it stands for
    values: Entry
    scales: Entry
    overall: Entry | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (self.values, self.scales) if self.overall is None else (self.values, self.scales, self.overall)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)


def recognise(name: str, entries: Mapping[str, Entry]) -> Stored | None:
    """How the matrix `name` (it ends in `.weight`) is quantized; None when it is not, or not there at all."""
    plain, packed = entries.get(name), entries.get(f"{name}_packed")
    scales = entries.get(f"{name}_scale")
    if packed is not None:
        return _nvfp4(Format.NVFP4_COMPRESSED, packed, scales, entries.get(f"{name}_global_scale"))
    if plain is None or len(plain.shape) != 2:
        return None
    out, width = plain.shape
    if plain.dtype == "U8":
        return _nvfp4(Format.NVFP4_MODELOPT, plain, scales, entries.get(f"{name}_scale_2"))
    if plain.dtype != "F8_E4M3":
        return None
    if (blocks := entries.get(f"{name}_scale_inv")) is not None:
        return Stored(Format.FP8_BLOCKS, (out, width), plain, blocks)
    if scales is None:
        raise WrongWeights(f"{plain.file}: `{name}` is stored as e4m3 and has no scale beside it")
    return Stored(Format.MXFP8 if scales.dtype in ("U8", "F8_E8M0") else Format.FP8_ROWS, (out, width), plain, scales)


def _nvfp4(format: Format, values: Entry, scales: Entry | None, overall: Entry | None) -> Stored:
    if scales is None or overall is None:
        raise WrongWeights(f"{values.file}: `{values.name}` is stored in 4 bits and lacks a scale beside it")
    out, half = values.shape
    return Stored(format, (out, 2 * half), values, scales, overall)


def check(stored: Stored, block: tuple[int, int]) -> None:
    """Scales have the shape their format asks for. `block` is what the configuration states for fp8 blocks."""
    out, width = stored.shape
    allowed: tuple[tuple[int, ...], ...]
    match stored.format:
        case Format.FP8_BLOCKS:
            allowed = ((_over(out, block[0]), _over(width, block[1])),)
        case Format.FP8_ROWS:
            allowed = ((out, 1), (out,), (1,), ())
        case Format.MXFP8:
            allowed = ((out, _over(width, 32)),)
        case Format.NVFP4_MODELOPT | Format.NVFP4_COMPRESSED:
            allowed = ((out, _over(width, 16)),)
    if stored.scales.shape not in allowed:
        raise WrongWeights(
            f"{stored.scales.file}: `{stored.scales.name}` is {list(stored.scales.shape)}; "
            f"a matrix of {[out, width]} in {stored.format} needs {list(allowed[0])}"
        )


def scale_rows(format: Format, scales: Tensor, rows: slice, block: tuple[int, int]) -> Tensor:
    """The scales of `rows` of the matrix, which start and stop at blocks (or at its end)."""
    if format is Format.FP8_BLOCKS:
        return scales[rows.start // block[0] : _over(rows.stop, block[0])]
    return scales if scales.numel() == 1 else scales[rows]


def dequantize(
    format: Format, values: Tensor, scales: Tensor, overall: Tensor | None, block: tuple[int, int]
) -> Tensor:
    """float32 [out, in] of whole rows: `values` and `scales` as they are stored, of the same rows."""
    import torch

    match format:
        case Format.FP8_BLOCKS:
            return values.float() * _spread(scales.float(), block, values.shape)
        case Format.FP8_ROWS:
            return values.float() * scales.float().reshape(-1, 1)
        case Format.MXFP8:
            powers = torch.exp2(scales.view(torch.uint8).float() - 127)
            return values.float() * _spread(powers, (1, 32), values.shape)
        case Format.NVFP4_MODELOPT | Format.NVFP4_COMPRESSED:
            assert overall is not None
            factor = overall.float() if format is Format.NVFP4_MODELOPT else 1 / overall.float()
            pairs = torch.stack([values & 15, values >> 4], dim=-1).flatten(-2)  # [out, in]
            return torch.tensor(_E2M1)[pairs.int()] * _spread(scales.float() * factor, (1, 16), pairs.shape)


def _spread(scales: Tensor, block: tuple[int, int], shape: tuple[int, ...]) -> Tensor:
    """One scale a block -> one an element. The last block of an axis may be cut short."""
    rows = scales.repeat_interleave(block[0], dim=0)[: shape[0]]
    return rows.repeat_interleave(block[1], dim=1)[:, : shape[1]]


def _over(extent: int, block: int) -> int:
    return -(-extent // block)
