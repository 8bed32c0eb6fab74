"""The Llama family: RMS norm, rotary positions, grouped attention, gated SiLU. From a checkpoint directory."""

from __future__ import annotations

from collections.abc import Callable

from tandem.model.config import AttentionConfig
from tandem.model.decoder import Decoder, Layer
from tandem.model.families.architecture import Architecture
from tandem.model.families.reading import Reading
from tandem.model.mixers import Attention
from tandem.model.rope import Rope
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.quant import Compute


def build(
    source: Source,
    architecture: Architecture,
    compute: Compute,
    rope: Rope,
    attention: Callable[[Reading, AttentionConfig, int, int], Attention] = Reading.attention,
) -> Decoder:
    """`attention` reads a layer's: what distinguishes the dense families."""
    model = architecture.model
    root = Reading(source, "", compute, model.norm_epsilon, centred=False)
    body = root.under("model")
    layers = []
    for index in range(model.layers):
        layer = body.under(f"layers.{index}")
        layers.append(
            Layer(
                layer.norm("input_layernorm", model.hidden),
                attention(layer.under("self_attn"), architecture.attention, model.hidden, index),
                layer.norm("post_attention_layernorm", model.hidden),
                layer.under("mlp").feed_forward(model.hidden, model.feed_forward),
            )
        )
    embedding, head = root.ends(body, architecture)
    leave = body.norm("norm", model.hidden)
    return Decoder(model, compute.dtype, embedding, layers, leave, head, rope, placement=source.placement)
