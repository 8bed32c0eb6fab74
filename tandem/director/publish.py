"""What the director tells everybody: one picture of the appliance, made from what it remembers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tandem.contract.messages import ApplianceState, ProgramStatus
from tandem.contract.plan import Plan
from tandem.director.decide import UNANSWERED
from tandem.director.state import VITAL, Answer, ProgramState, Record, State, names
from tandem.memory.reading import MemoryReading
from tandem.memory.view import memory_view

FAILED_AFTER: Final = 3  # deaths in a row after which a program is called failed; it is tried again all the same
NEVER: Final = Answer()


def publish(
    state: State,
    answers: Mapping[str, Answer],
    memory: MemoryReading,
    now: float,
    epoch: float,
    sizes: Mapping[str, int],
) -> ApplianceState:
    """`now` is the monotonic clock that records use; adding `epoch` makes unix time of it. `sizes` are the bytes that
    our processes hold, by name."""
    engine = answers.get("engine", NEVER).health
    programs = [program_status(name, state, answers.get(name, NEVER), epoch) for name in names(state)]
    programs += refused_roles(state.plan)
    return ApplianceState(
        plan_id=state.plan.id,
        phase=phase(state),
        programs=tuple(programs),
        live=msgspec.json.encode(state.plan.live),
        memory_available=memory.available,
        memory_total=memory.total,
        at=now + epoch,
        reload=state.report,
        memory=memory_view(memory, engine.memory if engine is not None else (), sizes),
        placements=msgspec.json.encode(state.plan.placements),
    )


def phase(state: State) -> str:
    """`serving` only when every vital process is ready as the plan wants it."""
    if state.stop:
        return "stopping"
    vital = [
        (program, state.programs.get(program.name, Record()))
        for program in state.plan.programs
        if program.kind in VITAL
    ]
    if any(record.state is ProgramState.DRAINING for _, record in vital):
        return "draining"
    ready = all(
        record.state is ProgramState.READY and record.fingerprint == program.fingerprint for program, record in vital
    )
    return "serving" if ready else "starting"


def program_status(name: str, state: State, answer: Answer, epoch: float) -> ProgramStatus:
    record = state.programs.get(name, Record())
    program = state.plan.program(name)
    silent = record.state is ProgramState.READY and answer.unanswered
    return ProgramStatus(
        name=name,
        kind=program.kind if program else name,
        state=_word(record),
        pid=record.pid,
        since=record.since + epoch if record.since else 0.0,
        restarts=record.restarts,
        sentence=f"does not answer ({answer.unanswered} of {UNANSWERED})" if silent else record.sentence,
        progress=record.progress if record.state is ProgramState.LOADING else 1.0,
        exit_status=record.exit_status,
    )


def _word(record: Record) -> str:
    if record.state is ProgramState.BACKOFF and record.crashes >= FAILED_AFTER:
        return "failed"
    if record.state is ProgramState.STOPPED and record.placement is not None and not record.placement.admitted:
        return "refused"
    return str(record.state)


def refused_roles(plan: Plan) -> list[ProgramStatus]:
    """Roles that residency keeps out: no process, only the reason."""
    kinds = {role.name: role.kind for role in plan.roles}
    return [
        ProgramStatus(
            name=placement.role,
            kind=kinds.get(placement.role, placement.role),
            state="refused",
            pid=None,
            since=0.0,
            restarts=0,
            sentence=placement.sentence,
        )
        for placement in plan.placements
        if not placement.admitted and plan.program(placement.role) is None
    ]
