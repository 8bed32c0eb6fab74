"""The Qwen3 family, dense: as Llama, with normed queries and keys."""

from __future__ import annotations

from tandem.model.decoder import Decoder
from tandem.model.families import llama
from tandem.model.families.architecture import Architecture
from tandem.model.families.reading import Reading
from tandem.model.rope import Rope
from tandem.model.weights.checkpoint import Source
from tandem.model.weights.quant import Compute


def build(source: Source, architecture: Architecture, compute: Compute, rope: Rope) -> Decoder:
    return llama.build(source, architecture, compute, rope, Reading.normed_attention)
