"""`/livez`, `/readyz`, `/health`: three questions. Does the process answer; would a request be served now; and how
does everything stand."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from tandem.contract import keys
from tandem.contract.messages import (
    ApplianceState,
    Health,
    ProgramStatus,
    ReloadReport,
    RoleStatus,
    SideDisk,
    SlotView,
    Turn,
)
from tandem.contract.plan import Limits, Plan, read_plan
from tandem.gateway.engine_client import EngineState, EngineStatus
from tandem.gateway.service import Service

_MAX_AGE: Final = 0.5  # a health older than this is asked for anew
_WAIT: Final = 0.5


class Ready(Struct, frozen=True):
    ready: bool
    status: str  # ready | loading | draining | failed | hung | away
    sentence: str
    progress: float  # of loading, 0 to 1


class LoadingError(Struct, frozen=True):
    """llama.cpp's body while it loads, which clients and start scripts look for."""

    code: int = 503
    message: str = "Loading model"
    type: str = "unavailable_error"


class MemoryNow(Struct, frozen=True):
    available: int
    total: int
    at: float
    parts: dict[str, int]  # of what is in use; they sum to total - available
    free_blocks: int | None  # bytes in free blocks of 2 MiB and more: what huge and device pages are cut from


class AdmissionNow(Struct, frozen=True):
    """Bytes: what those who run may still take, and what the first in the queue waits for."""

    reserved: int
    needed: int
    left: int


class ParallelNow(Struct, frozen=True):
    """How requests share the slots. Counts are of requests, since the engine started."""

    slots: tuple[SlotView, ...]
    requested: int  # slots
    max_running: int  # that may run at once now
    max_running_reason: str
    peak_running: int  # that ran at once
    turn: Turn  # who has the device now
    rounds_by_size: dict[int, int]  # slots that decoded together -> rounds
    admission: AdmissionNow
    waits: dict[str, int]  # by what was waited for
    spill_waits: int  # for slot 0 to bring a conversation back
    slot0_gave_up: int  # that wanted slot 0 and went to a side slot when it stayed busy
    yielded: int  # of the appliance's own that gave way to a client
    side_disk: SideDisk


class Summary(Struct, frozen=True, kw_only=True):
    """`/health` for whoever shows no key to an appliance that has keys."""

    status: str  # ok | loading | draining | failed | hung | away
    ready: bool
    sentence: str
    progress: float
    error: LoadingError | None


class WholeState(Summary, frozen=True, kw_only=True):
    """`/health`. What the director says is null until it has spoken."""

    plan: str
    model: str
    phase: str
    started_at: float
    in_flight: int
    engine: Health | None
    parallel: ParallelNow | None  # with side slots, once the engine has spoken
    limits: Limits
    programs: tuple[ProgramStatus, ...]
    reload: ReloadReport | None
    memory: MemoryNow | None
    placements: Any  # residency's last answers, with their figures
    roles: tuple[RoleStatus, ...]
    ledger_rows_lost: int
    warnings: tuple[str, ...]  # what is allowed, and seldom meant


async def readiness(service: Service) -> Ready:
    """Asks the engine, briefly, when its last word is not fresh."""
    return ready_of(await service.engine.refresh(_MAX_AGE, _WAIT), service.is_draining)


def ready_of(status: EngineStatus, is_draining: bool) -> Ready:
    if is_draining:
        return Ready(False, EngineState.DRAINING, "running requests are finished first", status.progress)
    return Ready(status.state is EngineState.READY, status.state, status.sentence, status.progress)


def summary_of(ready: Ready) -> Summary:
    word = "ok" if ready.ready else ready.status
    is_loading = ready.status in (EngineState.LOADING, EngineState.AWAY)
    error = LoadingError() if is_loading else LoadingError(message=ready.sentence)
    return Summary(
        status=word,
        ready=ready.ready,
        sentence=ready.sentence,
        progress=ready.progress,
        error=None if ready.ready else error,
    )


def whole_state(service: Service, ready: Ready) -> WholeState:
    state = service.director.state
    return WholeState(
        **msgspec.structs.asdict(summary_of(ready)),
        plan=state.plan_id if state is not None else service.plan.id,
        model=service.plan.gateway.model,
        phase=state.phase if state is not None else "unknown",
        started_at=service.started_at,
        in_flight=service.in_flight,
        engine=service.engine.health,
        parallel=parallel_now(service.engine.health),
        limits=service.live.limits,
        programs=state.programs if state is not None else (),
        reload=state.reload if state is not None else None,
        memory=memory_now(state) if state is not None else None,
        placements=msgspec.json.decode(state.placements) if state is not None else None,
        roles=state.roles if state is not None else (),
        ledger_rows_lost=service.ledger.num_lost,
        warnings=warnings_now(service.plan),
    )


def parallel_now(health: Health | None) -> ParallelNow | None:
    if health is None or health.parallel is None or health.counters is None or len(health.slots) < 2:
        return None
    said, counters = health.parallel, health.counters
    return ParallelNow(
        slots=health.slots,
        requested=said.requested,
        max_running=said.max_running,
        max_running_reason=said.max_running_reason,
        peak_running=counters.peak_running,
        turn=said.turn,
        rounds_by_size=counters.rounds_by_size,
        admission=AdmissionNow(health.reserved, said.memory_needed, said.memory_left),
        waits=said.waits,
        spill_waits=said.waits.get("spill_wait", 0),
        slot0_gave_up=said.slot0_gave_up,
        yielded=said.yielded,
        side_disk=said.side_disk,
    )


def memory_now(state: ApplianceState) -> MemoryNow:
    view = state.memory
    parts = {part.name: part.bytes for part in view.parts} if view is not None else {}
    blocks = view.free_blocks if view is not None else None
    return MemoryNow(state.memory_available, state.memory_total, state.at, parts, blocks)


def warnings_now(plan: Plan) -> tuple[str, ...]:
    """Of the plan that holds now: an edit that restarts nothing here has replaced the one we were started under."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):  # else of the one we know
        plan = read_plan(Path(plan.paths.run))
    return keys.warnings_now(plan)
