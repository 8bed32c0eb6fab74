"""What the header of a GGUF file says about the model in it. Imports no torch: `tandem model inspect` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandem.errors import CannotStart
from tandem.model.config import ModelConfig
from tandem.model.families.names import Names
from tandem.model.weights.gguf import GgufFile

NAMES: Final = Names(
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
    turn_halves: bool  # a file has a head's rows as trained; else the two that turn together side by side


FAMILIES: Final = {
    "llama": Family(normed=False, turn_halves=False),
    "qwen3": Family(normed=True, turn_halves=True),
}
"""The dense families, which the native step knows; by `general.architecture`, also the prefix of a file's keys."""


def read_header(file: GgufFile) -> tuple[Family, ModelConfig]:
    """Raises `CannotStart` for tensors that are not what the architecture needs, or of a format that is not read."""
    family, config = FAMILIES[architecture_of(file)], _config(file)
    file.require(_shapes(file, family, config))
    return family, config


def architecture_of(file: GgufFile) -> str:
    """Raises `CannotStart` for one that is not served."""
    if file.architecture not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise CannotStart(
            f"{file.path} holds a model of architecture `{file.architecture}`; known are {known}",
            "choose a model of one of these architectures",
        )
    return file.architecture


def stored_name(name: str) -> str:
    return f"{name}.weight"


def _config(file: GgufFile) -> ModelConfig:
    """The model's shape from the file's metadata. Raises `CannotStart` naming the key that is missing or odd."""
    family, embedding = file.architecture, stored_name(NAMES.embedding)
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
    if stored_name(NAMES.head) in file.tensors:
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
    return {stored_name(name): shape for name, shape in shapes.items()} | extra
