"""From a GGUF file to a model: the dense families, llama and qwen3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from tandem.errors import CannotStart
from tandem.model.config import AttentionConfig, ModelConfig
from tandem.model.decoder import Decoder, Layer
from tandem.model.families import dense
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

NAMES: Final = dense.Names(
    embedding="token_embd",
    head="output",  # absent when the head shares the embedding
    last_norm="output_norm",
    layer="blk.{}.",
    attention_norm="attn_norm",
    qkv=("attn_q", "attn_k", "attn_v"),
    query_norm="attn_q_norm",
    key_norm="attn_k_norm",
    attention_output="attn_output",
    feed_forward_norm="ffn_norm",
    gate_up=("ffn_gate", "ffn_up"),
    down="ffn_down",
)
ROPE_FACTORS: Final = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Family:
    normed: bool  # queries and keys are normed
    turn_halves: bool  # a head's rows are stored as trained; else the two that turn together side by side


FAMILIES: Final = {
    "llama": Family(normed=False, turn_halves=False),
    "qwen3": Family(normed=True, turn_halves=True),
}
"""By `general.architecture`, which is also the prefix of a file's keys."""


def open_file(file: GgufFile, compute: Compute, progress: Callable[[float], None], state: Path | None = None) -> Model:
    """`state`: see `loading`. Raises `CannotStart` when it is not what its architecture needs."""
    if file.architecture not in FAMILIES:
        raise CannotStart(
            f"{file.path} holds a model of architecture `{file.architecture}`; known are {', '.join(FAMILIES)}"
        )
    family, config = FAMILIES[file.architecture], read_config(file)
    file.require(_shapes(file, family, config))
    if not dense.runs_natively(config, compute):
        return _read(file, family, config, compute, progress)
    tied = _stored(NAMES.head) not in file.tensors
    weights = FileWeights(file, compute)
    read = partial(dense.read, config, names=NAMES, tied=tied, normed=family.normed)
    parts = store.read(state, file.path, compute, lambda wrap: read(wrap(weights), progress=progress), read)
    return dense.build(config, parts, _rope(file, config), family.turn_halves)


class FileWeights:
    """Implements `dense.Weights`. In bfloat16 everything is that; else whole numbers of up to 8 bits stay as the file
    has them, and anything else is rounded to 8 bits a group of 32."""

    def __init__(self, file: GgufFile, compute: Compute) -> None:
        self._tensors = file.tensors
        self._compute = compute

    def matrix(self, width: int, parts: Sequence[tuple[str, int]]) -> Blocks:
        tensors = [self._tensors[_stored(name)] for name, _ in parts]
        if self._compute is Compute.BFLOAT16:
            return stacked([round_to_sixteen(tensor.bfloat16()) for tensor in tensors])
        is_narrow = self._compute is Compute.INT4 and all(tensor.is_four_bit for tensor in tensors)
        return stacked([self._packed(tensor, 4 if is_narrow else 8) for tensor in tensors])

    def norm(self, name: str, width: int) -> Tensor:
        return self._tensors[_stored(name)].float32().contiguous()

    @staticmethod
    def _packed(tensor: StoredTensor, bits: int) -> Blocks:
        return round_to_eight(tensor.float32()) if tensor.bits is None else pack(tensor.grouped(), bits)


def _stored(name: str) -> str:
    return f"{name}.weight"


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
        weight = tensors[_stored(name)].float32()
        return RmsNorm(weight if order is None else weight[order], config.norm_epsilon, compute.dtype)

    def product(at: str, *names: str, order: Tensor | None = None) -> Projection:
        return projection([tensors[_stored(at + name)] for name in names], compute, order)

    def mixer(index: int, at: str) -> Attention:
        inputs, output = product(at, *NAMES.qkv, order=order), product(at, NAMES.attention_output)
        if not family.normed:
            return Attention(attention, index, inputs, output, compute.dtype)
        query_norm, key_norm = norm(at + NAMES.query_norm, turned), norm(at + NAMES.key_norm, turned)
        return NormedAttention(attention, index, inputs, output, query_norm, key_norm, compute.dtype)

    embedding = table([tensors[_stored(NAMES.embedding)]], compute)
    head = product("", NAMES.head) if _stored(NAMES.head) in tensors else embedding
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


def read_config(file: GgufFile) -> ModelConfig:
    """The model's shape from the file's metadata. Raises `CannotStart` naming the key that is missing or odd."""
    family, embedding = file.architecture, _stored(NAMES.embedding)
    hidden = file.whole(f"{family}.embedding_length")
    heads = file.whole(f"{family}.attention.head_count")
    kv_heads = file.whole(f"{family}.attention.head_count_kv", heads)
    head_dim = file.whole(f"{family}.attention.key_length", max(hidden // heads, 1))
    for wrong, what in (
        (heads % kv_heads, f"{heads} heads cannot share {kv_heads} KV heads"),
        (head_dim % 2, f"a head of {head_dim} numbers cannot be turned in pairs"),
        (file.whole(f"{family}.rope.dimension_count", head_dim) != head_dim, "only part of a head is rotated"),
        (file.whole(f"{family}.attention.value_length", head_dim) != head_dim, "keys and values differ in size"),
        (file.metadata.get(f"{family}.rope.scaling.type", "none") != "none", "its positions are scaled"),
        (file.metadata.get(f"{family}.expert_count", 0) != 0, "it has experts"),
        (embedding not in file.tensors, f"it has no `{embedding}`"),
    ):
        if wrong:
            raise CannotStart(f"{file.path} is a {family} model that cannot be read: {what}")
    return ModelConfig(
        layers=file.whole(f"{family}.block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=file.whole(f"{family}.feed_forward_length"),
        vocab=file.tensors[embedding].shape[0],
        norm_epsilon=file.real(f"{family}.attention.layer_norm_rms_epsilon"),
        rope_base=file.real(f"{family}.rope.freq_base", 10000.0),
        window=file.whole(f"{family}.context_length"),
        bos_token=file.token("tokenizer.ggml.bos_token_id"),
        eos_token=file.token("tokenizer.ggml.eos_token_id"),
    )


def _shapes(file: GgufFile, family: Family, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the file must hold; those a model may have or not are named when the file has them."""
    hidden, wide, queries, keys = config.hidden, config.feed_forward, config.query_width, config.kv_width
    ends: dict[str, tuple[int, ...]] = {NAMES.embedding: (config.vocab, hidden), NAMES.last_norm: (hidden,)}
    if _stored(NAMES.head) in file.tensors:
        ends[NAMES.head] = (config.vocab, hidden)
    layer: dict[str, tuple[int, ...]] = {
        NAMES.attention_norm: (hidden,),
        **dict(zip(NAMES.qkv, ((queries, hidden), (keys, hidden), (keys, hidden)), strict=True)),
        NAMES.attention_output: (hidden, queries),
        NAMES.feed_forward_norm: (hidden,),
        **dict.fromkeys(NAMES.gate_up, (wide, hidden)),
        NAMES.down: (hidden, wide),
    }
    if family.normed:
        layer |= dict.fromkeys((NAMES.query_norm, NAMES.key_norm), (config.head_dim,))
    prefixes = [NAMES.layer.format(index) for index in range(config.layers)]
    shapes = ends | {at + name: shape for at in prefixes for name, shape in layer.items()}
    extra = {ROPE_FACTORS: (config.head_dim // 2,)} if ROPE_FACTORS in file.tensors else {}
    return {_stored(name): shape for name, shape in shapes.items()} | extra
