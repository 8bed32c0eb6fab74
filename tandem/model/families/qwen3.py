"""The Qwen3 family, dense: as Llama, with normed queries and keys. Read from a checkpoint directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.model.config import ModelConfig
from tandem.model.decoder import Decoder, Layer
from tandem.model.families.fields import Fields
from tandem.model.families.reading import Reading
from tandem.model.mixers import AttentionConfig
from tandem.model.rope import Rope
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.quant import Compute


@dataclass(frozen=True, slots=True)
class Config:
    model: ModelConfig
    attention: AttentionConfig
    tied: bool  # the head is the embedding


def read_config(fields: Fields) -> Config:
    """Raises `WrongWeights` naming the field that is missing, odd or not supported."""
    if fields.flag("use_sliding_window", False):
        raise fields.refuse("its attention sees a sliding window")
    if fields.flag("attention_bias", False):
        raise fields.refuse("its attention has biases")
    attention = read_attention(fields, gated=False)
    return Config(read_model(fields, attention, fields.whole("intermediate_size")), attention, is_tied(fields))


def read_model(fields: Fields, attention: AttentionConfig, feed_forward: int) -> ModelConfig:
    """What every family has."""
    rope = fields.at("rope_parameters")
    if rope.word("rope_type", "default") != "default" or fields.has("rope_scaling"):
        raise fields.refuse("its positions are scaled")
    if fields.word("hidden_act", "silu") != "silu":
        raise fields.wrong("hidden_act", "`silu`")
    return ModelConfig(
        layers=fields.whole("num_hidden_layers"),
        hidden=fields.whole("hidden_size"),
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        feed_forward=feed_forward,
        vocab=fields.whole("vocab_size"),
        norm_epsilon=fields.real("rms_norm_eps", 1e-6),
        rope_base=rope.real("rope_theta"),
        window=fields.whole("max_position_embeddings"),
        bos_token=fields.token("bos_token_id"),
        eos_token=fields.token("eos_token_id"),
    )


def read_attention(fields: Fields, gated: bool) -> AttentionConfig:
    heads = fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", heads)
    head_dim = fields.whole("head_dim", max(1, fields.whole("hidden_size") // heads))
    if heads % kv_heads:
        raise fields.refuse(f"{heads} heads cannot share {kv_heads} KV heads")
    share = fields.at("rope_parameters").real("partial_rotary_factor", 1.0)
    rope_dim = int(head_dim * share)
    if rope_dim % 2 or not 0 < rope_dim <= head_dim:
        raise fields.refuse(f"{rope_dim} of {head_dim} numbers of a head cannot be turned in pairs")
    return AttentionConfig(heads, kv_heads, head_dim, rope_dim, gated)


def is_tied(fields: Fields) -> bool:
    return fields.flag("tie_word_embeddings", False)


def rope_of(config: ModelConfig, attention: AttentionConfig) -> Rope:
    return Rope(attention.rope_dim, config.rope_base, config.window)


def prepare(fields: Fields, compute: Compute) -> Callable[[Source], Decoder]:
    """Raises `WrongWeights` for a configuration that cannot be read."""
    config = read_config(fields)
    rope = rope_of(config.model, config.attention)
    return lambda source: build(source, config, compute, rope)


def build(source: Source, config: Config, compute: Compute, rope: Rope) -> Decoder:
    model, attention = config.model, config.attention
    root = Reading(source, "", compute, model.norm_epsilon, centred=False)
    body = root.under("model")
    layers = []
    for index in range(model.layers):
        layer = body.under(f"layers.{index}")
        layers.append(
            Layer(
                layer.norm("input_layernorm", model.hidden),
                layer.under("self_attn").attention(attention, model.hidden, index),
                layer.norm("post_attention_layernorm", model.hidden),
                layer.under("mlp").feed_forward(model.hidden, model.feed_forward),
            )
        )
    embedding = body.product(model.hidden, [("embed_tokens", model.vocab)])
    head = embedding if config.tied else root.product(model.hidden, [("lm_head", model.vocab)])
    return Decoder(model, compute.dtype, embedding, layers, body.norm("norm", model.hidden), head, rope)
