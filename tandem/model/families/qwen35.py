"""The Qwen3.5 family: Gated DeltaNet layers, every few of them one of gated attention; dense or with experts."""

from __future__ import annotations

from tandem.model.decoder import Decoder, Layer, Mixer
from tandem.model.families.architecture import Architecture, Kind
from tandem.model.families.reading import Reading
from tandem.model.layers import RmsNorm
from tandem.model.mixers import NormedAttention
from tandem.model.mtp import MtpHead, RowNeck
from tandem.model.rope import Rope
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.quant import Compute, Matrix


def build(source: Source, architecture: Architecture, compute: Compute, rope: Rope) -> Decoder:
    model = architecture.model
    root = Reading(source, "", compute, model.norm_epsilon, centred=True)
    body = root.under(body_prefix(source))
    layers = [_layer(body.under(f"layers.{index}"), architecture, index) for index in range(model.layers)]
    embedding, head = root.ends(body, architecture)
    leave = body.norm("norm", model.hidden)
    mtp = _mtp(root.under("mtp"), architecture, leave, embedding, head, rope) if architecture.mtp else None
    return Decoder(model, compute.dtype, embedding, layers, leave, head, rope, placement=source.placement, mtp=mtp)


def body_prefix(source: Source) -> str:
    """Checkpoints that also see pictures keep the language model one name deeper."""
    return "model.language_model" if source.has("model.language_model.embed_tokens.weight") else "model"


def _layer(layer: Reading, architecture: Architecture, index: int) -> Layer:
    if architecture.kinds[index] is Kind.LINEAR:
        return _around(layer.under("linear_attn").delta(architecture, index), layer, architecture)
    return _around(_attention(layer, architecture, index), layer, architecture)


def _attention(layer: Reading, architecture: Architecture, index: int) -> NormedAttention:
    return layer.under("self_attn").normed_attention(architecture.attention, architecture.model.hidden, index)


def _around(mixer: Mixer, layer: Reading, architecture: Architecture) -> Layer:
    model, mlp = architecture.model, layer.under("mlp")
    return Layer(
        layer.norm("input_layernorm", model.hidden),
        mixer,
        layer.norm("post_attention_layernorm", model.hidden),
        mlp.experts(model.hidden, architecture.experts)
        if architecture.experts
        else mlp.feed_forward(model.hidden, model.feed_forward),
    )


def _mtp(
    reading: Reading, architecture: Architecture, leave: RmsNorm, embedding: Matrix, head: Matrix, rope: Rope
) -> MtpHead:
    hidden = architecture.model.hidden
    neck = RowNeck(
        leave,
        reading.norm("pre_fc_norm_embedding", hidden),
        reading.norm("pre_fc_norm_hidden", hidden),
        reading.product(2 * hidden, [("fc", hidden)]),
        reading.norm("norm", hidden),
        reading.compute.dtype,
    )
    attention = _attention(reading.under("layers.0"), architecture, architecture.model.layers)
    layer = _around(attention, reading.under("layers.0"), architecture)
    return MtpHead(neck, layer, layer.mixer_norm, attention, embedding, head, rope)
