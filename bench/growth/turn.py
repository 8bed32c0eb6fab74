"""What a turn of the engine costs beside the model's pass, by the slots that write: scheduling, sampling, sending.

All of it is on the device thread, so it is added to every round.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from bench.growth.curves import Axis, Curve, line
from bench.growth.still_engine import GREEDY, StillEngine, still_config, without_caches
from bench.turns import progress
from tandem.contract.messages import Sampling
from tandem.contract.plan import Plan
from tandem.model.config import ModelConfig

SLOTS = (1, 2, 3, 4, 5, 6, 7, 8)
PROMPT = 32  # rows
TURNS = 400
DRAWN = Sampling(temperature=0.8, top_p=0.95, seed=1)


def measure(plan: Plan, *, is_quick: bool) -> tuple[Curve, ...]:
    config = still_config(plan.engine)
    turns, slots = (40, (1, 4, 8)) if is_quick else (TURNS, SLOTS)
    kinds = {"greedy": GREEDY, "drawn, top_p 0.95": DRAWN}
    lines = []
    for name, sampling in kinds.items():
        found: dict[float, list[float]] = {}
        for many in slots:
            progress(f"turn: {name}, {many} slots")
            found[many] = _turns(plan, config, many, sampling, turns)
        lines.append(line(name, found, scale=1e6))
    title = "A turn beside the pass"
    return (Curve(title, Axis("slots that write"), Axis("µs a turn"), tuple(lines)),)


def _turns(plan: Plan, config: ModelConfig, slots: int, sampling: Sampling, turns: int) -> list[float]:
    window = PROMPT + 2 * turns + 64
    engine = StillEngine(without_caches(plan, [window] * slots), plan.live, config)
    engine.turn(*(engine.ask(PROMPT, 2 * turns + 32, sampling) for _ in range(slots)))
    engine.settle()
    with collector_at_rest():
        return [engine.turn() for _ in range(turns)]


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """As in the engine, where what was loaded is frozen before the first request."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
