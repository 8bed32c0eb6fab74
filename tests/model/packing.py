"""Random weights in every format that stays packed, as they lie on disk."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.model.weights.blockscaled import Format, dequantize
from tandem.model.weights.packed import Packed, pack

BLOCK = (128, 128)


@dataclass
class Stored:
    format: Format
    shape: tuple[int, int]
    values: Tensor
    scales: Tensor
    overall: Tensor | None

    @property
    def packed(self) -> Packed:
        return pack(self.format, self.shape, self.values, self.scales, self.overall)

    @property
    def float32(self) -> Tensor:
        return dequantize(self.format, self.values, self.scales, self.overall, BLOCK)


def random_bytes(*shape: int, seed: int) -> Tensor:
    drawn = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return torch.where(drawn & 0x7F == 0x7F, drawn - 1, drawn)  # these two patterns are e4m3's NaN


def stored(format: Format, out: int, width: int, seed: int = 0) -> Stored:
    generator = torch.Generator().manual_seed(seed)
    values, overall = random_bytes(out, width, seed=seed).view(torch.float8_e4m3fn), None
    match format:
        case Format.FP8_BLOCKS:
            scales = torch.rand(-(-out // 128), -(-width // 128), generator=generator)
        case Format.FP8_ROWS:
            scales = torch.rand(out, 1, generator=generator)
        case Format.MXFP8:
            scales = torch.randint(110, 130, (out, width // 32), generator=generator, dtype=torch.uint8)
        case Format.NVFP4_MODELOPT | Format.NVFP4_COMPRESSED:
            values = random_bytes(out, width // 2, seed=seed)
            scales = (random_bytes(out, width // 16, seed=seed + 1) & 0x7F).view(torch.float8_e4m3fn)
            overall = torch.tensor([0.013 if format is Format.NVFP4_MODELOPT else 80.0])
    return Stored(format, (out, width), values, scales, overall)
