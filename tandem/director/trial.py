"""A new plan is on trial until everything vital that it changes is ready; until then the last good plan is the way
back. Pure.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from tandem.contract.messages import ReloadReport
from tandem.contract.plan import Plan
from tandem.director.state import VITAL, Facts, ProgramState, Record, State, programs_of

TAKEN_BACK: Final = "taken back before it acted; nothing restarted"


def propose(state: State, plan: Plan, change: str, sentence: str, at: float, done: str = "") -> State:
    """The documents say something new (unix time `at`). The good plan stays the way back. `done` is the sentence of a
    change that has happened, where it is another."""
    report = ReloadReport(at=at, outcome="in_progress", change=change, sentence=sentence)
    untouched = _runs(state, plan, ProgramState.READY, ProgramState.DRAINING)  # what only drains resumes
    if state.good is not None and state.good.id == plan.id and untouched:
        report = ReloadReport(at=at, outcome="applied", change="none", sentence=TAKEN_BACK)
    return replace(state, plan=plan, report=report, done=done)


def refuse(state: State, sentence: str, details: str, at: float) -> State:
    """The documents are wrong or do not fit: nothing changes but the report."""
    report = ReloadReport(at=at, outcome="refused", change="refused", sentence=sentence, details=details)
    return replace(state, report=report)


def judge(state: State, facts: Facts) -> State:
    """Is the wanted plan good, still on trial, or a failure?"""
    plan, good = state.plan, state.good
    if state.stop:
        return state
    if good is not None and good.id == plan.id:
        is_back = _runs(state, plan, ProgramState.READY)  # after an edit that was taken back had acted already
        return replace(state, report=_settled(state.report, "applied", state.done)) if is_back else state
    changed = [
        (program, state.programs.get(program.name, Record()))
        for program in programs_of(plan)
        if program.kind in VITAL and (good is None or _fingerprint(good, program.name) != program.fingerprint)
    ]
    ours = [(program, record) for program, record in changed if record.fingerprint == program.fingerprint]
    if len(ours) == len(changed) and all(record.state is ProgramState.READY for _, record in ours):
        return replace(state, good=plan, report=_settled(state.report, "applied", state.done))
    failed = [(program, record) for program, record in ours if record.state is ProgramState.BACKOFF]
    if good is None or not failed:
        return state
    program, record = failed[0]
    reason = record.sentence.partition(";")[0]
    process = facts.processes.get(program.name)
    report = _settled(
        state.report,
        "rolled_back",
        f"{program.name} {reason} under the new plan; the last good plan is back",
        process.last_words if process else "",
    )
    return replace(state, plan=good, report=report)


def _settled(report: ReloadReport | None, outcome: str, sentence: str = "", details: str = "") -> ReloadReport | None:
    """A report in progress gets its end; one that is about a later, refused edit stays."""
    if report is None or report.outcome != "in_progress":
        return report
    return replace(report, outcome=outcome, sentence=sentence or report.sentence, details=details)


def _runs(state: State, plan: Plan, *states: ProgramState) -> bool:
    """Whether everything vital runs as `plan` wants it, in one of these states."""
    vital = [program for program in programs_of(plan) if program.kind in VITAL]
    records = [(program, state.programs.get(program.name, Record())) for program in vital]
    return all(record.state in states and record.fingerprint == program.fingerprint for program, record in records)


def _fingerprint(plan: Plan, name: str) -> str | None:
    program = plan.program(name)
    return program.fingerprint if program else None
