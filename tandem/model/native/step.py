"""The native step as the model calls it: one pass of at most `MOST_ROWS` rows in, float32 logits out.

A row's activations are rounded to 8 bits a half group of 16 before a product with 4 or 8 bits, and stay float32 before
one with 16: its bits differ from torch's path on the same weights, and do not depend on the rows beside it. KV rows are
bfloat16, written and read in place.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import byref
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tandem.model.config import ModelConfig
from tandem.model.native.blocks import Blocks
from tandem.model.native.library import LayerC, MatrixC, ModelC, PassC, ShapeC, SpanC, families, library
from tandem.model.passes import Pass
from tandem.model.state import SequenceState

MOST_ROWS: Final = 64  # of one pass; `MOST_ROWS` of step.h
MOST_THREADS: Final = 64  # `Team::MOST` of team.h


@dataclass(frozen=True, slots=True, eq=False)
class StepLayer:
    """One layer's weights. Norms are float32."""

    attention_norm: Tensor  # [hidden]
    qkv: Blocks
    attention_output: Blocks
    feed_forward_norm: Tensor  # [hidden]
    gate_up: Blocks
    down: Blocks
    query_norm: Tensor | None = None  # [head_dim]
    key_norm: Tensor | None = None


class NativeStep:
    def __init__(
        self,
        config: ModelConfig,
        layers: Sequence[StepLayer],
        last_norm: Tensor,
        head: Blocks,
        threads: int,
        turn_halves: bool,
        family: str | None = None,
    ) -> None:
        """`family` is one of `families()`, by default the best of them. Sizes must suit `fits`."""
        found = library()
        assert found is not None and self.fits(config), "nothing is compiled, or sizes do not suit: ask first"
        self.family = family or families()[0]
        self._index = families().index(self.family)
        self._library = found
        self._config = config
        self._weights = (tuple(layers), last_norm, head)  # the structs below only point at them
        self._layers = (LayerC * len(layers))(*(_layer(layer) for layer in layers))
        shape = ShapeC(
            config.layers,
            config.hidden,
            config.feed_forward,
            config.heads,
            config.kv_heads,
            config.head_dim,
            turn_halves,
            config.norm_epsilon,
        )
        self._model = ModelC(shape, self._layers, last_norm.data_ptr(), _matrix(head))
        self._team = found.tandem_team(min(threads, MOST_THREADS))
        weakref.finalize(self, found.tandem_disband, self._team)
        self._places: weakref.WeakKeyDictionary[SequenceState, ctypes.Array[ctypes.c_void_p]] = (
            weakref.WeakKeyDictionary()
        )

    @staticmethod
    def pays() -> bool:
        """Whether it was compiled, and this processor has vectors it is written for. Elsewhere torch is faster."""
        return families()[:1] not in ((), ("portable",))

    @staticmethod
    def fits(config: ModelConfig) -> bool:
        """Whether sizes are multiples of what the step computes at a time."""
        return config.head_dim % 32 == 0 and config.hidden % 32 == 0 and config.feed_forward % 32 == 0

    def __call__(self, run: Pass, stream: Tensor, turns: Tensor) -> Tensor:
        """`stream` float32 [rows, hidden] is changed in place; `turns` float32 [rows, head_dim] are cosine and sine of
        each pair. Returns float32 logits [wanted rows, vocab]."""
        rows = stream.shape[0]
        assert rows <= MOST_ROWS, "more rows than a step has room for"
        wanted = torch.arange(rows, dtype=torch.int32) if run.wanted is None else run.wanted.int()
        logits = torch.empty(wanted.shape[0], self._model.head.outputs)
        parents = torch.tensor([parent for span in run.spans for parent in span.tree.parents], dtype=torch.int32)
        spans = (SpanC * len(run.spans))(
            *(
                SpanC(ctypes.addressof(self._kv(span.state)), span.state.window, span.start, span.first, span.rows)
                for span in run.spans
            )
        )
        pointers = (each.data_ptr() for each in (parents, turns, wanted, stream, logits))
        given = PassC(rows, len(run.spans), wanted.shape[0], 0, spans, *pointers)
        self._library.tandem_step(self._index, byref(self._model), byref(given), self._team)
        return logits

    def _kv(self, state: SequenceState) -> ctypes.Array[ctypes.c_void_p]:
        """Where each layer's keys begin. A state's tensors never move."""
        places = self._places.get(state)
        if places is None:
            layers = self._config.layers
            places = (ctypes.c_void_p * layers)(*(state.kv(layer).data_ptr() for layer in range(layers)))
            self._places[state] = places
        return places


def _layer(layer: StepLayer) -> LayerC:
    matrices = (layer.qkv, layer.attention_output, layer.gate_up, layer.down)
    norms = (layer.attention_norm, layer.feed_forward_norm, layer.query_norm, layer.key_norm)
    return LayerC(*map(_matrix, matrices), *(None if norm is None else norm.data_ptr() for norm in norms))


def _matrix(blocks: Blocks) -> MatrixC:
    return MatrixC(blocks.data.data_ptr(), blocks.outputs, blocks.inputs, blocks.bits)
