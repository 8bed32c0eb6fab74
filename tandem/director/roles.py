"""Roles between the director and residency: what the controller sees, and how what it decided is followed. Pure."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tandem.contract.messages import Health, RolesFreed
from tandem.contract.plan import Plan, Program
from tandem.director.state import VITAL, Answer, Facts, Note, ProgramState, Record, State, fresh, is_ready
from tandem.residency import controller
from tandem.residency.controller import EngineFacts, Rules, Seen
from tandem.units import format_bytes

_SEEN: Final = {
    ProgramState.STOPPED: Seen.GONE,
    ProgramState.STARTING: Seen.COMING,
    ProgramState.LOADING: Seen.COMING,
    ProgramState.READY: Seen.UP,
    ProgramState.DRAINING: Seen.GOING,
    ProgramState.STOPPING: Seen.GOING,
}


def decide_roles(state: State, facts: Facts, now: float) -> tuple[State, list[Note]]:
    """The state with residency's decisions in it; `is_kept_out` and `steer` follow them. At the end nothing loads."""
    if state.stop or not state.plan.roles:
        return replace(state, asked=0), []
    seen = controller.Facts(
        available=facts.memory.available,
        engine=engine_facts(state, facts),
        processes={role.name: _seen(state, role.name, now) for role in state.plan.roles},
        asked=state.asked,
    )
    roles, events = controller.decide(state.roles, rules_of(state.plan), seen, now)
    return replace(state, roles=roles, asked=0), [Note(event) for event in events]


def roles_freed(state: State) -> RolesFreed:
    """What an engine that asked is told once the step has been decided."""
    rules = rules_of(state.plan)
    size = controller.coming_back(state.roles, rules)
    return RolesFreed(
        size, f"{format_bytes(size)} of roles are on their way back" if size else "no role may be unloaded"
    )


def rules_of(plan: Plan) -> Rules:
    return Rules(plan.roles, plan.live.floors, plan.live.hysteresis, plan.engine.declared_peak)


def engine_facts(state: State, facts: Facts) -> EngineFacts | None:
    """None unless everything vital is ready as planned: before that nobody knows what the engine will take."""
    vital = [program for program in state.plan.programs if program.kind in VITAL]
    if not all(is_ready(program, state) for program in vital):
        return None
    engine = next(program for program in vital if program.kind == "engine")
    health = fresh(state.programs[engine.name], facts.answers.get(engine.name, Answer()))
    if health is None:
        return None
    return EngineFacts(
        held=held_by(health),
        cache_growth=health.cache_growth,
        reserved=health.reserved,
        waiting=health.waiting_memory,
        reclaims=health.counters.reclaims if health.counters is not None else 0,
    )


def held_by(engine: Health) -> int:
    """Bytes. What lies on a device that shares the machine's memory is not resident, but counted by its parts."""
    return max(engine.resident_bytes, sum(part.bytes for part in engine.memory))


def is_kept_out(program: Program, state: State) -> bool:
    """Whether it is a role that is to have no process now."""
    return any(role.name == program.name for role in state.plan.roles) and not controller.is_wanted(
        state.roles, program.name
    )


def _seen(state: State, name: str, now: float) -> Seen:
    record, program = state.programs.get(name, Record()), state.plan.program(name)
    if record.state is ProgramState.BACKOFF:
        is_new = program is not None and record.fingerprint != program.fingerprint  # a new chance need not wait
        return Seen.GONE if is_new or now >= record.until else Seen.DEAD
    return _SEEN[record.state]
