"""The Qwen3.5 family: Gated DeltaNet layers, every few of them one of gated attention; dense or with experts."""

from __future__ import annotations

from tandem.model.decoder import Decoder, Layer, Mixer
from tandem.model.families.architecture import Architecture, Kind
from tandem.model.families.reading import Reading
from tandem.model.rope import Rope
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.quant import Compute


def build(source: Source, architecture: Architecture, compute: Compute, rope: Rope) -> Decoder:
    model = architecture.model
    root = Reading(source, "", compute, model.norm_epsilon, centred=True)
    body = root.under(body_prefix(source))
    layers = [_layer(body.under(f"layers.{index}"), architecture, index) for index in range(model.layers)]
    embedding, head = root.ends(body, architecture)
    leave = body.norm("norm", model.hidden)
    return Decoder(model, compute.dtype, embedding, layers, leave, head, rope, placement=source.placement)


def body_prefix(source: Source) -> str:
    """Checkpoints that also see pictures keep the language model one name deeper."""
    return "model.language_model" if source.has("model.language_model.embed_tokens.weight") else "model"


def _layer(layer: Reading, architecture: Architecture, index: int) -> Layer:
    model, mlp = architecture.model, layer.under("mlp")
    mixer: Mixer
    if architecture.kinds[index] is Kind.LINEAR:
        mixer = layer.under("linear_attn").delta(architecture, index)
    else:
        mixer = layer.under("self_attn").normed_attention(architecture.attention, model.hidden, index)
    return Layer(
        layer.norm("input_layernorm", model.hidden),
        mixer,
        layer.norm("post_attention_layernorm", model.hidden),
        mlp.experts(model.hidden, architecture.experts)
        if architecture.experts
        else mlp.feed_forward(model.hidden, model.feed_forward),
    )
