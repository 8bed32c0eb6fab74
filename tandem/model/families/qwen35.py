"""The Qwen3.5 family: Gated DeltaNet layers, every few of them one of gated attention; dense or with experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torch.nn import functional

from tandem.model.config import ModelConfig
from tandem.model.decoder import Decoder, Layer, Mixer
from tandem.model.families.fields import Fields
from tandem.model.families.qwen3 import is_tied, read_attention, read_model, rope_of
from tandem.model.families.reading import Reading
from tandem.model.mixers import AttentionConfig, DeltaConfig
from tandem.model.moe import ExpertsConfig
from tandem.model.rope import Rope
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.quant import Compute

UNREAD: Final = ("model.visual.", "mtp.")
"""Parts of a checkpoint that this family does not read: pictures, and the head that guesses ahead."""

LINEAR: Final = "linear_attention"
FULL: Final = "full_attention"


@dataclass(frozen=True, slots=True)
class Config:
    model: ModelConfig
    kinds: tuple[str, ...]  # LINEAR or FULL, one a layer
    attention: AttentionConfig
    delta: DeltaConfig
    experts: ExpertsConfig | None
    tied: bool


def read_config(fields: Fields) -> Config:
    """Raises `WrongWeights` naming the field that is missing, odd or not supported."""
    text = fields.at("text_config")
    attention = read_attention(text, gated=True)
    experts = read_experts(text) if text.has("num_experts") else None
    feed_forward = text.whole("intermediate_size") if experts is None else experts.width
    return Config(
        model=read_model(text, attention, feed_forward),
        kinds=read_kinds(text, (LINEAR, FULL)),
        attention=attention,
        delta=read_delta(text),
        experts=experts,
        tied=is_tied(fields) or is_tied(text),
    )


def read_kinds(fields: Fields, known: tuple[str, ...]) -> tuple[str, ...]:
    """One kind a layer: spelled out, or every so many-th of the second kind known."""
    layers = fields.whole("num_hidden_layers")
    interval = fields.whole("full_attention_interval", 4)
    usual = [known[1] if (index + 1) % interval == 0 else known[0] for index in range(layers)]
    kinds = tuple(fields.list_of("layer_types", str, usual))
    if len(kinds) != layers or not set(kinds) <= set(known):
        raise fields.wrong("layer_types", f"{layers} of {' or '.join(f'`{kind}`' for kind in known)}")
    return kinds


def read_delta(fields: Fields) -> DeltaConfig:
    config = DeltaConfig(
        key_heads=fields.whole("linear_num_key_heads", 16),
        value_heads=fields.whole("linear_num_value_heads", 32),
        key_dim=fields.whole("linear_key_head_dim", 128),
        value_dim=fields.whole("linear_value_head_dim", 128),
        taps=fields.whole("linear_conv_kernel_dim", 4),
    )
    if config.value_heads % config.key_heads:
        raise fields.refuse(f"{config.value_heads} value heads cannot share {config.key_heads} key heads")
    return config


def read_experts(fields: Fields) -> ExpertsConfig:
    config = ExpertsConfig(
        experts=fields.whole("num_experts"),
        chosen=fields.whole("num_experts_per_tok"),
        width=fields.whole("moe_intermediate_size"),
        shared_width=fields.whole("shared_expert_intermediate_size"),
    )
    if config.chosen > config.experts:
        raise fields.wrong("num_experts_per_tok", f"at most {config.experts}, the number of experts")
    return config


def prepare(fields: Fields, compute: Compute) -> Callable[[Source], Decoder]:
    """Raises `WrongWeights` for a configuration that cannot be read."""
    config = read_config(fields)
    rope = rope_of(config.model, config.attention)
    return lambda source: build(source, config, compute, rope)


def body_prefix(source: Source) -> str:
    """Checkpoints that also see pictures keep the language model one name deeper."""
    return "model.language_model" if source.has("model.language_model.embed_tokens.weight") else "model"


def build(source: Source, config: Config, compute: Compute, rope: Rope) -> Decoder:
    model = config.model
    root = Reading(source, "", compute, model.norm_epsilon, centred=True)
    body = root.under(body_prefix(source))
    layers = []
    for index, kind in enumerate(config.kinds):
        layer = body.under(f"layers.{index}")
        mixer: Mixer
        if kind == LINEAR:
            mixer = layer.under("linear_attn").delta(config.delta, model.hidden, index, functional.silu)
        else:
            mixer = layer.under("self_attn").attention(config.attention, model.hidden, index)
        mlp = layer.under("mlp")
        layers.append(
            Layer(
                layer.norm("input_layernorm", model.hidden),
                mixer,
                layer.norm("post_attention_layernorm", model.hidden),
                mlp.feed_forward(model.hidden, model.feed_forward)
                if config.experts is None
                else mlp.experts(model.hidden, config.experts),
            )
        )
    embedding = body.product(model.hidden, [("embed_tokens", model.vocab)])
    head = embedding if config.tied else root.product(model.hidden, [("lm_head", model.vocab)])
    return Decoder(model, compute.dtype, embedding, layers, body.norm("norm", model.hidden), head, rope)
