"""The words of the director: what it sees, what it remembers, what it does. No decisions and no effects.

Times are seconds on the machine's monotonic clock, which outlives a restart of the director; the memory of one
director is therefore of use to the next (`State` is kept as JSON in the run directory).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tandem.contract.messages import Health, ReloadReport
from tandem.contract.plan import Plan, Program
from tandem.memory.reading import MemoryReading
from tandem.residency.controller import Roles
from tandem.residency.journal import Event

# --- what it sees -----------------------------------------------------------------------------------------------


class Process(Struct, frozen=True):
    """supervisord's word about one program."""

    pid: int | None  # None: nothing runs
    stopping: bool = False  # TERM was sent
    exit: str = ""  # how the last process ended, as a clause: `exited with status 3`
    status: int | None = None  # of that exit; None: there was none, or a signal
    last_words: str = ""  # the end of its log, once it has ended


class Answer(Struct, frozen=True):
    """What a process last said about itself."""

    health: Health | None = None
    asked: float = 0.0  # when the question that got this answer was put
    unanswered: int = 0  # questions in a row that got none since


class Facts(Struct, frozen=True):
    """One look at the world. A program that is missing from a table has never been seen."""

    processes: dict[str, Process]
    answers: dict[str, Answer]
    memory: MemoryReading
    written: str  # id of the plan that the run directory holds


# --- what it remembers ------------------------------------------------------------------------------------------


class ProgramState(StrEnum):
    STOPPED = "stopped"  # no process
    STARTING = "starting"  # a process that has not answered yet
    LOADING = "loading"  # answers, and is not ready
    READY = "ready"
    DRAINING = "draining"  # finishes its requests, takes none
    STOPPING = "stopping"  # TERM was sent
    BACKOFF = "backoff"  # died by itself; started again at `until`


_S = ProgramState
TRANSITIONS: Final[dict[ProgramState, frozenset[ProgramState]]] = {
    _S.STOPPED: frozenset({_S.STARTING, _S.STOPPING}),  # STOPPING: found that way
    _S.STARTING: frozenset({_S.STARTING, _S.LOADING, _S.READY, _S.STOPPING, _S.BACKOFF}),
    _S.LOADING: frozenset({_S.STARTING, _S.READY, _S.STOPPING, _S.BACKOFF}),  # STARTING: another process took its place
    _S.READY: frozenset({_S.STARTING, _S.LOADING, _S.DRAINING, _S.STOPPING, _S.BACKOFF}),
    _S.DRAINING: frozenset({_S.STARTING, _S.READY, _S.STOPPING, _S.STOPPED}),
    _S.STOPPING: frozenset({_S.STARTING, _S.STOPPED}),
    _S.BACKOFF: frozenset({_S.STARTING, _S.STOPPING, _S.STOPPED}),
}
ALIVE: Final = frozenset({_S.STARTING, _S.LOADING, _S.READY, _S.DRAINING, _S.STOPPING})
COMING_UP: Final = frozenset({_S.STARTING, _S.LOADING})
VITAL: Final = frozenset({"gateway", "engine"})  # kinds without which there is no appliance


class Record(Struct, frozen=True):
    """One program, as remembered. `become` is the only way from one state to the next."""

    state: ProgramState = ProgramState.STOPPED
    since: float = 0.0
    until: float = 0.0  # COMING_UP: further by then; DRAINING, STOPPING: done by then; BACKOFF: no start before
    pid: int | None = None
    fingerprint: str = ""  # of the program as it was started
    live: str = ""  # fingerprint of the live values it was started with or told
    crashes: int = 0  # in a row, without a stable time between
    restarts: int = 0  # after dying by itself, since the appliance came up
    progress: float = 0.0  # of loading, 0 to 1
    exit_status: int | None = None  # its last crash's
    verdict: str = ""  # why the director kills this process; becomes the reason of the crash
    sentence: str = ""


def become(
    record: Record, state: ProgramState, now: float, *, sentence: str, until: float = 0.0, **changes: object
) -> Record:
    """The one way into another state; an edge that `TRANSITIONS` does not draw is our bug."""
    assert state in TRANSITIONS[record.state], f"{record.state} -> {state}"
    changes = {"progress": 0.0, "verdict": "", **changes}
    return replace(record, state=state, since=now, until=until, sentence=sentence, **changes)


def fresh(record: Record, answer: Answer) -> Health | None:
    """What it says about itself now: an answer to an older question may be out of date, or another process's."""
    return answer.health if answer.health is not None and answer.asked > record.since else None


class State(Struct, frozen=True):
    """Everything that must survive the director's own death."""

    plan: Plan  # what is wanted
    good: Plan | None = None  # the last plan under which everything vital was ready
    programs: dict[str, Record] = {}
    roles: Roles = Roles()
    asked: int = 0  # bytes that the engine has asked roles for since the last step
    stop: bool = False  # the whole appliance is to end
    report: ReloadReport | None = None
    done: str = ""  # the report's sentence once the edit is applied, where it is another
    documents: dict[str, str] | None = None  # fingerprints of the documents that were judged last


def programs_of(plan: Plan) -> tuple[Program, ...]:
    """What the director starts, in order: everything but itself."""
    return tuple(program for program in plan.programs if program.kind != "director")


def names(state: State) -> tuple[str, ...]:
    """Every program the plan has or that still runs from an earlier plan, in start order."""
    wanted = tuple(program.name for program in programs_of(state.plan))
    return wanted + tuple(name for name in state.programs if name not in wanted)


def is_ready(program: Program, state: State) -> bool:
    """Ready as planned, and nobody is about to kill it."""
    record = state.programs.get(program.name, Record())
    planned = record.fingerprint == program.fingerprint
    return record.state is ProgramState.READY and planned and not record.verdict


def remember(state: State, name: str, record: Record | None) -> State:
    if record is state.programs.get(name):
        return state
    programs = {other: kept for other, kept in state.programs.items() if other != name}
    if record is not None:
        programs[name] = record
    return replace(state, programs=programs)


# --- what it does -----------------------------------------------------------------------------------------------


class WritePlan(Struct, frozen=True):
    """Put the plan and the program sections into the run directory. No program starts before that."""


class Start(Struct, frozen=True):
    name: str


class Stop(Struct, frozen=True):
    """TERM; returns at once."""

    name: str


class Kill(Struct, frozen=True):
    name: str


class Remove(Struct, frozen=True):
    """The plan no longer has this program, and it has stopped."""

    name: str


class Drain(Struct, frozen=True):
    name: str


class Resume(Struct, frozen=True):
    name: str


class TellLive(Struct, frozen=True):
    """Hand the plan's live values to a running process."""

    name: str


class Note(Struct, frozen=True):
    """Write it into the residency journal."""

    event: Event


class ShutDown(Struct, frozen=True):
    """Everything has stopped: supervisord may end."""


Action = WritePlan | Start | Stop | Kill | Remove | Drain | Resume | TellLive | Note | ShutDown
