"""The Qwen3 family, dense: as Llama, with normed queries and keys."""

from __future__ import annotations

from tandem.model.decoder import Decoder, Layer
from tandem.model.families.architecture import Architecture
from tandem.model.families.reading import Reading
from tandem.model.rope import Rope
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.quant import Compute


def build(source: Source, architecture: Architecture, compute: Compute, rope: Rope) -> Decoder:
    model = architecture.model
    root = Reading(source, "", compute, model.norm_epsilon, centred=False)
    body = root.under("model")
    layers = []
    for index in range(model.layers):
        layer = body.under(f"layers.{index}")
        layers.append(
            Layer(
                layer.norm("input_layernorm", model.hidden),
                layer.under("self_attn").normed_attention(architecture.attention, model.hidden, index),
                layer.norm("post_attention_layernorm", model.hidden),
                layer.under("mlp").feed_forward(model.hidden, model.feed_forward),
            )
        )
    embedding, head = root.ends(body, architecture)
    leave = body.norm("norm", model.hidden)
    return Decoder(model, compute.dtype, embedding, layers, leave, head, rope, placement=source.placement)
