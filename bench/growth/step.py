"""The native step by its rows and by what they look back on: the model's pass alone, in this process.

Up to four rows are one of each slot. More are guesses behind them, as lookup drafting brings them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import torch

from bench.growth.curves import Axis, Curve, line
from bench.turns import in_turns, progress
from tandem.contract.plan import EnginePlan
from tandem.model import Block, Model, SequenceState, Wants, load
from tandem.model.tree import chain

ROWS: Final = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS: Final = (64, 256, 1_024, 4_096, 8_000)
SLOTS: Final = 4
REPETITIONS: Final = 12


def measure(plan: EnginePlan, *, is_quick: bool) -> tuple[Curve, ...]:
    """Raises what loading the model raises."""
    model = load(Path(plan.weights), plan.compute, plan.threads)
    torch.set_num_threads(1)  # idle threads of torch's would spin beside the step; an engine lets them sleep
    rows, contexts = (ROWS[::3], CONTEXTS[::2]) if is_quick else (ROWS, CONTEXTS)
    states = [_read_state(model, max(contexts) + max(rows)) for _ in range(SLOTS)]
    cells = [(many, context) for context in contexts for many in rows]
    found: dict[tuple[int, int], list[float]] = {cell: [] for cell in cells}
    for repetition in range(2 if is_quick else REPETITIONS + 1):
        progress(f"step: repetition {repetition} of {REPETITIONS}")
        for cell in in_turns(cells, repetition):
            seconds = _step(model, states, *cell)
            if repetition:  # the first one warms up
                found[cell].append(seconds)
    ms = Axis("ms a step", is_log=True)
    by_rows = [
        line(f"{context:,} before", {many: found[many, context] for many in rows}, scale=1e3) for context in contexts
    ]
    by_context = [
        line(f"{many} row{'s' if many > 1 else ''}", {context: found[many, context] for context in contexts}, scale=1e3)
        for many in rows
    ]
    return (
        Curve("A step by its rows", Axis("rows", is_log=True), ms, tuple(by_rows)),
        Curve("A step by its context", Axis("rows looked back on", is_log=True), ms, tuple(by_context)),
    )


def _read_state(model: Model, rows: int) -> SequenceState:
    """One whose rows hold zeros: attention takes as long over them as over any other."""
    state = model.new_state(min(model.config.window, rows))
    for tensor in (*state.keys, *state.values):
        tensor.zero_()
    return state


def _step(model: Model, states: list[SequenceState], rows: int, context: int) -> float:
    """Seconds of one, over as many slots as have a row."""
    slots = states[: min(rows, len(states))]
    each = rows // len(slots)
    blocks = [
        Block(torch.arange(each), context, state, Wants.ALL, chain(each) if each > 1 else None) for state in slots
    ]
    began = time.perf_counter()
    model.forward(blocks)
    seconds = time.perf_counter() - began
    for block in blocks:
        if block.tree is not None:
            block.state.commit([0])
    return seconds
