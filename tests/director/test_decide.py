"""The director's decisions, driven by hand: deliver an event, read the commands. No sleeps, no processes."""

from __future__ import annotations

import msgspec
import pytest
from appliances import DRAINING, LOADING, READY, World, make_live, make_plan, make_program
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tandem.contract.messages import ReloadReport
from tandem.director.decide import STOPPING, TURN_SILENCE, UNANSWERED
from tandem.director.notice import FIRST_WAIT, LONGEST_WAIT, STABLE
from tandem.director.state import (
    ALIVE,
    TRANSITIONS,
    Drain,
    Kill,
    ProgramState,
    Remove,
    Resume,
    Start,
    State,
    Stop,
    TellLive,
    WritePlan,
    become,
)
from tandem.director.trial import propose, refuse

ALL = ("director", "gateway", "engine", "narrator", "shadow-reader")


def with_roles(version: str = "1", id: str = "one") -> World:
    return World(make_plan(id, [make_program(name, version) for name in ALL]))


def up(world: World | None = None) -> World:
    world = world or World(make_plan())
    world.settle()
    return world


def edit(world: World, id: str = "two", **versions: str) -> None:
    """The plan of an edited document: the named programs change."""
    programs = [make_program(p.name, versions.get(p.name, "1")) for p in world.state.plan.programs]
    world.state = propose(world.state, make_plan(id, programs), "engine", "the engine restarts", 5.0)


# --- start-up ---------------------------------------------------------------------------------------------------


def test_the_vital_start_side_by_side_and_roles_one_by_one_when_these_are_ready() -> None:
    world = with_roles()
    assert world.step() == [WritePlan()]
    assert world.step() == [Start("gateway"), Start("engine")]
    world.running["engine"].health = LOADING
    assert world.step() == []
    world.running["gateway"].health = READY
    assert world.step(10) == []
    assert world.record("engine").sentence == "loading weights"
    world.running["engine"].health = READY
    assert world.step() == []  # ready; what it holds then is not known yet
    assert world.step() == [Start("narrator")]
    assert world.step() == []
    world.running["narrator"].health = READY
    assert world.step() == [Start("shadow-reader")]


def test_a_program_without_a_socket_is_ready_when_it_runs() -> None:
    programs = [make_program("gateway", socket=None), make_program("engine")]
    world = World(make_plan(programs=programs))
    world.step()
    world.step()
    world.step()
    assert world.states() == {"gateway": "ready", "engine": "starting"}


def test_what_runs_already_is_adopted_and_left_alone() -> None:
    world = up(with_roles())
    heir = World(world.state.plan)  # a director that remembers nothing
    heir.running, heir.written, heir.now = world.running, world.written, world.now
    heir.settle()
    assert heir.starts == []
    assert heir.running["engine"].told == ["live"]  # the one thing it cannot know
    assert {record.pid for record in heir.state.programs.values()} == {p.pid for p in world.running.values()}


def test_memory_survives_as_json() -> None:
    world = up(with_roles())
    copy = msgspec.json.decode(msgspec.json.encode(world.state), type=State)
    assert copy == world.state
    world.state = copy
    assert world.step() == []


# --- crashes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gateway", "engine", "narrator"])
def test_a_crash_restarts_that_program_and_touches_no_other(name: str) -> None:
    world = up(with_roles())
    others = {other: process.pid for other, process in world.running.items() if other != name}
    world.die(name)
    assert world.step() == []
    assert world.record(name).state is ProgramState.BACKOFF
    assert "was killed by a signal; starts again in 0.5 s" in world.record(name).sentence
    assert world.step(FIRST_WAIT) == [Start(name)]
    world.settle()
    assert {other: world.running[other].pid for other in others} == others
    assert world.record(name).restarts == 1


def test_waits_double_and_a_stable_time_forgets() -> None:
    world = up()
    waits = []
    for _ in range(9):
        world.die("engine")
        world.step()
        waits.append(world.record("engine").until - world.now)
        world.step(waits[-1])
        world.step()
    assert waits == pytest.approx([0.5, 1, 2, 4, 8, 16, 32, LONGEST_WAIT, LONGEST_WAIT])
    assert "9 times in a row" not in world.record("engine").sentence
    world.settle()
    world.step(STABLE)
    world.die("engine")
    world.step()
    assert world.record("engine").until - world.now == pytest.approx(FIRST_WAIT)
    assert world.record("engine").restarts == 9


def test_a_helper_that_cannot_start_holds_nobody_up() -> None:
    world = with_roles()
    for _ in range(10):
        for name, process in world.running.items():
            process.health = READY if name != "narrator" else None
        world.step()
        world.die("narrator")
    assert "shadow-reader" in world.running


def test_a_gateway_comes_back_while_a_helper_loads() -> None:
    world = with_roles()
    for _ in range(6):
        for name in ("gateway", "engine"):
            if name in world.running:
                world.running[name].health = READY
        world.step()
    assert world.states()["narrator"] == "starting"
    world.die("gateway")
    world.step()
    assert world.step(1) == [Start("gateway")]


def test_not_ready_in_time_is_killed_and_counts_as_a_crash() -> None:
    world = World(make_plan())
    world.step()
    world.step()
    world.running["gateway"].health, world.running["engine"].health = LOADING, READY
    assert world.step(29.8) == []
    assert world.step(0.3) == [Kill("gateway")]
    world.step()
    assert world.record("gateway").crashes == 1
    assert "was not ready within 30 s" in world.record("gateway").sentence


def test_a_slow_load_that_moves_is_not_late() -> None:
    world = World(make_plan())
    world.step()
    world.step()
    world.running["engine"].health = READY
    for share in (0.0, 0.1, 0.2, 0.3):
        world.running["gateway"].health = replace(LOADING, progress=share)
        assert world.step(29) == []
    assert world.step(29) == []
    assert world.step(2) == [Kill("gateway")]


def test_a_process_that_does_not_answer_is_killed_in_the_end() -> None:
    world = up()
    world.running["engine"].unanswered = UNANSWERED - 1
    assert world.step() == []
    world.running["engine"].unanswered = UNANSWERED
    assert world.step() == [Kill("engine")]
    world.step()
    assert "hung: 5 health questions" in world.record("engine").sentence


@pytest.mark.parametrize(("age", "running", "killed"), [(119, 1, False), (121, 0, False), (121, 1, True)])
def test_a_device_thread_without_life_is_a_hang_only_while_requests_run(age: float, running: int, killed: bool) -> None:
    assert TURN_SILENCE == 120
    world = up()
    world.running["engine"].health = replace(READY, last_turn_age=float(age), running=running)
    assert world.step() == ([Kill("engine")] if killed else [])


def test_no_role_starts_behind_one_that_is_being_killed() -> None:
    world = with_roles()
    world.step()
    world.step()
    world.running["gateway"].health = world.running["engine"].health = READY
    world.running["gateway"].unanswered = UNANSWERED
    assert world.step() == [Kill("gateway")]


def test_one_found_stopping_is_left_to_stop() -> None:
    world = up()
    edit(world, gateway="2")
    world.step()
    world.state = world.saved  # the director died after it had sent TERM
    assert world.step() == []
    assert world.states()["gateway"] == "stopping"
    world.die("gateway")
    world.settle()
    assert world.running["gateway"].fingerprint == "gateway-2"


def test_a_process_that_says_it_failed_is_replaced_and_its_sentence_is_kept() -> None:
    world = up()
    world.running["engine"].health = replace(READY, ready=False, state="failed", sentence="the device is gone")
    assert world.step() == [Kill("engine")]
    world.step()
    assert world.record("engine").sentence == "the device is gone; starts again in 0.5 s"


def test_another_process_in_its_place_is_adopted() -> None:
    world = up()
    world.running["engine"].pid = 9999  # somebody used supervisorctl
    assert world.step() == []
    assert (world.record("engine").pid, world.states()["engine"]) == (9999, "starting")
    world.settle()
    assert world.starts.count("engine") == 1


# --- edits ------------------------------------------------------------------------------------------------------


def test_an_engine_edit_drains_stops_and_starts_with_the_new_plan() -> None:
    world = up(with_roles())
    others = {name: process.pid for name, process in world.running.items() if name != "engine"}
    world.running["engine"].health = replace(READY, running=1)
    edit(world, engine="2")
    assert world.step() == [WritePlan(), Drain("engine")]
    world.running["engine"].health = replace(DRAINING, running=1)
    assert world.step(5) == []
    world.running["engine"].health = DRAINING
    assert world.step() == [Stop("engine")]
    assert world.record("engine").sentence == STOPPING
    world.die("engine", "exited with status 0")
    assert world.step() == [Start("engine")]
    world.settle()
    assert world.running["engine"].fingerprint == "engine-2"
    assert {name: world.running[name].pid for name in others} == others
    assert world.state.report is not None and world.state.report.outcome == "applied"
    assert world.state.good == world.state.plan
    assert world.record("engine").crashes == world.record("engine").restarts == 0


def test_a_drain_does_not_wait_longer_than_its_timeout() -> None:
    world = up()
    edit(world, engine="2")
    world.step()
    world.running["engine"].health = replace(DRAINING, running=1)
    assert world.step(9) == []
    assert world.record("engine").sentence == "finishing its requests"
    assert world.step(1.1) == [Stop("engine")]
    assert world.record("engine").sentence == "1 request ended unfinished after 10 s"


def test_a_process_deaf_to_term_is_killed() -> None:
    world = up()
    edit(world, gateway="2")
    assert world.step() == [WritePlan(), Stop("gateway")]
    assert world.step(6.9) == []
    assert world.step(0.2) == [Kill("gateway")]


@pytest.mark.parametrize("death", ["crash", "late", "failed"])
def test_a_new_plan_that_does_not_get_healthy_is_rolled_back(death: str) -> None:
    world = up()
    edit(world, engine="bad")
    world.step()
    world.step()
    world.die("engine", "exited with status 0")
    world.step()
    assert world.running["engine"].fingerprint == "engine-bad"
    if death == "crash":
        world.die("engine", "exited with status 3")
    elif death == "late":
        world.step(31)
    else:
        world.running["engine"].health = replace(LOADING, state="failed", sentence="no such weights")
        world.step()
    actions = world.step()
    assert actions == [WritePlan()]
    assert world.step() == [Start("engine")]
    assert world.running["engine"].fingerprint == "engine-1"
    world.settle()
    report = world.state.report
    assert report is not None and report.outcome == "rolled_back"
    said = {"crash": "exited with status 3", "late": "was not ready within 30 s", "failed": "no such weights"}
    assert said[death] in report.sentence
    assert report.details == "last words"
    assert world.state.plan.id == "one"


def test_a_crash_elsewhere_during_a_trial_is_no_reason_to_roll_back() -> None:
    world = up()
    edit(world, engine="2")
    world.step()
    world.die("gateway")
    world.step()
    world.settle()
    assert world.running["engine"].fingerprint == "engine-2"


def test_a_role_that_fails_under_a_new_plan_is_no_reason_to_roll_back() -> None:
    world = up(with_roles())
    edit(world, narrator="bad")
    world.step()
    world.die("narrator")
    world.step()
    assert world.running["narrator"].fingerprint == "narrator-bad"
    world.die("narrator")
    world.step()
    assert world.states()["narrator"] == "backoff"
    assert world.state.plan.id == "two"
    assert world.state.report is not None and world.state.report.outcome == "applied"


def test_the_end_in_the_middle_of_a_trial_brings_nothing_back() -> None:
    world = up()
    edit(world, engine="bad")
    world.step()
    world.step()
    world.die("engine")
    world.step()
    assert world.running["engine"].fingerprint == "engine-bad"
    world.state = replace(world.state, stop=True)
    world.die("engine", "exited with status 3")
    world.step()
    assert world.state.plan.id == "two"
    world.settle()
    assert world.ended


def test_the_first_plan_has_no_way_back_and_is_tried_until_an_edit_mends_it() -> None:
    world = World(make_plan())
    for _ in range(4):
        world.step(70)
        if "gateway" in world.running:
            world.running["gateway"].health = READY
        world.die("engine", "exited with status 1")
    assert world.record("engine").crashes >= 1
    edit(world, engine="2")
    world.step()  # at once, whatever wait was left
    world.step()
    assert world.running["engine"].fingerprint == "engine-2"
    world.settle()
    assert world.record("engine").crashes == 0


def test_an_edit_taken_back_while_draining_resumes() -> None:
    world = up()
    pid = world.running["engine"].pid
    edit(world, engine="2")
    world.step()
    world.running["engine"].health = replace(DRAINING, running=1)
    world.step()
    world.state = propose(world.state, make_plan("one"), "none", "as before", 6.0)
    assert world.step() == [WritePlan(), Resume("engine")]
    world.settle()
    assert world.running["engine"].pid == pid
    report = world.state.report
    assert report is not None and (report.outcome, report.change) == ("applied", "none")
    assert report.sentence == "taken back before it acted; nothing restarted"


def test_an_edit_taken_back_after_it_acted_is_settled_when_all_is_ready_again() -> None:
    world = up()
    edit(world, engine="2")
    world.step()
    assert world.step() == [Stop("engine")]
    world.state = propose(world.state, make_plan("one"), "engine", "the engine restarts", 6.0)
    world.step()
    assert world.state.report is not None and world.state.report.outcome == "in_progress"
    world.die("engine", "exited with status 0")
    world.settle()
    assert world.running["engine"].fingerprint == "engine-1"
    assert world.state.report == ReloadReport(6.0, "applied", "engine", "the engine restarts")


def test_a_drain_that_a_dead_director_forgot_is_undone() -> None:
    world = up()
    world.running["engine"].health = DRAINING
    assert world.step() == [Resume("engine")]
    assert world.step() == []


def test_a_second_edit_during_a_trial_replaces_the_first() -> None:
    world = up()
    edit(world, "two", engine="2")
    for _ in range(3):
        world.step()
        world.die("engine") if "engine" in world.running and world.running["engine"].stopping else None
    world.step()
    assert world.running["engine"].fingerprint == "engine-2"
    edit(world, "three", engine="3")
    assert world.step() == [WritePlan(), Stop("engine")]  # it never was ready: nothing to drain
    world.settle()
    assert world.running["engine"].fingerprint == "engine-3"
    assert world.state.good == world.state.plan


def test_a_live_edit_tells_the_engine_once_and_restarts_nobody() -> None:
    world = up()
    pids = {name: process.pid for name, process in world.running.items()}
    world.state = propose(world.state, make_plan("two", live=make_live(max_queue=3)), "live", "max_queue", 5.0)
    assert world.step() == [WritePlan(), TellLive("engine")]
    assert world.state.report is not None and world.state.report.outcome == "applied"
    assert world.step() == []
    assert {name: process.pid for name, process in world.running.items()} == pids


def test_a_role_edit_restarts_that_role_only() -> None:
    world = up(with_roles())
    pids = {name: process.pid for name, process in world.running.items() if name != "narrator"}
    edit(world, narrator="2")
    assert world.step() == [WritePlan(), Stop("narrator")]
    world.settle()
    assert world.running["narrator"].fingerprint == "narrator-2"
    assert {name: world.running[name].pid for name in pids} == pids


def test_a_removed_program_is_stopped_and_forgotten() -> None:
    world = up(with_roles())
    plan = make_plan("two", [make_program(name) for name in ALL[:-1]])
    world.state = propose(world.state, plan, "role", "no shadow reader", 5.0)
    assert world.step() == [WritePlan(), Stop("shadow-reader")]
    world.die("shadow-reader")
    assert world.step() == [Remove("shadow-reader")]
    assert "shadow-reader" not in world.state.programs
    assert world.step() == []


def test_a_refused_edit_changes_nothing_but_the_report() -> None:
    world = up()
    before = world.state
    world.state = refuse(world.state, "2 errors", "error[unknown-key]", 5.0)
    assert world.step() == []
    assert replace(world.state, report=None) == replace(before, report=None)
    assert world.state.report is not None and world.state.report.details == "error[unknown-key]"


# --- the end ----------------------------------------------------------------------------------------------------


def test_the_end_drains_then_stops_in_reverse_order() -> None:
    world = up(with_roles())
    world.running["engine"].health = replace(READY, running=1)
    world.state = replace(world.state, stop=True)
    assert world.step() == [Drain("engine")]
    world.running["engine"].health = replace(DRAINING, running=1)
    assert world.step() == []
    world.running["engine"].health = DRAINING
    stopped = []
    while not world.ended:
        for action in world.step():
            if isinstance(action, Stop):
                assert len(world.running) == 4 - len(stopped), "the one before has not ended yet"
                stopped.append(action.name)
        for name in [name for name, process in world.running.items() if process.stopping]:
            world.die(name, "exited with status 0")
    assert stopped == ["shadow-reader", "narrator", "engine", "gateway"]


def test_the_end_while_things_crash_and_load() -> None:
    world = with_roles()
    world.step()
    world.step()
    world.running["gateway"].health = READY
    world.step()
    world.state = replace(world.state, stop=True)
    for _ in range(20):
        world.step()
        for name in [name for name, process in world.running.items() if process.stopping]:
            world.die(name)
        if world.ended:
            break
    assert world.ended and not world.running


# --- whatever happens -------------------------------------------------------------------------------------------


def test_every_state_can_be_left_and_reached() -> None:
    reached = {after for edges in TRANSITIONS.values() for after in edges}
    assert set(TRANSITIONS) == set(ProgramState) == reached
    assert set(ProgramState) > ALIVE


def test_an_edge_that_is_not_drawn_is_a_bug() -> None:
    world = up()
    stopped = replace(world.record("engine"), state=ProgramState.STOPPED)
    with pytest.raises(AssertionError, match="stopped -> ready"):
        become(stopped, ProgramState.READY, 0.0, sentence="")


EVENTS = st.one_of(
    st.tuples(st.sampled_from(["die", "ready", "loading", "hang", "failed", "stops"]), st.sampled_from(ALL[1:])),
    st.tuples(st.just("edit"), st.sampled_from(["engine", "gateway", "narrator", "live", "fewer"])),
    st.tuples(st.just("forget"), st.just("director")),
    st.tuples(st.just("reborn"), st.sampled_from(ALL[1:])),
)


def happen(world: World, kind: str, subject: str, number: int) -> None:
    process = world.running.get(subject)
    if kind == "edit":
        plan = world.state.plan
        names = ALL[:3] if subject == "fewer" else ALL
        programs = [
            make_program(name, str(number)) if name == subject else plan.program(name) or make_program(name)
            for name in names
        ]
        live = make_live(max_queue=number) if subject == "live" else plan.live
        world.state = propose(world.state, make_plan(f"plan-{number}", programs, live=live), subject, "", 0.0)
    elif kind == "forget":  # the director dies after it acted and before it could remember
        world.state = world.saved
    elif process is None:
        return
    elif kind == "die":
        world.die(subject)
    elif kind == "stops" and process.stopping:
        world.die(subject, "exited with status 0")
    elif kind == "hang":
        process.unanswered = UNANSWERED
    elif kind == "reborn":
        process.pid += 5000
    elif kind in ("ready", "loading", "failed") and not process.stopping:
        process.health = {"ready": READY, "loading": LOADING, "failed": replace(LOADING, state="failed")}[kind]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0.01, 40)), max_size=40))
def test_any_history_keeps_the_rules_and_ends_at_the_plan(history: list[tuple[tuple[str, str], float]]) -> None:
    """`World` checks at every step: no program twice, none before its plan or before what it needs."""
    world = with_roles()
    for number, ((kind, subject), seconds) in enumerate(history):
        happen(world, kind, subject, number)
        world.step(seconds)
    for process in world.running.values():  # from here on nothing fails
        process.unanswered = 0
        if not process.stopping:
            process.health = READY
    world.settle(steps=2000, seconds=1.0)
    wanted = {program.name: program.fingerprint for program in world.state.plan.programs if program.kind != "director"}
    assert {name: process.fingerprint for name, process in world.running.items()} == wanted
    assert set(world.states().values()) == {"ready"}
    world.state = replace(world.state, stop=True)
    world.settle()
    assert world.ended and not world.running
