"""The Llama family: RMS norm, rotary positions, grouped attention, gated SiLU. Read from GGUF or from a directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandem.errors import CannotStart
from tandem.model.config import AttentionConfig, ModelConfig
from tandem.model.decoder import Decoder, Layer
from tandem.model.families.architecture import Architecture
from tandem.model.families.reading import Reading
from tandem.model.layers import RmsNorm
from tandem.model.mixers import Attention
from tandem.model.moe import FeedForward
from tandem.model.rope import Rope
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.gguf import GgufFile
from tandem.model.weights.quant import Compute, Projection, projection, table

EMBEDDING: Final = "token_embd.weight"
OUTPUT: Final = "output.weight"  # absent when the head shares the embedding
OUTPUT_NORM: Final = "output_norm.weight"
ROPE_FACTORS: Final = "rope_freqs.weight"


def build(source: Source, architecture: Architecture, compute: Compute, rope: Rope) -> Decoder:
    """From a checkpoint directory."""
    model = architecture.model
    root = Reading(source, "", compute, model.norm_epsilon, centred=False)
    body = root.under("model")
    layers = []
    for index in range(model.layers):
        layer = body.under(f"layers.{index}")
        layers.append(
            Layer(
                layer.norm("input_layernorm", model.hidden),
                layer.under("self_attn").attention(architecture.attention, model.hidden, index),
                layer.norm("post_attention_layernorm", model.hidden),
                layer.under("mlp").feed_forward(model.hidden, model.feed_forward),
            )
        )
    embedding, head = root.ends(body, architecture)
    leave = body.norm("norm", model.hidden)
    return Decoder(model, compute.dtype, embedding, layers, leave, head, rope, placement=source.placement)


def read(file: GgufFile, compute: Compute, progress: Callable[[float], None]) -> Decoder:
    """From a GGUF file. Raises `CannotStart` when it is not what this family needs."""
    config = read_config(file)
    file.require(_shapes(file, config))
    tensors = file.tensors
    attention = AttentionConfig(config.heads, config.kv_heads, config.head_dim, config.head_dim, gated=False)

    def norm(name: str) -> RmsNorm:
        return RmsNorm(tensors[name].float32(), config.norm_epsilon, compute.dtype)

    def stacked(layer: int, *names: str) -> Projection:
        return projection([tensors[f"blk.{layer}.{name}.weight"] for name in names], compute)

    embedding = table([tensors[EMBEDDING]], compute)
    head = projection([tensors[OUTPUT]], compute) if OUTPUT in tensors else embedding
    layers = []
    for index in range(config.layers):
        progress((index + 1) / (config.layers + 2))  # embedding and head weigh about as much as a layer
        inputs = stacked(index, "attn_q", "attn_k", "attn_v")
        layers.append(
            Layer(
                norm(f"blk.{index}.attn_norm.weight"),
                Attention(attention, index, inputs, stacked(index, "attn_output"), compute.dtype),
                norm(f"blk.{index}.ffn_norm.weight"),
                FeedForward(stacked(index, "ffn_gate", "ffn_up"), stacked(index, "ffn_down")),
            )
        )
    factors = tensors[ROPE_FACTORS].float32() if ROPE_FACTORS in tensors else None
    rope = Rope(config.head_dim, config.rope_base, config.window, factors)
    return Decoder(config, compute.dtype, embedding, layers, norm(OUTPUT_NORM), head, rope)


def read_config(file: GgufFile) -> ModelConfig:
    """The model's shape from the file's metadata. Raises `CannotStart` naming the key that is missing or odd."""
    hidden = file.whole("llama.embedding_length")
    heads = file.whole("llama.attention.head_count")
    kv_heads = file.whole("llama.attention.head_count_kv", heads)
    head_dim = file.whole("llama.attention.key_length", max(hidden // heads, 1))
    for wrong, what in (
        (heads % kv_heads, f"{heads} heads cannot share {kv_heads} KV heads"),
        (head_dim % 2, f"a head of {head_dim} numbers cannot be turned in pairs"),
        (file.whole("llama.rope.dimension_count", head_dim) != head_dim, "only part of a head is rotated"),
        (file.whole("llama.attention.value_length", head_dim) != head_dim, "keys and values differ in size"),
        (file.metadata.get("llama.rope.scaling.type", "none") != "none", "its positions are scaled"),
        ("llama.expert_count" in file.metadata and file.metadata["llama.expert_count"] != 0, "it has experts"),
        (EMBEDDING not in file.tensors, f"it has no `{EMBEDDING}`"),
    ):
        if wrong:
            raise CannotStart(f"{file.path} is a llama model that cannot be read: {what}")
    return ModelConfig(
        layers=file.whole("llama.block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=file.whole("llama.feed_forward_length"),
        vocab=file.tensors[EMBEDDING].shape[0],
        norm_epsilon=file.real("llama.attention.layer_norm_rms_epsilon"),
        rope_base=file.real("llama.rope.freq_base", 10000.0),
        window=file.whole("llama.context_length"),
        bos_token=file.token("tokenizer.ggml.bos_token_id"),
        eos_token=file.token("tokenizer.ggml.eos_token_id"),
    )


def _shapes(file: GgufFile, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the file must hold; those a model may have or not are named when the file has them."""
    hidden, wide = config.hidden, config.feed_forward
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab, hidden), OUTPUT_NORM: (hidden,)}
    if OUTPUT in file.tensors:
        shapes[OUTPUT] = (config.vocab, hidden)
    if ROPE_FACTORS in file.tensors:
        shapes[ROPE_FACTORS] = (config.head_dim // 2,)
    for index in range(config.layers):
        shapes |= {
            f"blk.{index}.attn_norm.weight": (hidden,),
            f"blk.{index}.attn_q.weight": (config.query_width, hidden),
            f"blk.{index}.attn_k.weight": (config.kv_width, hidden),
            f"blk.{index}.attn_v.weight": (config.kv_width, hidden),
            f"blk.{index}.attn_output.weight": (hidden, config.query_width),
            f"blk.{index}.ffn_norm.weight": (hidden,),
            f"blk.{index}.ffn_gate.weight": (wide, hidden),
            f"blk.{index}.ffn_up.weight": (wide, hidden),
            f"blk.{index}.ffn_down.weight": (hidden, wide),
        }
    return shapes
