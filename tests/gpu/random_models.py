"""Models of real shapes with random weights, made where they are needed: no file, and as many bytes as a real one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tandem.model.decoder import Decoder
from tandem.model.families import directory
from tandem.model.families.architecture import Architecture, read_architecture
from tandem.model.families.fields import Fields
from tandem.model.kernels.experts import PackedExperts
from tandem.model.kernels.products import PackedProduct, Side
from tandem.model.placement import Placement
from tandem.model.rope import Rope
from tandem.model.weights.blockscaled import Format
from tandem.model.weights.checkpoint import Table
from tandem.model.weights.packed import Packed, pack, plain
from tandem.model.weights.quant import Compute

HYBRID_27B: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "hidden_size": 5_120,
    "intermediate_size": 17_408,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 32_768,  # of 262,144: the table of turns is made for all of them
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25},
}
"""The shapes of the 27B profile: 48 Gated DeltaNet layers and 16 of attention."""

SPREAD = 0.02  # of a weight


class Random:
    """A `Source` whose weights are drawn. Matrices of layers are in `format`; embedding, head and small ones are in
    bfloat16, as published checkpoints have them."""

    def __init__(self, placement: Placement, format: Format | None, seed: int = 0) -> None:
        self.placement = placement
        self._format = format
        self._generator = torch.Generator(placement.device).manual_seed(seed)

    def has(self, name: str) -> bool:
        return False

    def take(
        self, name: str, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None
    ) -> Tensor:
        if "norm" in name:  # stored as the distance from 1, but for the norm of DeltaNet heads
            drawn = torch.zeros(shape) if "linear_attn" not in name else torch.ones(shape)
            return drawn.to(self.placement.device, dtype)
        spread = 0.3 if "conv1d" in name else SPREAD
        return (torch.randn(shape, generator=self._generator, device=self.placement.device) * spread).to(dtype)

    def packed(self, name: str, out: int, width: int) -> Packed:
        kept_wide = any(part in name for part in ("embed_tokens", "lm_head", "in_proj_a", "in_proj_b"))
        if self._format is None or kept_wide:
            return plain(self.take(name, out, width, dtype=torch.bfloat16))
        return random_packed(self._format, out, width, self._generator)

    def table(self, names: Sequence[str], rows: int, width: int) -> Table:
        raise AssertionError("no table in these models")


def random_packed(format: Format, out: int, width: int, generator: torch.Generator) -> Packed:
    device = generator.device

    def draw(*shape: int) -> Tensor:
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8, device=device)

    if format in (Format.NVFP4_MODELOPT, Format.NVFP4_COMPRESSED):
        ones = torch.full((out, width // 16), 0x38, dtype=torch.uint8, device=device)  # e4m3's 1.0
        overall = torch.tensor(SPREAD / 2.9, device=device)  # 2.9: what e2m1's values come to on average
        return pack(Format.NVFP4_MODELOPT, (out, width), draw(out, width // 2), ones, overall)
    values = draw(out, width)
    values = torch.where(values & 0x7F >= 0x78, values & 0x3F, values)  # no NaN, and nothing of the largest binade
    if format is Format.MXFP8:
        powers = torch.full((out, width // 32), 127 - 11, dtype=torch.uint8, device=device)
        return pack(format, (out, width), values, powers, None)
    scales = (-(-out // 128), -(-width // 128)) if format is Format.FP8_BLOCKS else (out, 1)
    return pack(format, (out, width), values, torch.full(scales, SPREAD / 60, device=device), None)


def architecture_of(values: dict[str, Any]) -> Architecture:
    return read_architecture(Fields(Path("config.json"), values))


def random_model(values: dict[str, Any], placement: Placement, format: Format | None, seed: int = 0) -> Decoder:
    architecture = architecture_of(values)
    turned, model = architecture.attention.rope_dim, architecture.model
    rope = Rope(turned, model.rope_base, model.window, device=placement.device)
    source = Random(placement, format, seed)
    return directory._BUILDERS[architecture.family](source, architecture, Compute.BFLOAT16, rope)


def weight_bytes(model: Decoder) -> int:
    """What one round reads of a dense model's weights; of the embedding it reads a few rows."""
    return sum(each.bytes for each in _weights(model))


def _weights(model: Decoder) -> Iterator[Packed]:
    for product in (model._head, *(product for layer in model._layers for product in layer.products())):
        for each in product._products if isinstance(product, Side) else (product,):
            assert isinstance(each, PackedProduct)
            yield each.weight


__all__ = ["HYBRID_27B", "PackedExperts", "Random", "random_model", "random_packed", "weight_bytes"]
