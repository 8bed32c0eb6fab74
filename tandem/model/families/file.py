"""From a GGUF file to a model: the dense families, llama and qwen3."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tandem.model.config import AttentionConfig, ModelConfig
from tandem.model.decoder import Decoder, Layer
from tandem.model.families import dense
from tandem.model.families.header import NAMES, ROPE_FACTORS, Family, read_header, stored_name
from tandem.model.families.reading import turning_order, turning_rows
from tandem.model.interface import Model
from tandem.model.layers import RmsNorm
from tandem.model.mixers import Attention, NormedAttention
from tandem.model.moe import FeedForward
from tandem.model.native import store
from tandem.model.native.blocks import Blocks, pack, round_to_eight, round_to_sixteen, stacked
from tandem.model.rope import Rope
from tandem.model.weights.gguf import GgufFile, StoredTensor
from tandem.model.weights.quant import Compute, Projection, projection, table

log = logging.getLogger("tandem.engine")


def open_file(file: GgufFile, compute: Compute, progress: Callable[[float], None], state: Path | None = None) -> Model:
    """`state`: see `loading`. Raises `CannotStart` when it is not what its architecture needs."""
    family, config = read_header(file)
    if why := dense.why_in_torch(config, compute):
        log.info("passes run in torch: %s", why)
        return _read(file, family, config, compute, progress)
    tied = stored_name(NAMES.head) not in file.tensors
    weights = FileWeights(file, compute, progress)
    read = partial(dense.read, config, names=NAMES, tied=tied, normed=family.normed)
    parts = store.read(state, file.path, compute, lambda wrap: read(wrap(weights)), read)
    return dense.build(config, parts, _rope(file, config), family.turn_halves)


class FileWeights:
    """Implements `dense.Weights`. In bfloat16 everything is that; else whole numbers of up to 8 bits stay as the file
    has them, and anything else is rounded to 8 bits a group of 32. `progress` hears the share of bytes."""

    def __init__(self, file: GgufFile, compute: Compute, progress: Callable[[float], None]) -> None:
        self._tensors = file.tensors
        self._compute = compute
        self._progress = progress
        self._read = 0  # bytes
        self._size = sum(tensor.size for tensor in file.tensors.values())

    def matrix(self, width: int, parts: Sequence[tuple[str, int]]) -> Blocks:
        tensors = [self._take(name) for name, _ in parts]
        if self._compute is Compute.BFLOAT16:
            return stacked([round_to_sixteen(tensor.bfloat16()) for tensor in tensors])
        is_narrow = self._compute is Compute.INT4 and all(tensor.is_four_bit for tensor in tensors)
        return stacked([self._packed(tensor, 4 if is_narrow else 8) for tensor in tensors])

    def norm(self, name: str, width: int) -> Tensor:
        return self._take(name).float32().contiguous()

    def _take(self, name: str) -> StoredTensor:
        tensor = self._tensors[stored_name(name)]
        self._read += tensor.size
        self._progress(self._read / self._size)
        return tensor

    @staticmethod
    def _packed(tensor: StoredTensor, bits: int) -> Blocks:
        return round_to_eight(tensor.float32()) if tensor.bits is None else pack(tensor.grouped(), bits)


def _read(
    file: GgufFile, family: Family, config: ModelConfig, compute: Compute, progress: Callable[[float], None]
) -> Decoder:
    """In torch."""
    tensors, head_dim = file.tensors, config.head_dim
    attention = AttentionConfig(config.heads, config.kv_heads, head_dim, head_dim, gated=False)
    turned, order = None, None
    if family.turn_halves:
        turned = turning_order(head_dim, head_dim)
        order = turning_rows(turned, config.heads + 2 * config.kv_heads)
        order[-config.kv_width :] = torch.arange(len(order) - config.kv_width, len(order))  # values are not turned

    def norm(name: str, order: Tensor | None = None) -> RmsNorm:
        weight = tensors[stored_name(name)].float32()
        return RmsNorm(weight if order is None else weight[order], config.norm_epsilon, compute.dtype)

    def product(at: str, *names: str, order: Tensor | None = None) -> Projection:
        return projection([tensors[stored_name(at + name)] for name in names], compute, order)

    def mixer(index: int, at: str) -> Attention:
        inputs, output = product(at, *NAMES.qkv, order=order), product(at, NAMES.attention_output)
        if not family.normed:
            return Attention(attention, index, inputs, output, compute.dtype)
        query_norm, key_norm = norm(at + NAMES.query_norm, turned), norm(at + NAMES.key_norm, turned)
        return NormedAttention(attention, index, inputs, output, query_norm, key_norm, compute.dtype)

    embedding = table([tensors[stored_name(NAMES.embedding)]], compute)
    head = product("", NAMES.head) if stored_name(NAMES.head) in tensors else embedding
    layers = []
    for index in range(config.layers):
        progress((index + 1) / (config.layers + 2))  # embedding and head weigh about as much as a layer
        at = NAMES.layer.format(index)
        feed_forward = FeedForward(product(at, *NAMES.gate_up), product(at, NAMES.down))
        layers.append(
            Layer(norm(at + NAMES.attention_norm), mixer(index, at), norm(at + NAMES.feed_forward_norm), feed_forward)
        )
    return Decoder(config, compute.dtype, embedding, layers, norm(NAMES.last_norm), head, _rope(file, config))


def _rope(file: GgufFile, config: ModelConfig) -> Rope:
    factors = file.tensors[ROPE_FACTORS].float32() if ROPE_FACTORS in file.tensors else None
    return Rope(config.head_dim, config.rope_base, config.window, factors)
