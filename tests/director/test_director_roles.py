"""Roles under the director: what it sees of them, and that their processes follow what residency decided."""

from __future__ import annotations

from dataclasses import replace as replace_reading

import msgspec
import pytest
from appliances import MEMORY, READY, World, make_plan, make_program, make_role
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tandem.contract.messages import Counters, MemoryPart, RoleState
from tandem.contract.plan import Floors
from tandem.director.decide import UNANSWERED
from tandem.director.notice import FIRST_WAIT
from tandem.director.roles import engine_facts, held_by, roles_freed
from tandem.director.state import Kill, Start, State, Stop
from tandem.director.trial import propose
from tandem.residency.controller import EngineFacts
from tandem.units import GIB

S = RoleState
ALL = ("director", "gateway", "engine", "decider-0", "narrator", "shadow-reader")
CLAIM = GIB
FREE = MEMORY.available  # 8 GiB, before any role


class Box(World):
    """A world whose roles take their claims. Floor 2 GiB, hard floor 1, margin 1; the engine grows by 1 GiB."""

    def __init__(self, version: str = "1", id: str = "one") -> None:
        plan = make_plan(id, [make_program(name, version) for name in ALL])
        roles = tuple(make_role(role.name, CLAIM) for role in plan.roles)
        live = replace(plan.live, floors=Floors(2 * GIB, GIB, GIB))
        super().__init__(replace(plan, roles=roles, live=live))
        self.free = FREE

    def step(self, seconds: float = 0.1):  # type: ignore[no-untyped-def]
        roles = {role.name for role in self.state.plan.roles}
        held = sum(CLAIM for name in self.running if name in roles)
        self.memory = replace_reading(MEMORY, available=self.free - held)
        return super().step(seconds)

    def up(self) -> Box:
        self.settle()
        assert set(self.states().values()) == {"ready"}
        self.journal.clear()
        return self

    def role(self, name: str) -> RoleState:
        return self.state.roles.by_name[name].state

    def stopped(self) -> None:
        for name in [name for name, process in self.running.items() if process.stopping]:
            self.die(name, "exited with status 0")

    def story(self) -> list[str]:
        return [f"{event.subject} {event.act}" for event in self.journal]


def test_roles_come_up_one_at_a_time_after_the_engine() -> None:
    world = Box()
    world.settle()
    assert world.starts == list(ALL[1:])
    assert world.story() == [f"{name} {act}" for name in ALL[3:] for act in ("loading", "loaded")]


def test_what_the_engine_asks_for_is_stopped_and_told() -> None:
    world = Box().up()
    world.state = replace(world.state, asked=CLAIM + 1)
    assert world.step() == [Stop("narrator"), Stop("shadow-reader")]
    assert roles_freed(world.state).bytes == 2 * CLAIM
    assert world.state.asked == 0
    world.stopped()
    world.step()
    world.step()
    assert roles_freed(world.state).bytes == 0, "it is back"
    assert world.story() == [
        "shadow-reader unloaded",
        "narrator unloaded",
        "narrator freed",
        "shadow-reader freed",
    ]
    assert world.states()["narrator"] == "stopped"


def test_a_role_that_is_deaf_to_term_is_killed() -> None:
    world = Box().up()
    world.state = replace(world.state, asked=1)
    world.step()
    grace = world.state.plan.programs[-1].stop_timeout
    assert world.step(grace + 2.1) == [Kill("shadow-reader")]


def test_memory_under_the_hard_floor_unloads_without_being_asked() -> None:
    world = Box().up()
    world.free = 3 * CLAIM + GIB // 2
    world.step()
    assert world.step(1.1) == [Stop("shadow-reader")]
    world.stopped()
    world.step()
    assert world.step(5) == [], "half a GiB was short, a whole came back"
    assert [world.role(name) for name in ALL[3:]] == [S.LOADED, S.LOADED, S.UNLOADED_FOR_MEMORY]


def test_a_held_role_that_somebody_starts_is_stopped_again() -> None:
    world = Box().up()
    world.state = replace(world.state, asked=1)
    world.step()
    world.stopped()
    world.step()
    world._start("shadow-reader")
    assert world.step() == [Stop("shadow-reader")]


def test_a_held_role_comes_back_when_room_has_lasted() -> None:
    world = Box().up()
    world.state = replace(world.state, asked=1)
    world.step()
    world.stopped()
    for _ in range(59):
        assert world.step(1) == []
    for _ in range(4):
        world.step(1)
    assert world.starts[-1] == "shadow-reader"
    assert world.role("shadow-reader") is S.RELOADING
    world.settle()
    assert world.role("shadow-reader") is S.LOADED


@pytest.mark.parametrize("missing", ["engine", "gateway", "health"])
def test_nothing_comes_back_beside_an_appliance_that_is_not_whole(missing: str) -> None:
    world = Box().up()
    world.state = replace(world.state, asked=1)
    world.step()
    world.stopped()
    if missing == "health":
        world.running["engine"].health = None
    for _ in range(100):
        if missing != "health":
            world.die(missing)
        world.step(1)
    assert world.role("shadow-reader") is S.UNLOADED_FOR_MEMORY


def test_a_crash_backs_off_asks_again_and_touches_nobody() -> None:
    world = Box().up()
    others = {name: process.pid for name, process in world.running.items() if name != "narrator"}
    world.die("narrator")
    assert world.step() == []
    assert world.role("narrator") is S.FAILED
    assert world.step(FIRST_WAIT) == [Start("narrator")]
    world.settle()
    assert world.story() == ["narrator failed", "narrator loading", "narrator loaded"]
    assert {name: world.running[name].pid for name in others} == others
    assert world.record("narrator").restarts == 1


def test_a_crash_while_memory_is_short_ends_in_a_refusal() -> None:
    world = Box().up()
    world.die("narrator")
    world.free = 6 * GIB  # 4 are left: 1 of growth, 1 claimed, floor 2 and margin 1 are not
    world.step()
    assert world.step(FIRST_WAIT) == []
    assert world.role("narrator") is S.REFUSED
    assert world.journal[-1].figures["after"] == 2 * GIB


def test_one_that_hangs_is_cut_and_the_engine_is_not_touched() -> None:
    world = Box().up()
    engine = world.running["engine"].pid
    said = "hung: one piece of work has taken 21 s"
    world.running["narrator"].health = replace(READY, ready=False, state="failed", sentence=said)
    assert world.step() == [Kill("narrator")]
    world.step()
    assert said in world.record("narrator").sentence
    world.settle()
    assert world.running["engine"].pid == engine
    assert world.role("narrator") is S.LOADED


def test_an_edit_of_a_role_goes_through_residency() -> None:
    world = Box().up()
    plan = world.state.plan
    programs = [make_program(p.name, "2" if p.name == "narrator" else "1") for p in plan.programs]
    roles = tuple(make_role(role.name, 100 * GIB if role.name == "narrator" else CLAIM) for role in plan.roles)
    edited = replace(plan, id="two", programs=tuple(programs), roles=roles)
    world.state = propose(world.state, edited, "role", "a larger narrator", 5.0)
    pids = {name: process.pid for name, process in world.running.items() if name != "narrator"}
    assert world.step()[1:] == [Stop("narrator")]
    world.stopped()
    world.step()
    world.step()
    assert world.role("narrator") is S.REFUSED
    assert {name: process.pid for name, process in world.running.items()} == pids


def test_a_live_edit_of_the_floors_is_a_new_question() -> None:
    world = Box()
    world.free = 6 * GIB
    world.settle()
    assert world.role("shadow-reader") is S.REFUSED
    plan = world.state.plan
    lower = replace(plan, id="two", live=replace(plan.live, floors=Floors(GIB, GIB, 0)))
    world.state = propose(world.state, lower, "live", "a lower floor", 5.0)
    world.settle()
    assert world.role("shadow-reader") is S.LOADED


def test_an_edit_of_something_else_asks_nothing_anew() -> None:
    world = Box()
    world.free = 6 * GIB
    world.settle()
    assert world.role("shadow-reader") is S.REFUSED
    told = len(world.journal)
    plan = world.state.plan
    edited = replace(plan, id="two", live=replace(plan.live, ledger_days=7))
    world.state = propose(world.state, edited, "live", "a shorter ledger", 5.0)
    world.settle()
    assert (len(world.journal), world.written) == (told, "two")


def test_the_end_stops_roles_and_loads_none() -> None:
    world = Box().up()
    world.state = replace(world.state, asked=1)
    world.step()
    world.state = replace(world.state, stop=True)
    world.settle()
    assert world.ended
    assert "reloading" not in str(world.story())


def test_a_director_that_forgot_everything_takes_roles_as_they_run() -> None:
    world = Box().up()
    heir = Box()
    heir.running, heir.written, heir.now = world.running, world.written, world.now
    heir.settle()
    assert heir.starts == []
    assert [heir.role(name) for name in ALL[3:]] == [S.LOADED] * 3


def test_what_was_held_is_held_by_the_next_director() -> None:
    world = Box().up()
    world.state = replace(world.state, asked=1)
    world.step()
    copy = msgspec.json.decode(msgspec.json.encode(world.state), type=State)
    assert copy == world.state
    assert copy.roles.by_name["shadow-reader"].state is S.UNLOADED_FOR_MEMORY


# --- what it sees -----------------------------------------------------------------------------------------------


def test_what_an_engine_says_about_its_memory() -> None:
    world = Box().up()
    counters = Counters(
        rounds_by_size={},
        rows=0,
        committed_tokens=0,
        prefill_rows=0,
        cached_rows=0,
        requests=0,
        refused=0,
        cancelled=0,
        peak_running=0,
        round_seconds=0.0,
        prefill_seconds=0.0,
        reclaims=7,
    )
    world.running["engine"].health = replace(
        READY, resident_bytes=10, cache_growth=3, reserved=4, waiting_memory=1, counters=counters
    )
    seen = engine_facts(world.state, world.facts())
    assert seen == EngineFacts(held=10, cache_growth=3, reserved=4, waiting=1, reclaims=7)


def test_what_lies_on_a_device_that_shares_the_memory_is_held_too() -> None:
    parts = (MemoryPart("weights and runtime", 50), MemoryPart("workspace", 20))
    assert held_by(replace(READY, resident_bytes=10, memory=parts)) == 70
    assert held_by(replace(READY, resident_bytes=100, memory=parts)) == 100


# --- the seeds' two refusals, live ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "claim", "after", "floors"),
    [
        ("shadow-reader", 6.5, "14.22", "15 is the floor"),
        ("decider-0", 3.0, "17.72", "15 is the floor and 4 its margin"),
    ],
)
def test_the_two_refusals_of_a_spark_to_the_hundredth(name: str, claim: float, after: str, floors: str) -> None:
    """28.97 GiB available by a faked reading, the engine at 76.40 of a declared peak of 84.65."""
    plan = make_plan(programs=[make_program(each) for each in (*ALL[:3], name)])
    world = World(
        replace(
            plan,
            live=replace(plan.live, floors=Floors(15 * GIB, 10 * GIB, 4 * GIB)),
            engine=replace(plan.engine, declared_peak=round(84.65 * GIB)),
            roles=(make_role(name, round(claim * GIB)),),
        )
    )
    world.memory = replace_reading(MEMORY, available=round(28.97 * GIB))
    for _ in range(8):
        world.step()
        for process in world.running.values():
            process.health = replace(READY, resident_bytes=round(76.40 * GIB))
    assert name not in world.running
    (event,) = world.journal
    assert (event.act, event.subject) == ("refused", name)
    assert event.sentence == (
        f"not loaded: kept free for requests: 28.97 available, 8.25 still to grow, {claim:g} claimed, {after} would "
        f"be left, {floors}"
    )
    assert event.figures["after"] == pytest.approx(float(after) * GIB, abs=0.005 * GIB)


# --- whatever happens -------------------------------------------------------------------------------------------

EVENTS = st.one_of(
    st.tuples(st.just("die"), st.sampled_from(ALL[1:])),
    st.tuples(st.just("hang"), st.sampled_from(ALL[2:])),
    st.tuples(st.just("stops"), st.sampled_from(ALL[1:])),
    st.tuples(st.just("forget"), st.just("")),
    st.tuples(st.just("asked"), st.integers(1, 4 * GIB)),
    st.tuples(st.just("free"), st.integers(0, FREE)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0.01, 40)), max_size=40))
def test_any_history_ends_with_every_role_in_memory(history: list[tuple[tuple[str, str | int], float]]) -> None:
    """`World` checks at every step: no program twice, none before what it needs."""
    world = Box()
    for (kind, what), seconds in history:
        process = world.running.get(str(what))
        if kind == "asked":
            world.state = replace(world.state, asked=int(what))
        elif kind == "free":
            world.free = int(what)
        elif kind == "forget":  # the director dies after it acted and before it could remember
            world.state = world.saved
        elif process is not None and kind == "hang":
            process.unanswered = UNANSWERED
        elif process is not None and (kind == "die" or process.stopping):
            world.die(str(what))
        for other in world.running.values():
            other.health = other.health or READY
        world.step(seconds)
        held = [name for name, role in world.state.roles.by_name.items() if role.state is S.UNLOADED_FOR_MEMORY]
        assert all(world.running[name].stopping for name in held if name in world.running)
    world.free = FREE
    for _ in range(3000):
        for process in world.running.values():
            process.health, process.unanswered = READY, 0
        world.step(5)
        world.stopped()
        if world.states().keys() == set(ALL[1:]) and set(world.states().values()) == {"ready"}:
            return
    raise AssertionError(f"{world.states()}, {world.state.roles}")
