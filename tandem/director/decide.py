"""What to do next, as a pure function of the plan, the memory of earlier steps, and one look at the world.

Level-triggered: every step compares what is with what is wanted and returns the few commands that bring them
closer. Start-up, crash recovery, an edited document, a lost message and the end are the same function; nothing
waits inside it, and a step that was lost is simply decided again.

The rules:
- A death that nobody asked for is a crash. Crashes in a row wait longer and longer; nobody is given up (`notice`).
- A new plan is on trial until everything vital that it changes is ready; the first failure brings back the last
  good plan (`trial`).
- What is vital starts side by side: the gateway answers while the engine loads. A role starts only when all of it is
  ready.
- A role has a process only while residency wants it in memory (`roles`); its process is stopped else.
- A process whose fingerprint is not the plan's is replaced; the engine is drained first.
- The end drains the engine, then stops everything in reverse order.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from tandem.contract.plan import Plan, Program
from tandem.director.notice import notice
from tandem.director.roles import decide_roles, is_kept_out
from tandem.director.state import (
    COMING_UP,
    VITAL,
    Action,
    Answer,
    Drain,
    Facts,
    Kill,
    ProgramState,
    Record,
    Remove,
    Resume,
    ShutDown,
    Start,
    State,
    Stop,
    TellLive,
    WritePlan,
    become,
    fresh,
    is_ready,
    names,
    remember,
)
from tandem.director.trial import judge
from tandem.units import format_duration

STOPPING: Final = "stopping"  # the whole sentence of a program that stops with nothing to tell
UNANSWERED: Final = 5  # health questions in a row; one slow answer never kills a process
TURN_SILENCE: Final = 120.0  # seconds without life on the device thread while requests run: longer than any chunk
KILL_AGAIN: Final = 2.0  # seconds that supervisord gets for its own KILL before the director sends one
REMOVED_STOP: Final = 60.0  # seconds from TERM to KILL for a program the plan no longer knows


class Decision(NamedTuple):
    state: State
    actions: list[Action]


def decide(state: State, facts: Facts, now: float) -> Decision:
    """One step. Performing the actions in order makes the new state true; what fails is seen by the next look."""
    state = notice(state, facts, now)
    state = judge(state, facts)
    state, notes = decide_roles(state, facts, now)
    actions: list[Action] = [] if facts.written == state.plan.id else [WritePlan()]
    actions += notes
    for name in names(state):
        record, more = steer(name, state, facts, now)
        state = remember(state, name, record)
        actions += more
    if state.stop and all(record.state is ProgramState.STOPPED for record in state.programs.values()):
        actions.append(ShutDown())
    return Decision(state, actions)


# --- steering: one program, one step nearer to the plan ---------------------------------------------------------


def steer(name: str, state: State, facts: Facts, now: float) -> tuple[Record | None, list[Action]]:
    """The record after this step and the commands that make it true; None forgets the program."""
    record = state.programs.get(name, Record())
    program = None if state.stop else state.plan.program(name)
    is_out = program is not None and is_kept_out(program, state)
    current = program is not None and record.fingerprint == program.fingerprint and not is_out
    match record.state:
        case ProgramState.STOPPED | ProgramState.BACKOFF:
            if program is None:
                return _put_away(name, record, state, now)
            if not is_out and may_start(program, record, state, facts, now):
                return _start(program, record, state, now), [Start(program.name)]
        case ProgramState.STARTING | ProgramState.LOADING | ProgramState.READY:
            if not current:
                return _retire(name, record, state, facts, now)
            assert program is not None
            record = replace(record, verdict=condemn(record, facts.answers.get(name, Answer()), program, now))
            if record.verdict:
                return record, [Kill(name)]
            if record.state is ProgramState.READY:
                return _keep(program, record, state, facts)
        case ProgramState.DRAINING:
            if current:  # the edit was taken back
                return become(record, ProgramState.READY, now, sentence="ready again"), [Resume(name)]
            if has_drained(record, facts.answers.get(name, Answer()), now) and may_stop(name, state, facts, now):
                cut = cut_off(record, facts.answers.get(name, Answer()), state)
                return _stop(name, record, state, now, cut), [Stop(name)]
        case ProgramState.STOPPING:
            if now >= record.until + KILL_AGAIN:
                return record, [Kill(name)]
    return record, []


def may_start(program: Program, record: Record, state: State, facts: Facts, now: float) -> bool:
    """Its own wait is over and, for a role, everything vital is ready as planned."""
    if facts.written != state.plan.id:
        return False
    if record.state is ProgramState.BACKOFF and now < record.until and record.fingerprint == program.fingerprint:
        return False  # a new fingerprint is a new chance and need not wait
    return program.kind in VITAL or all(is_ready(other, state) for other in state.plan.programs if other.kind in VITAL)


def may_stop(name: str, state: State, facts: Facts, now: float) -> bool:
    """In an edit: at once. At the end: the engine's requests are done, and everything started later is gone."""
    if not state.stop:
        return True
    order = names(state)
    after = [state.programs.get(other, Record()) for other in order[order.index(name) + 1 :]]
    engine = _engine(state.plan).name
    record = state.programs.get(engine, Record())
    is_busy = record.state is ProgramState.DRAINING and not has_drained(
        record, facts.answers.get(engine, Answer()), now
    )
    return not is_busy and all(record.state is ProgramState.STOPPED for record in after)


def has_drained(record: Record, answer: Answer, now: float) -> bool:
    health = fresh(record, answer)
    idle = health is not None and not (health.running or health.queued or health.waiting_memory)
    return idle or now >= record.until


def cut_off(record: Record, answer: Answer, state: State) -> str:
    """What becomes of requests when a drain has ended: nothing to say when all of them were finished."""
    health = fresh(record, answer)
    left = health.running + health.queued + health.waiting_memory if health is not None else None
    if left == 0:
        return STOPPING
    who = "requests that may still have run" if left is None else f"{left} request{'s' if left > 1 else ''}"
    return f"{who} ended unfinished after {format_duration(state.plan.live.limits.drain_timeout)}"


def condemn(record: Record, answer: Answer, program: Program, now: float) -> str:
    """Why this process has to be killed; empty lets it live. It is then a crash like any other."""
    health = fresh(record, answer)
    if health is not None and health.state == "failed":
        return health.sentence or "says that it has failed"
    if record.state in COMING_UP:
        late = now >= record.until
        return f"was not ready within {format_duration(program.start_timeout)} and was killed" if late else ""
    if answer.unanswered >= UNANSWERED:
        return f"hung: {answer.unanswered} health questions in a row went unanswered"
    if health is not None and health.last_turn_age > TURN_SILENCE and (health.running or health.queued):
        return f"hung: no turn for {format_duration(round(health.last_turn_age))} while requests run"
    return ""


def live_fingerprint(plan: Plan) -> str:
    return hashlib.sha256(msgspec.json.encode(plan.live)).hexdigest()[:12]


def _engine(plan: Plan) -> Program:
    return next(program for program in plan.programs if program.kind == "engine")


def _start(program: Program, record: Record, state: State, now: float) -> Record:
    again = record.state is ProgramState.BACKOFF and record.fingerprint == program.fingerprint
    return become(
        record,
        ProgramState.STARTING,
        now,
        pid=None,
        until=now + program.start_timeout,
        fingerprint=program.fingerprint,
        live=live_fingerprint(state.plan),
        crashes=record.crashes if again else 0,
        restarts=record.restarts + again,
        sentence="starting",
    )


def _keep(program: Program, record: Record, state: State, facts: Facts) -> tuple[Record, list[Action]]:
    """A process that is as it should be; the engine's live values may be behind. Others read what is published."""
    if program.kind != "engine":
        return record, []
    health = fresh(record, facts.answers.get(program.name, Answer()))
    if health is not None and health.state == "draining":
        return record, [Resume(program.name)]  # told to drain by a director that died before it could remember
    if record.live != (live := live_fingerprint(state.plan)):
        return replace(record, live=live), [TellLive(program.name)]
    return record, []


def _retire(name: str, record: Record, state: State, facts: Facts, now: float) -> tuple[Record, list[Action]]:
    """A process that is not wanted as it is. The engine finishes its requests first; nobody else holds any."""
    program = state.plan.program(name)
    if record.state is ProgramState.READY and program is not None and program.kind == "engine":
        until = now + state.plan.live.limits.drain_timeout
        return become(record, ProgramState.DRAINING, now, until=until, sentence="finishing its requests"), [Drain(name)]
    if may_stop(name, state, facts, now):
        return _stop(name, record, state, now), [Stop(name)]
    return record, []


def _stop(name: str, record: Record, state: State, now: float, sentence: str = STOPPING) -> Record:
    program = state.plan.program(name)
    until = now + (program.stop_timeout if program else REMOVED_STOP)
    return become(record, ProgramState.STOPPING, now, until=until, sentence=sentence)


def _put_away(name: str, record: Record, state: State, now: float) -> tuple[Record | None, list[Action]]:
    if state.plan.program(name) is None:
        return None, [Remove(name)]
    if record.state is ProgramState.BACKOFF:
        return become(record, ProgramState.STOPPED, now, sentence="stopped"), []
    return record, []
