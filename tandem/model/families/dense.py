"""The dense families (llama, qwen3) in the native step: which tensors it needs, whatever their source calls them.

Packing is the source's: `Weights.matrix` is the one place where stored matrices become blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem.model.config import ModelConfig
from tandem.model.families.names import Names
from tandem.model.native.blocks import Blocks
from tandem.model.native.model import NativeModel
from tandem.model.native.step import NativeStep, StepLayer
from tandem.model.rope import Rope
from tandem.model.weights.quant import Compute

log = logging.getLogger("tandem.engine")


class Weights(Protocol):
    """Where the weights of one model are stored."""

    def matrix(self, width: int, parts: Sequence[tuple[str, int]]) -> Blocks:
        """The matrices `parts` (name, outputs) of `width` inputs, stacked and packed."""
        ...

    def norm(self, name: str, width: int) -> Tensor:
        """float32 [width]"""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """All weights of a model, packed."""

    embedding: Blocks
    layers: list[StepLayer]
    last_norm: Tensor
    head: Blocks


def why_in_torch(config: ModelConfig, compute: Compute) -> str | None:
    """Why the native step does not take over here; None: it does."""
    if compute is Compute.FLOAT32:
        return "float32 is the reference"
    if not NativeStep.pays():
        return "the native step was not compiled, or has nothing for this processor"
    if not NativeStep.fits(config) or not Blocks.fits((config.vocab, config.hidden)):
        return "sizes of this model are no multiples of what the native step computes at a time"
    return None


def read(config: ModelConfig, weights: Weights, names: Names, tied: bool, normed: bool) -> Parts:
    """`tied`: the head is the embedding. `normed`: queries and keys are."""
    width, kv_width = config.query_width, config.kv_width

    def read_layer(index: int) -> StepLayer:
        at = names.layer.format(index)
        qkv = zip((f"{at}{name}" for name in names.qkv), (width, kv_width, kv_width), strict=True)
        return StepLayer(
            attention_norm=weights.norm(at + names.attention_norm, config.hidden),
            qkv=weights.matrix(config.hidden, list(qkv)),
            query_norm=weights.norm(at + names.query_norm, config.head_dim) if normed else None,
            key_norm=weights.norm(at + names.key_norm, config.head_dim) if normed else None,
            attention_output=weights.matrix(width, [(at + names.attention_output, config.hidden)]),
            feed_forward_norm=weights.norm(at + names.feed_forward_norm, config.hidden),
            gate_up=weights.matrix(config.hidden, [(at + name, config.feed_forward) for name in names.gate_up]),
            down=weights.matrix(config.feed_forward, [(at + names.down, config.hidden)]),
        )

    # The widest first: what packing takes beside it is there for a moment, while little else is.
    embedding = weights.matrix(config.hidden, [(names.embedding, config.vocab)])
    head = embedding if tied else weights.matrix(config.hidden, [(names.head, config.vocab)])
    layers = [read_layer(index) for index in range(config.layers)]
    return Parts(embedding, layers, weights.norm(names.last_norm, config.hidden), head)


def build(config: ModelConfig, parts: Parts, rope: Rope, turn_halves: bool) -> NativeModel:
    """`turn_halves`: number i of a head turns with i + head_dim / 2, not with its neighbour."""
    step = NativeStep(config, parts.layers, parts.last_norm, parts.head, torch.get_num_threads(), turn_halves)
    log.info("passes run in the native step (%s)", step.family)
    return NativeModel(config, step, parts.embedding, rope)
