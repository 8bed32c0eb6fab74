"""Reads the documents again and says what becomes of an edit."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tandem.contract.messages import ReloadReport
from tandem.contract.plan import Plan
from tandem.director.state import State
from tandem.director.trial import propose, refuse
from tandem.director.watch import Contents, read_contents
from tandem.errors import CannotStart, DocumentError, TandemError
from tandem.planner.diff import MOVES, ChangeClass, diff, done

OURS: Final = frozenset({"TANDEM_RUN", "TANDEM_LOGS"})  # set for our own processes; they override no document
UNCHANGED: Final = "nothing was changed, the running plan stays as it is"
_log = logging.getLogger(__name__)


class Judgement(Struct, frozen=True):
    """What the documents say now: a plan, or why not."""

    files: tuple[str, ...]  # every document that was read or looked for: what to watch for the next edit
    plan: Plan | None = None
    sentence: str = ""  # of a refusal
    details: str = ""


Judge = Callable[[Plan, int], Judgement]  # the running plan and the bytes its processes hold


def judge_documents(running: Plan, held: int) -> Judgement:
    """Never raises: whatever is wrong, the running plan stays and the reason is told.

    Runs in a thread, and imports what reads documents only here: a director that was killed must be back at once.
    """
    from tandem.config import load
    from tandem.config.report import render_error
    from tandem.director.weights import check_weights
    from tandem.memory.reading import read_box
    from tandem.planner.compile import compile_plan

    try:
        environment = {name: value for name, value in os.environ.items() if name not in OURS}
        documents = load(Path(running.appliance), environment=environment)
        plan = compile_plan(documents, read_box(), held=held)
        if not documents.weights.present:
            raise CannotStart(
                f"the weights are not at {documents.weights.path}",
                "`tandem pull` brings them; then save the document again",
            )
        if _reads(plan) != _reads(running):
            check_weights(documents)
    except DocumentError as error:
        return Judgement(error.files or running.documents, None, str(error), render_error(error, UNCHANGED))
    except TandemError as error:
        return Judgement(running.documents, None, str(error), render_error(error, UNCHANGED))
    except Exception as error:
        _log.exception("our bug: the documents could not be judged")
        sentence = f"our bug, its traceback is in the director's log: {error!r}"
        return Judgement(running.documents, None, sentence, f"{sentence}\n")
    return Judgement(plan.documents, plan)


def _reads(plan: Plan) -> tuple[object, ...]:
    """What of a plan its weights have a say in."""
    engine = plan.engine
    drafting = engine.draft and engine.draft.model
    return engine.weights, drafting, engine.family, max(slot.window for slot in engine.slots), engine.bytes_a_token


def judge_edit(judge: Callable[[], Judgement], contents: Contents) -> tuple[Judgement, Contents]:
    """What an edit comes to, and the contents of exactly the documents that were judged.

    An edit may bring in documents nobody watched yet. They are then read first and everything is judged again, so
    that one edit is one judgement and a change in between is never taken for seen.
    """
    while not set((judgement := judge()).files) <= set(contents):
        contents = read_contents(map(Path, judgement.files))
    return judgement, {file: contents[file] for file in judgement.files}


def apply(state: State, judgement: Judgement, at: float) -> State:
    """The state after an edit was judged, at unix time `at`. Pure."""
    if judgement.plan is None:
        return refuse(state, judgement.sentence, judgement.details, at)
    before, plan = state.plan, judgement.plan
    change = diff(before, plan)
    if change.moves:
        return refuse(state, MOVES, "; ".join(change.sentences) + "\n", at)
    said = (*before.warnings, *before.key_warnings)
    news = [f"warning: {each}" for each in (*plan.warnings, *plan.key_warnings) if each not in said]
    news += [each for each in plan.overridden if each not in before.overridden]
    if change.kind is not ChangeClass.NONE:
        will, has = ("; ".join((*each, *news)) for each in (change.sentences, done(change.sentences)))
        return propose(state, plan, str(change.kind), will, at, has)
    words = {name: getattr(plan, name) for name in ("warnings", "key_warnings", "overridden")}
    state = replace(state, plan=replace(before, **words))
    is_back = state.report is not None and state.report.outcome in ("refused", "rolled_back")
    if not (is_back or news):
        return state
    sentence = "; ".join(("the documents say again what runs" if is_back else "what runs stays as it is", *news))
    return replace(state, report=ReloadReport(at=at, outcome="applied", change="none", sentence=sentence))
