from __future__ import annotations

import msgspec
import pytest
from boxes import EXAMPLE, LAPTOP, plan
from hypothesis import given
from hypothesis import strategies as st

from tandem.planner.diff import MOVES, ChangeClass, diff, done
from tandem.units import GIB

BASE = plan(box=LAPTOP)
SETTINGS = ["", "slots.count=2", "limits.max_queue=3", "listen.port=8100", "engine.threads=2", "memory.floor=2 GiB"]


@given(st.sampled_from(SETTINGS))
def test_a_plan_does_not_differ_from_itself(flag: str) -> None:
    flags = [flag] if flag else []
    change = diff(plan(*flags, box=LAPTOP), plan(*flags, box=LAPTOP))
    assert change.kind is ChangeClass.NONE
    assert change.sentences == change.restarts == ()


def test_what_memory_happens_to_be_is_no_difference() -> None:
    assert diff(BASE, plan(box=msgspec.structs.replace(LAPTOP, memory_available=8 * GIB))).kind is ChangeClass.NONE


@pytest.mark.parametrize(
    ("flags", "kind", "restarts", "said"),
    [
        (["limits.max_queue=3"], "live", (), "limits.max_queue: 64 -> 3: acts at once"),
        (["limits.queue_timeout=30s"], "live", (), "limits.queue_timeout: 2 min -> 30 s: acts at once"),
        (["memory.floor=2 GiB"], "live", (), "floors.floor: 1.00 GiB -> 2.00 GiB: acts at once"),
        (["sampling.temperature=0"], "live", (), "sampling.temperature: 0.2 -> 0.0: acts at once"),
        (["conductor.enabled=on"], "live", (), "conductor: off -> on: acts at once"),
        (["slots.count=1"], "engine", ("engine",), "slots: 4 (window 8,192, side window 8,192) -> 1 (window 8,192)"),
        (["engine.compute=float32"], "engine", ("engine",), "engine.compute: int4 -> float32"),
        (["listen.port=8100"], "engine", ("gateway",), "gateway.port: 8080 -> 8100"),
        (["slots.side_window=4096"], "engine", ("gateway", "engine"), "gateway.side_window: 8,192 -> 4,096"),
    ],
)  # fmt: skip
def test_every_edit_has_a_class(flags: list[str], kind: str, restarts: tuple[str, ...], said: str) -> None:
    change = diff(BASE, plan(*flags, box=LAPTOP))
    assert (change.kind, change.restarts) == (kind, restarts)
    assert said in change.sentences
    assert not change.moves


def test_what_has_happened_is_no_longer_to_come() -> None:
    change = diff(BASE, plan("slots.count=2", "limits.max_queue=3", "listen.port=8101", box=LAPTOP))
    said = done(change.sentences)
    assert "limits.max_queue: 64 -> 3" in said
    assert said[-2:] == ("the gateway has restarted", "the engine has restarted and answers")


def test_an_edit_of_the_conductor_is_told_name_by_name() -> None:
    question = "{type: score, instructions: How long, levels: [a line, a page]}"
    flags = (
        "conductor.decider_within=1s",
        "conductor.classes={talk: {means: small talk, package: plain, effort: high}, fresh: {means: y}, other: {}}",
        f"conductor.questions={{length: {question}}}",
        "conductor.packages={plain: {note: Be brief}}",
    )
    change = diff(plan(box=LAPTOP), plan(*flags, box=LAPTOP))
    assert change.kind is ChangeClass.LIVE and change.restarts == ()
    assert set(change.sentences) == {
        "conducting.decider_within: 0.4 s -> 1 s: acts at once",
        "conducting.questions.class.criteria: talk, code, text, problem -> talk, fresh: acts at once",
        "conducting.questions.length: new: acts at once",
        "conducting.classes.talk.effort: low -> high: acts at once",
        "conducting.classes.code: gone: acts at once",
        "conducting.classes.text: gone: acts at once",
        "conducting.classes.problem: gone: acts at once",
        "conducting.classes.fresh: new: acts at once",
        "conducting.packages.plain.note: nothing -> Be brief: acts at once",
        "conducting.packages.precise: gone: acts at once",
        "conducting.packages.free: gone: acts at once",
    }


def test_a_drain_timeout_restarts_nobody() -> None:
    """It changes how long supervisord waits, not what a process does."""
    assert diff(BASE, plan("limits.drain_timeout=90s", box=LAPTOP)).kind is ChangeClass.LIVE


def test_an_engine_edit_says_that_the_old_plan_comes_back() -> None:
    change = diff(BASE, plan("slots.count=2", box=LAPTOP))
    assert "the engine drains, restarts and must answer; if it does not, the plan before comes back by itself" in (
        change.sentences
    )


def test_live_and_engine_together_are_an_engine_edit_that_says_both() -> None:
    change = diff(BASE, plan("slots.count=2", "limits.max_queue=3", box=LAPTOP))
    assert change.kind is ChangeClass.ENGINE
    assert "limits.max_queue: 64 -> 3: acts at once" in change.sentences


def test_roles_come_change_and_go_through_residency() -> None:
    example = plan(appliance=EXAMPLE)
    fewer = plan("roles.deciders.count=1", appliance=EXAMPLE)
    more = diff(fewer, example)
    assert (more.kind, more.roles, more.restarts) == (ChangeClass.ROLE, ("decider-1",), ("decider-1",))
    assert more.sentences == ("decider-1: new, asks residency for its memory",)
    assert diff(example, fewer).sentences == ("decider-1: stops",)
    changed = diff(example, plan("roles.narrator.claim=2 GiB", appliance=EXAMPLE))
    assert (changed.kind, changed.restarts) == (ChangeClass.ROLE, ("narrator",))
    assert changed.sentences == (
        "narrator.claim: 4.50 GiB -> 2.00 GiB; narrator.basis: measured -> configured: "
        "narrator restarts, through residency",
    )


def test_another_state_directory_moves_the_appliance() -> None:
    change = diff(BASE, plan("state=/srv/elsewhere", box=LAPTOP))
    assert change.moves
    assert change.restarts == ("director", "gateway", "engine")
    assert change.sentences[-1] == MOVES


def test_a_program_that_is_gone_stops() -> None:
    without = msgspec.structs.replace(BASE, programs=BASE.programs[:2])
    change = diff(BASE, without)
    assert (change.kind, change.stops) == (ChangeClass.ENGINE, ("engine",))
    assert "engine stops" in change.sentences


def test_another_model_of_a_role_is_said_once() -> None:
    changed = diff(plan(appliance=EXAMPLE), plan("roles.narrator.model=other", appliance=EXAMPLE))
    assert changed.sentences == ("narrator.model: models/narrator-2b -> other: narrator restarts, through residency",)
