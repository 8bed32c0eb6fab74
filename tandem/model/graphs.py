"""Rounds as one replay: the whole pass is captured once, on tables that belong to nobody, and every round writes its
tables and replays.

One graph serves all rounds, because all have one shape: sixteen rows, and in the tables who they are, where their
sequences lie and how long those are. Nothing in a round waits for the device; whoever reads the logits does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.model.passes import Pass
from tandem.model.placement import Placement, moved
from tandem.model.rounds import RoundTables, shape_of

Body = Callable[[Pass], tuple[Tensor, Tensor]]
"""A pass on tables -> the residual stream [16, ...] and float32 logits [16, vocab]."""

Capture = Callable[[Callable[[], tuple[Tensor, Tensor]]], Callable[[], tuple[Tensor, Tensor]]]
"""Something that can be run -> what runs it again and answers in the same tensors."""


@dataclass(slots=True)
class Replay:
    """A body bound to its tables."""

    tables: RoundTables
    run: Callable[[], tuple[Tensor, Tensor]]


class Rounds:
    """Runs passes of at most 16 rows. One a model; one thread uses it."""

    def __init__(self, body: Body, placement: Placement, capture: Capture | None = None) -> None:
        """`capture` is the device's unless another is given; none without graphs."""
        self._body = body
        self._device = placement.device
        self._capture = capture or (CudaCapture(placement.device) if placement.graphs else _as_it_is)
        self._replays: dict[tuple[int, ...], Replay] = {}  # by the parts of a state: one, in a running engine

    def run(self, run: Pass, alone: bool) -> tuple[Tensor, Tensor]:
        """The stream of the pass's rows and the logits of those wanted, copied out of the graph's own tensors.

        `alone`: no other pass comes before its trees are settled, so what they hold need not be copied.
        """
        shape = shape_of(run.spans[0].state)
        if shape not in self._replays:
            self._replays[shape] = self._bind(shape)
        replay = self._replays[shape]
        told = RoundTables(torch.empty(RoundTables.size(shape), dtype=torch.int64), shape)
        told.tell(run)
        replay.tables.numbers.copy_(moved(told.numbers, self._device))
        stream, logits = replay.run()
        for span in run.spans:
            if not span.settled:
                replay.tables.give_held(span, copied=not alone)
        rows = run.tokens.shape[0]
        wanted = logits[:rows].clone() if run.wanted is None else logits.index_select(0, run.wanted)
        return stream[:rows], wanted

    def _bind(self, shape: tuple[int, ...]) -> Replay:
        numbers = torch.zeros(RoundTables.size(shape), dtype=torch.int64, device=self._device)
        tables = RoundTables(numbers, shape)
        tables.clear()  # captured as a round of nobody: compiling and warming up touch no sequence
        run = Pass(tables.tokens, tables.positions, (), wanted=None, tables=tables)
        return Replay(tables, self._capture(lambda: self._body(run)))


def _as_it_is(body: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], tuple[Tensor, Tensor]]:
    return body


class CudaCapture:
    """Captures on a stream of its own into a memory pool of its own; replays stand in line on the caller's stream."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, body: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], tuple[Tensor, Tensor]]:
        here = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            for _ in range(2):  # the first compiles the kernels, the second finds every library ready
                body()
        here.wait_stream(self._stream)
        torch.cuda.synchronize(self._stream.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            answer = body()

        def replay() -> tuple[Tensor, Tensor]:
            graph.replay()
            return answer

        return replay
