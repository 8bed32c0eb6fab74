"""What the director tells everybody: one picture of the appliance, made from what it remembers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tandem.contract.messages import ApplianceState, ProgramStatus, RoleState, RoleStatus
from tandem.contract.plan import Placement, RolePlan
from tandem.director.decide import UNANSWERED
from tandem.director.state import VITAL, Answer, ProgramState, Record, State, names
from tandem.memory.reading import MemoryReading
from tandem.memory.view import memory_view
from tandem.residency.controller import OUT, UNASKED, wait_of

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
        placements=msgspec.json.encode(placements(state)),
        roles=tuple(role_status(plan, state, epoch) for plan in state.plan.roles),
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
    word, sentence = _word(record), record.sentence
    if record.state is ProgramState.READY and answer.unanswered:
        sentence = f"does not answer ({answer.unanswered} of {UNANSWERED})"
    if (role := state.roles.by_name.get(name)) is not None and (held := KEPT_OUT.get(role.state)):
        word, sentence = held, role.sentence  # at once, whatever its process still does
    return ProgramStatus(
        name=name,
        kind=program.kind if program else name,
        state=word,
        pid=record.pid,
        since=record.since + epoch if record.since else 0.0,
        restarts=record.restarts,
        sentence=sentence,
        progress=record.progress if record.state is ProgramState.LOADING else 1.0,
        exit_status=record.exit_status,
    )


KEPT_OUT: Final = {RoleState.UNLOADED_FOR_MEMORY: "held", RoleState.REFUSED: "refused"}


def _word(record: Record) -> str:
    if record.state is ProgramState.BACKOFF and record.crashes >= FAILED_AFTER:
        return "failed"
    return str(record.state)


def role_status(plan: RolePlan, state: State, epoch: float) -> RoleStatus:
    role, record = state.roles.by_name.get(plan.name, UNASKED), state.programs.get(plan.name, Record())
    return RoleStatus(
        name=plan.name,
        kind=plan.kind,
        state=role.state,
        sentence=record.sentence if role.state is RoleState.FAILED else role.sentence,
        claim=plan.claim,
        since=role.since + epoch if role.since else 0.0,
        wait=wait_of(role, state.plan.live.hysteresis) if role.state in OUT else 0.0,
    )


def placements(state: State) -> tuple[Placement, ...]:
    """Residency's last answer to every role; until a role has asked, the one that was planned."""
    given = {name: role.placement for name, role in state.roles.by_name.items()}
    return tuple(given.get(planned.role) or planned for planned in state.plan.placements)
