"""What a turn of the engine costs by how many wait: while nothing changes, and when something does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from bench.growth.curves import Axis, Curve, line
from bench.growth.still_engine import StillEngine, still_config, without_caches
from bench.growth.turn import collector_at_rest
from bench.turns import progress
from tandem.contract.messages import Cancel
from tandem.contract.plan import Live, Plan
from tandem.engine.round import running_on
from tandem.model.config import ModelConfig

WAITING: Final = (1, 10, 100, 1_000, 10_000)
PROMPT: Final = 32  # rows
ROOM: Final = 8_000  # tokens that a request may write: it outlasts the measurement
WIDE: Final = PROMPT + ROOM
LEVEL: Final = (WIDE,) * 4
TURNS: Final = 200
CHANGES: Final = 30
BETWEEN: Final = 8  # turns, in which whoever started reads its prompt


class Case(NamedTuple):
    """A state of the queue, and the turn that is measured in it."""

    name: str
    measured: Callable[[StillEngine], float]  # seconds
    is_still: bool = True  # it leaves everything as it was
    windows: Sequence[int] = LEVEL
    prepare: Callable[[StillEngine], None] = lambda engine: None


def measure(plan: Plan, *, is_quick: bool) -> tuple[Curve, ...]:
    config = still_config(plan.engine)
    waiting = WAITING[:4] if is_quick else WAITING
    lines = []
    for case in CASES:
        found: dict[float, list[float]] = {}
        for many in waiting:
            progress(f"queue: {case.name}, {many:,} wait")
            repetitions = (TURNS if case.is_still else min(CHANGES, many)) // (5 if is_quick else 1)
            found[many] = _run(case, plan, config, many, max(1, repetitions))
        lines.append(line(case.name, found, scale=1e6))
    axes = Axis("requests that wait", is_log=True), Axis("µs a turn", is_log=True)
    return (Curve("A turn beside a long queue", *axes, tuple(lines)),)


def _run(case: Case, plan: Plan, config: ModelConfig, many: int, repetitions: int) -> list[float]:
    engine = StillEngine(without_caches(plan, case.windows), _patient(plan.live), config)
    engine.turn(*(engine.ask(PROMPT, ROOM) for window in case.windows if window == WIDE))
    engine.turn(*(engine.ask(PROMPT, ROOM) for _ in range(many)))
    case.prepare(engine)
    engine.settle()
    found = []
    with collector_at_rest():
        for _ in range(repetitions):
            found.append(case.measured(engine))
            if not case.is_still:
                engine.turns(BETWEEN)
    return found


def _patient(live: Live) -> Live:
    limits = msgspec.structs.replace(live.limits, max_queue=2 * max(WAITING), request_timeout=1e9)
    return msgspec.structs.replace(live, limits=limits)


def _one_comes(engine: StillEngine) -> float:
    return engine.turn(engine.ask(PROMPT, ROOM))


def _one_ends(engine: StillEngine) -> float:
    """The turn in which another gets its slot."""
    engine.turn(Cancel(running_on(engine.engine.schedule.slots[0]).request.ask.id))
    return engine.turn()


def _free_without_memory(engine: StillEngine) -> None:
    """A slot comes free, and nothing is left above the floor for who would take it."""
    engine.available = engine.floor
    _one_ends(engine)


CASES: Final = (
    Case("nothing changes", StillEngine.turn),
    Case("a slot is free that nobody fits", StillEngine.turn, windows=(WIDE, WIDE, WIDE, PROMPT)),
    Case("the first waits for memory", StillEngine.turn, prepare=_free_without_memory),
    Case("one more comes", _one_comes, is_still=False),
    Case("one ends, the next starts", _one_ends, is_still=False),
)
