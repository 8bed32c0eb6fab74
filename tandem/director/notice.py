"""What happened by itself since the last step: births, deaths, answers. Pure."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tandem.contract.plan import Program
from tandem.director.state import (
    ALIVE,
    COMING_UP,
    Answer,
    Facts,
    Process,
    ProgramState,
    Record,
    State,
    become,
    fresh,
    remember,
)
from tandem.units import format_duration

FIRST_WAIT: Final = 0.5  # seconds from a crash to the next start; doubles with every crash in a row
LONGEST_WAIT: Final = 60.0
STABLE: Final = 60.0  # seconds of ready after which earlier crashes are forgotten


def notice(state: State, facts: Facts, now: float) -> State:
    """Bring every record up to what was seen: births, deaths, answers."""
    for name, process in facts.processes.items():
        program = state.plan.program(name)
        if program is None and name not in state.programs and process.pid is None:
            continue
        record = notice_process(state.programs.get(name, Record()), process, program, now)
        record = notice_answer(record, facts.answers.get(name, Answer()), program, now)
        state = remember(state, name, record)
    return state


def notice_process(record: Record, process: Process, program: Program | None, now: float) -> Record:
    """Births and deaths. A process found running is adopted as the plan's own: nothing is restarted to be sure."""
    if process.pid is None:
        if record.state in (ProgramState.DRAINING, ProgramState.STOPPING):
            return become(record, ProgramState.STOPPED, now, pid=None, sentence=process.exit or "stopped")
        return crash(record, process, now) if record.state in ALIVE else record
    if process.stopping:
        if record.state is ProgramState.STOPPING:
            return record
        grace = program.stop_timeout if program else 0.0
        return become(record, ProgramState.STOPPING, now, pid=process.pid, until=now + grace, sentence="stopping")
    if record.pid == process.pid:
        return record
    if record.pid is None and record.state is ProgramState.STARTING:
        return replace(record, pid=process.pid)  # the one we asked for
    return become(
        record,
        ProgramState.STARTING,
        now,
        pid=process.pid,
        until=now + _patience(program),
        fingerprint=program.fingerprint if program else "",
        live="",
        sentence="found running",
    )


def crash(record: Record, process: Process, now: float) -> Record:
    """The wait doubles with every crash in a row. It never ends: someone may be mending what is broken."""
    crashes = record.crashes + 1
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(crashes - 1, 16))
    times = f", {crashes} times in a row" if crashes > 1 else ""
    sentence = f"{record.verdict or process.exit or 'died'}{times}; starts again in {format_duration(wait)}"
    return become(
        record,
        ProgramState.BACKOFF,
        now,
        pid=None,
        until=now + wait,
        crashes=crashes,
        sentence=sentence,
        exit_status=process.status,
    )


def notice_answer(record: Record, answer: Answer, program: Program | None, now: float) -> Record:
    """What the process says about itself: ready, or how far its loading is."""
    if record.state is ProgramState.STARTING and program is not None and program.socket is None:
        return become(record, ProgramState.READY, now, sentence="running")  # nobody to ask: alive is ready
    health = fresh(record, answer)
    if health is None or record.state not in COMING_UP | {ProgramState.READY}:
        return record
    if health.ready and record.state in COMING_UP:
        return become(record, ProgramState.READY, now, sentence=health.sentence)
    if health.state == "loading" and record.state is not ProgramState.LOADING:
        until = record.until if record.state is ProgramState.STARTING else now + _patience(program)
        return become(
            record, ProgramState.LOADING, now, until=until, progress=health.progress, sentence=health.sentence
        )
    if record.state is ProgramState.LOADING and health.progress > record.progress:
        record = replace(record, progress=health.progress, until=now + _patience(program))  # slow is not stuck
    if record.crashes and record.state is ProgramState.READY and now - record.since >= STABLE:
        record = replace(record, crashes=0)
    return record if record.sentence == health.sentence else replace(record, sentence=health.sentence)


def _patience(program: Program | None) -> float:
    """Seconds to become ready; a process the plan does not know gets none."""
    return program.start_timeout if program else 0.0
