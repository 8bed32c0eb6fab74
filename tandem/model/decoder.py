"""The skeleton that families share: rows enter, go through layers, leave as logits.

A family decides what a layer is and how a row's residual stream looks; this only runs them, joint pass by joint
pass. It knows no slots, no requests and no sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from tandem.model.bucket import LARGEST, RowFunction, measure_row_bucket
from tandem.model.config import ModelConfig
from tandem.model.graphs import Rounds
from tandem.model.interface import Block
from tandem.model.layers import RmsNorm, gated_silu
from tandem.model.mtp import MtpHead
from tandem.model.passes import Pass, passes
from tandem.model.placement import HOST, Placement, moved
from tandem.model.rope import Rope
from tandem.model.state import Allocate, Part, SequenceState, allocate_on
from tandem.model.weights.quant import Matrix, Projection


class Mixer(Protocol):
    def new_parts(self, window: int, allocate: Allocate) -> list[Part]:
        """What it keeps of one sequence."""
        ...

    def products(self) -> Iterator[Projection]:
        """Its weight matrices."""
        ...

    def __call__(self, rows: Tensor, run: Pass, turns: Tensor) -> Tensor: ...


class FeedForwardLike(Protocol):
    def products(self) -> Iterator[Projection]: ...

    def gated_widths(self) -> Iterator[int]:
        """Of the rows between its two products."""
        ...

    def __call__(self, rows: Tensor) -> Tensor: ...


class LayerLike(Protocol):
    def new_parts(self, window: int, allocate: Allocate) -> list[Part]: ...

    def products(self) -> Iterator[Projection]: ...

    def gated_widths(self) -> Iterator[int]: ...

    def __call__(self, stream: Tensor, run: Pass, turns: Tensor) -> Tensor:
        """The residual stream after the layer; may change it in place."""
        ...


@dataclass(frozen=True, slots=True)
class Layer:
    """Norm, mix, add; norm, feed forward, add."""

    mixer_norm: RmsNorm
    mixer: Mixer
    feed_forward_norm: RmsNorm
    feed_forward: FeedForwardLike

    def new_parts(self, window: int, allocate: Allocate) -> list[Part]:
        return self.mixer.new_parts(window, allocate)

    def products(self) -> Iterator[Projection]:
        yield from self.mixer.products()
        yield from self.feed_forward.products()

    def gated_widths(self) -> Iterator[int]:
        return self.feed_forward.gated_widths()

    def __call__(self, stream: Tensor, run: Pass, turns: Tensor) -> Tensor:
        stream += self.mixer(self.mixer_norm(stream), run, turns)
        stream += self.feed_forward(self.feed_forward_norm(stream))
        return stream


class Decoder:
    """Implements `interface.Model`."""

    is_row_invariant = False  # long products sum in another order than short ones

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        embedding: Matrix,
        layers: Sequence[LayerLike],
        leave: Callable[[Tensor], Tensor],  # the residual stream -> normed rows
        head: Projection,
        rope: Rope,
        streams: int = 1,  # copies of a row that the layers carry: [rows, streams, hidden] when more than one
        placement: Placement = HOST,
        captured: bool = True,  # its layers run on a round's tables alone, so a round can be captured
        mtp: MtpHead | None = None,
    ) -> None:
        self.config = config
        self.mtp = mtp
        self._dtype = dtype
        self._embedding = embedding
        self._layers = layers
        self._leave = leave
        self._head = head
        self._rope = rope
        self._streams = streams
        self._placement = placement
        self._rounds = Rounds(self._round, placement) if placement.kernels and captured else None

    @cached_property
    def row_bucket(self) -> int:
        if self._placement.kernels:
            return LARGEST  # by construction: a pass of few rows has one shape
        return measure_row_bucket(self._row_functions(), self._dtype)

    def new_state(self, window: int, allocate: Allocate | None = None) -> SequenceState:
        allocate = allocate or allocate_on(self._placement.device)
        if not 0 < window <= self.config.window:
            raise ValueError(f"a window of {window} rows; the model has 1 to {self.config.window}")
        layers = [layer.new_parts(window, allocate) for layer in self._layers]
        mtp = None if self.mtp is None else self.mtp.new_rows(window, allocate)
        return SequenceState(window, self._dtype, layers, mtp)

    @torch.inference_mode()
    def forward(self, blocks: Sequence[Block]) -> Tensor:
        few = LARGEST if self._placement.kernels else 0
        runs = passes(blocks, self.row_bucket, self._placement.device, fill_to=0 if self._rounds else few)
        logits = [self._run(each, alone=len(runs) == 1) for each in runs]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _run(self, run: Pass, alone: bool) -> Tensor:
        """One run of the weights; float32 logits of the wanted rows."""
        if self._rounds is not None and run.tokens.shape[0] <= LARGEST:
            stream, logits = self._rounds.run(run, alone)
            if self.mtp is not None:
                self.mtp.read(stream, run)
            return logits
        stream = self._through(run)
        if self.mtp is not None:
            self.mtp.read(stream, run)
        wanted = run.wanted
        if wanted is not None and wanted.shape[0] and self._placement.kernels and stream.shape[0] <= LARGEST:
            return self._answer(stream).index_select(0, wanted)  # in the one shape that few rows have there
        if wanted is not None:
            stream = stream.index_select(0, wanted)
        return self._answer(stream) if stream.shape[0] else torch.empty(0, self.config.vocab, device=stream.device)

    def _round(self, run: Pass) -> tuple[Tensor, Tensor]:
        stream = self._through(run)
        return stream, self._answer(stream)

    def _answer(self, stream: Tensor) -> Tensor:
        return self._head(self._leave(stream)).float()

    def _through(self, run: Pass) -> Tensor:
        """The residual stream behind the last layer."""
        turns = self._rope.at(run.positions)
        stream = self._embedding.lookup(moved(run.tokens, self._placement.device))  # float32 [rows, hidden]
        if self._streams > 1:
            stream = stream[:, None].repeat(1, self._streams, 1)
        for layer in self._layers:
            stream = layer(stream, run, turns)
        return stream

    def _row_functions(self) -> Iterator[tuple[RowFunction, int]]:
        """One of each kind and shape of what runs over all rows of a pass at once."""
        if self._streams == 1:
            yield self._leave, self.config.hidden
        layers: list[LayerLike | MtpHead] = [*self._layers, *((self.mtp,) if self.mtp else ())]
        products = [self._head, *(product for layer in layers for product in layer.products())]
        for product in {(type(each), each.shape): each for each in products}.values():
            yield product, product.shape[1]
        for width in {width for layer in layers for width in layer.gated_widths()}:
            yield gated_silu, 2 * width
