"""What becomes of an edit, and the real documents read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from appliances import World, make_live, make_plan, make_program
from msgspec.structs import replace

from tandem.config import load
from tandem.contract.messages import ReloadReport
from tandem.contract.plan import Paths, Plan
from tandem.director.reload import Judgement, apply, judge_documents, judge_edit
from tandem.director.state import State
from tandem.director.watch import read_contents
from tandem.memory.reading import read_box
from tandem.planner.compile import compile_plan


def after(judgement: Judgement, report: ReloadReport | None = None) -> State:
    world = World(make_plan())
    world.settle()
    return apply(replace(world.state, report=report), judgement, at=7.0)


def test_a_good_edit_is_proposed_with_its_class_and_words() -> None:
    state = after(Judgement((), make_plan("two", live=make_live(max_queue=3))))
    assert state.plan.id == "two"
    assert state.good is not None and state.good.id == "one"
    assert state.report == ReloadReport(7.0, "in_progress", "live", "limits.max_queue: 8 -> 3: acts at once")


def test_an_engine_edit_says_what_it_will_do() -> None:
    plan = make_plan("two", [make_program(name, "1" if name != "engine" else "2") for name in ("gateway", "engine")])
    state = after(Judgement((), plan))
    assert state.report is not None and state.report.change == "engine"
    assert "the engine drains, restarts" in state.report.sentence


def test_once_applied_an_edit_says_what_has_happened() -> None:
    world = World(make_plan())
    world.settle()
    world.state = apply(world.state, Judgement((), make_plan("two", live=make_live(max_queue=3))), at=7.0)
    world.settle()
    assert world.state.report == ReloadReport(7.0, "applied", "live", "limits.max_queue: 8 -> 3")


def test_new_warnings_and_edits_in_vain_are_told_once() -> None:
    plan = replace(make_plan("two"), warnings=("nobody is let in",), overridden=("`slots.count: 3` has no effect",))
    state = after(Judgement((), plan))
    sentence = "what runs stays as it is; warning: nobody is let in; `slots.count: 3` has no effect"
    assert state.report == ReloadReport(7.0, "applied", "none", sentence)
    assert apply(replace(state, report=None), Judgement((), plan), at=8.0).report is None
    change = replace(plan, id="three", live=make_live(max_queue=3), overridden=("`slots.count: 2` has no effect",))
    report = apply(state, Judgement((), change), at=9.0).report
    assert report is not None and report.outcome == "in_progress"
    assert report.sentence == "limits.max_queue: 8 -> 3: acts at once; `slots.count: 2` has no effect"


def test_what_a_key_file_said_is_told_once_too() -> None:
    plan = replace(make_plan("two"), key_warnings=("line 2 is no key",))
    state = after(Judgement((), plan))
    assert state.report is not None and state.report.sentence.endswith("; warning: line 2 is no key")
    assert apply(replace(state, report=None), Judgement((), plan), at=8.0).report is None


def test_a_refusal_keeps_the_plan() -> None:
    state = after(Judgement((), None, "1 problem", "error[...]"))
    assert state.plan.id == "one"
    assert state.report == ReloadReport(7.0, "refused", "refused", "1 problem", "error[...]")


def test_an_appliance_does_not_move_while_it_runs() -> None:
    state = after(Judgement((), replace(make_plan("two"), paths=Paths("/elsewhere", "/elsewhere/run", "/x"))))
    assert state.plan.id == "one"
    assert state.report is not None and state.report.outcome == "refused"
    assert "`tandem down`" in state.report.sentence


def test_the_same_again_is_no_news_unless_the_last_edit_failed() -> None:
    assert after(Judgement((), make_plan("two"))).report is None
    applied = ReloadReport(1.0, "applied", "live", "before")
    assert after(Judgement((), make_plan("two")), applied).report == applied
    for outcome in ("refused", "rolled_back"):
        state = after(Judgement((), make_plan("two")), replace(applied, outcome=outcome))
        assert state.report is not None and (state.report.outcome, state.report.change) == ("applied", "none")


def test_an_edit_that_brings_in_documents_is_judged_with_their_contents_and_told_once(tmp_path: Path) -> None:
    appliance, mine = tmp_path / "appliance.yaml", tmp_path / "mine.yaml"
    appliance.write_text("profile: mine\n")
    refused, good = (Judgement((str(appliance), str(mine)), None, "no mine"), Judgement((str(appliance), str(mine))))
    coming = iter((refused, good))

    def judge() -> Judgement:
        judgement = next(coming)
        if judgement is refused:
            mine.write_text("model: x\n")  # just after it was looked for
        return judgement

    judgement, contents = judge_edit(judge, read_contents([appliance, tmp_path / "of before"]))
    assert judgement is good
    assert contents == read_contents([appliance, mine])


# --- the real documents -----------------------------------------------------------------------------------------


@pytest.fixture
def running(tmp_path: Path) -> Plan:
    appliance = tmp_path / "appliance.yaml"
    appliance.write_text("profile: smollm2-135m\nresidency: laptop\n")
    return compile_plan(load(appliance, environment={}), read_box())


def test_documents_that_have_not_changed_make_the_same_plan(running: Plan) -> None:
    judgement = judge_documents(running, held=0)
    assert judgement.plan is not None and judgement.plan.id == running.id
    assert judgement.files == running.documents


def test_a_wrong_document_is_refused_in_the_compilers_form(running: Plan) -> None:
    Path(running.appliance).write_text("profile: smollm2-135m\nslotz: 4\n")
    judgement = judge_documents(running, held=0)
    assert judgement.plan is None
    assert "error[unknown-key]: unknown key `slotz`" in judgement.details
    assert "appliance.yaml:2:1" in judgement.details
    assert "the running plan stays as it is" in judgement.details
    assert running.appliance in judgement.files


def test_a_document_that_is_missing_is_watched_for(running: Plan) -> None:
    Path(running.appliance).write_text("profile: mine\n")
    judgement = judge_documents(running, held=0)
    assert judgement.plan is None
    assert any(file.endswith("profiles/mine.yaml") for file in judgement.files)


def test_flags_of_up_still_count_when_documents_are_read_again(running: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_LISTEN__PORT", "9999")
    monkeypatch.setenv("TANDEM_RUN", running.paths.run)
    monkeypatch.setenv("TANDEM_LOGS", running.paths.logs)
    judgement = judge_documents(running, held=0)
    assert judgement.plan is not None and judgement.plan.gateway.port == 9999


def test_an_edit_that_a_flag_of_up_holds_says_so(running: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_SLOTS__COUNT", "2")
    Path(running.appliance).write_text("profile: smollm2-135m\nresidency: laptop\nslots: {count: 3}\n")
    judgement = judge_documents(running, held=0)
    assert judgement.plan is not None and len(judgement.plan.engine.slots) == 2
    (said,) = judgement.plan.overridden
    assert said.startswith("`slots.count: 3` has no effect: `--set slots.count`, or `TANDEM_SLOTS__COUNT`,")


def test_what_our_processes_hold_counts_as_available(running: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    full = replace(running.box, memory_available=0)  # our engine has it all
    monkeypatch.setattr("tandem.memory.reading.read_box", lambda: full)
    assert judge_documents(running, held=0).plan is None
    assert judge_documents(running, held=running.box.memory_total).plan is not None


def test_our_own_bug_keeps_the_plan_too(running: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.planner.compile.compile_plan", lambda *_, **__: 1 / 0)
    judgement = judge_documents(running, held=0)
    assert judgement.plan is None and "our bug" in judgement.sentence
