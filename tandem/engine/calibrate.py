"""What a joint pass costs here, by its rows and by how far they look back: measured on the model that serves.

Every pass is timed several times and in turns with all others of its context, so that a busy minute of the machine
falls on all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final

import torch

from tandem.draft.price import Price, passes_to_measure, to_prices
from tandem.model.interface import Block, Model, SequenceState, Wants
from tandem.model.tree import Tree

REPETITIONS: Final = 7
_CONTEXTS: Final = 3  # the shortest, a middle one and the longest say enough
_MS: Final = 1000.0


def calibrate(
    model: Model,
    window: int,
    chunk: int,
    clock: Callable[[], float],
    tell: Callable[[int, int], None],
    repetitions: int = REPETITIONS,
) -> list[Price]:
    """Prices of passes of 1 to `model.row_bucket` rows. `tell(done, total)` hears of every pass."""
    passes = _chosen(passes_to_measure(model.row_bucket, window))
    state = model.new_state(min(window, passes[-1][1] + model.row_bucket))
    measured: dict[tuple[int, int], list[float]] = {each: [] for each in passes}
    done, total = 0, len(passes) * repetitions
    read = 0
    luck = random.Random(0)
    for context, group in groupby(passes, key=lambda each: each[1]):
        read = _read(model, state, read, context, chunk)
        counts = [rows for rows, _ in group]
        for rows in counts:
            _time(model, state, rows, context, clock)  # what a device compiles or captures at first is no price
        for _ in range(repetitions):
            luck.shuffle(counts)
            for rows in counts:
                measured[rows, context].append(_time(model, state, rows, context, clock))
                done += 1
                tell(done, total)
    return to_prices(measured)


def _chosen(passes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    passes = list(passes)
    contexts = sorted({context for _, context in passes})
    few = {contexts[round(place * (len(contexts) - 1) / max(1, _CONTEXTS - 1))] for place in range(_CONTEXTS)}
    return [each for each in passes if each[1] in few]


def _read(model: Model, state: SequenceState, start: int, end: int, chunk: int) -> int:
    while start < end:
        stop = min(start - start % chunk + chunk, end)
        model.forward([Block(_tokens(model, stop - start), start, state, Wants.NONE)])
        start = stop
    return end


def _time(model: Model, state: SequenceState, rows: int, context: int, clock: Callable[[], float]) -> float:
    """Milliseconds of one pass as a round has it: guesses in a row, logits on the host, the path settled."""
    shape = Tree([max(0, row - 1) for row in range(rows)]) if rows > 1 else None
    block = Block(_tokens(model, rows), context, state, Wants.ALL, shape)
    snapshot = state.snapshot()
    began = clock()
    model.forward([block]).numpy(force=True)
    if shape is not None:
        state.commit([0])
    took = clock() - began
    state.restore(snapshot)
    return took * _MS


def _tokens(model: Model, count: int) -> torch.Tensor:
    return torch.arange(count) % model.config.vocab
