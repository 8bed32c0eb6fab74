"""The roles' controller, driven by hand and over random histories of memory. No clocks, no processes."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tandem.contract.messages import RoleState
from tandem.contract.plan import Basis, Floors, Hysteresis, RolePlan
from tandem.residency import controller
from tandem.residency.controller import (
    COMING,
    OUT,
    PATIENCE,
    SETTLE,
    TRANSITIONS,
    WANTED,
    EngineFacts,
    Facts,
    Role,
    Roles,
    Rules,
    Seen,
    become,
    decide,
    wait_of,
)
from tandem.residency.journal import Event
from tandem.units import GIB

S = RoleState
ENGINE = EngineFacts(held=10 * GIB, cache_growth=0, reserved=0, waiting=0, reclaims=0)
CLAIMS = {"decider-0": 1, "narrator": 2, "shadow-reader": 3}  # GiB


def role(name: str, claim: float) -> RolePlan:
    return RolePlan(name, name.rstrip("0123456789-"), "native", "m", "cpu", round(claim * GIB), Basis.MEASURED)


def rules(**changes: object) -> Rules:
    """Floor 4 GiB, hard floor 2, margin 1; room is 4 + claim + 4; one minute, ten minutes, an hour."""
    said = Rules(
        roles=tuple(role(name, claim) for name, claim in CLAIMS.items()),
        floors=Floors(floor=4 * GIB, hard_floor=2 * GIB, margin=GIB),
        hysteresis=Hysteresis(
            reload_margin=4 * GIB, reload_after=60.0, thrash=600.0, max_hold=3600.0, unload_deciders=False
        ),
        declared_peak=10 * GIB,
    )
    return replace(said, **changes)


@dataclass
class Box:
    """Memory and processes that do what the controller wants: one look after the other."""

    free: float = 20.0  # GiB available before any role has taken its own
    rules: Rules = field(default_factory=rules)
    engine: EngineFacts | None = ENGINE
    obeys: bool = True  # False: processes stay as they are
    now: float = 1000.0
    roles: Roles = field(default_factory=Roles)
    seen: dict[str, Seen] = field(default_factory=dict)
    journal: list[Event] = field(default_factory=list)

    @property
    def available(self) -> int:
        holding = {Seen.UP, Seen.COMING, Seen.GOING}
        held = sum(plan.claim for plan in self.rules.roles if self.seen.get(plan.name) in holding)
        return round(self.free * GIB) - held

    def look(self, seconds: float = 0.2, asked: float = 0.0) -> list[str]:
        """Decide once, then let the processes follow. Returns what was done, as `name act`."""
        self.now += seconds
        facts = Facts(self.available, self.engine, dict(self.seen), round(asked * GIB))
        before = self.roles
        self.roles, events = decide(self.roles, self.rules, facts, self.now)
        self.journal += events
        for plan in self.rules.roles:
            check_edge(before.by_name.get(plan.name, Role()), self.roles.by_name[plan.name])
            if self.obeys:
                self._obey(plan.name)
        return [f"{event.subject} {event.act}" for event in events]

    def _obey(self, name: str) -> None:
        """A process takes a look to come up and one to go."""
        seen, is_wanted = self.seen.get(name, Seen.GONE), controller.is_wanted(self.roles, name)
        following = {
            (Seen.GONE, True): Seen.COMING,
            (Seen.COMING, True): Seen.UP,
            (Seen.UP, False): Seen.GOING,
            (Seen.COMING, False): Seen.GOING,
            (Seen.GOING, False): Seen.GONE,
        }
        self.seen[name] = following.get((seen, is_wanted), seen)

    def run(self, seconds: float, every: float = 1.0) -> list[str]:
        done = []
        for _ in range(round(seconds / every)):
            done += self.look(every)
        return done

    def states(self) -> list[RoleState]:
        return [self.roles.by_name[plan.name].state for plan in self.rules.roles]

    def of(self, name: str) -> Role:
        return self.roles.by_name[name]

    def wait(self, name: str) -> float:
        return wait_of(self.of(name), self.rules.hysteresis)


def check_edge(before: Role, after: Role) -> None:
    if before.state is not after.state:
        later = {step for first in TRANSITIONS[before.state] for step in TRANSITIONS[first]}
        assert after.state in TRANSITIONS[before.state] | later, f"{before.state} -> {after.state}"


def loaded(**changes: object) -> Box:
    box = Box(rules=rules(**changes))
    box.run(20)
    assert box.states() == [S.LOADED] * 3
    box.journal.clear()
    return box


def squeezed(**changes: object) -> Box:
    """Loaded; then others take memory until the shadow reader and the narrator have gone and the floor is reached."""
    box = loaded(**changes)
    box.free = 3.5
    box.run(10)
    assert box.states() == [S.LOADED, S.UNLOADED_FOR_MEMORY, S.UNLOADED_FOR_MEMORY]
    box.journal.clear()
    return box


# --- loading ----------------------------------------------------------------------------------------------------


def test_roles_load_in_the_plan_s_order_one_at_a_time() -> None:
    box = Box()
    done = box.run(10)
    names = list(CLAIMS)
    assert done == [f"{name} {act}" for name in names for act in ("loading", "loaded")]
    assert box.journal[0].figures["after"] == 19 * GIB
    assert box.journal[1].figures == {"claim": GIB, "available": 19 * GIB}


def test_nothing_loads_before_the_engine_is_ready() -> None:
    box = Box(engine=None)
    assert box.run(100) == []
    assert box.states() == [S.WAITING] * 3
    box.engine = ENGINE
    assert box.look() == ["decider-0 loading"]


def test_a_leave_is_void_when_the_engine_it_was_given_beside_has_gone() -> None:
    box = Box(obeys=False)
    box.look()
    assert box.states()[0] is S.STARTING
    box.engine = None
    box.look()
    assert box.states()[0] is S.WAITING


@pytest.mark.parametrize(("claim", "after", "margin_said"), [(6.5, 14.22, False), (3.0, 17.72, True)])
def test_the_seeds_two_refusals(claim: float, after: float, margin_said: bool) -> None:
    """28.97 available, the engine at 76.40 of 84.65, floor 15, margin 4."""
    box = Box(
        free=28.97,
        engine=replace(ENGINE, held=round(76.40 * GIB)),
        rules=rules(
            roles=(role("shadow-reader", claim),),
            floors=Floors(15 * GIB, 10 * GIB, 4 * GIB),
            declared_peak=round(84.65 * GIB),
        ),
    )
    assert box.look() == ["shadow-reader refused"]
    (event,) = box.journal
    assert f"28.97 available, 8.25 still to grow, {claim:g} claimed, {after} would be left, 15 is the floor" in (
        event.sentence
    )
    assert ("4 its margin" in event.sentence) is margin_said
    assert event.figures["after"] == pytest.approx(after * GIB, abs=0.005 * GIB)
    assert box.of("shadow-reader").sentence == event.sentence
    assert box.run(600) == [], "said once"


def test_a_refused_role_lets_a_smaller_one_pass() -> None:
    box = Box(free=9.0)  # 9 - 1 and 8 - 2 are enough for floor and margin, 6 - 3 is not
    assert box.run(10) == [
        "decider-0 loading",
        "decider-0 loaded",
        "narrator loading",
        "narrator loaded",
        "shadow-reader refused",
    ]


def test_a_refused_role_loads_when_room_has_lasted() -> None:
    box = Box(free=9.0)
    box.run(10)
    box.free = 14.0  # 11 are left: 4 + 3 + 4
    assert box.run(60) == []
    assert box.run(4) == ["shadow-reader loading", "shadow-reader loaded"]


@pytest.mark.parametrize("change", ["claim", "floor", "margin", "engine"])
def test_an_edit_of_what_it_was_refused_for_is_a_new_question(change: str) -> None:
    box = Box(free=10.5)  # 7.5 - 3 are more than the floor, less than floor and margin
    box.run(10)
    assert box.states()[2] is S.REFUSED
    floors = box.rules.floors
    if change == "claim":
        box.rules = replace(box.rules, roles=(*box.rules.roles[:2], role("shadow-reader", 0.5)))
    elif change == "engine":
        box.engine = None
        box.look()
        box.engine = ENGINE
        box.free = 12.0
    else:
        box.rules = replace(box.rules, floors=replace(floors, **{change: getattr(floors, change) // 4}))
    assert "shadow-reader loading" in box.run(2)


# --- unloading --------------------------------------------------------------------------------------------------


def test_the_order_under_pressure() -> None:
    box = loaded()
    box.free = 7.5  # 1.5 are left
    assert box.run(3, 0.2) == ["shadow-reader unloaded", "shadow-reader freed"]
    box.free = 4.0
    assert box.run(3, 0.2) == ["narrator unloaded", "narrator freed"]
    box.free = 2.0
    assert box.run(30, 0.2) == [], "a decider goes only when declared so"
    assert box.states() == [S.LOADED, S.UNLOADED_FOR_MEMORY, S.UNLOADED_FOR_MEMORY]


def test_deciders_go_last_and_only_when_declared() -> None:
    two = (role("decider-0", 1), role("narrator", 2), role("decider-1", 1), role("shadow-reader", 3))
    box = Box(rules=rules(roles=two, hysteresis=replace(rules().hysteresis, unload_deciders=True)))
    box.run(20)
    box.journal.clear()
    box.free = 0.5
    box.run(30, 0.2)
    unloaded = [event.subject for event in box.journal if event.act == "unloaded"]
    assert unloaded == ["shadow-reader", "narrator", "decider-1", "decider-0"]


def test_the_engine_s_own_ladder_comes_first() -> None:
    box = loaded()
    box.free = 7.0
    assert box.run(PATIENCE - 0.1, 0.1) == []
    assert box.look(0.3) == ["shadow-reader unloaded"]
    box.free = 20.0
    assert box.of("shadow-reader").leaving is not None


def test_a_dip_that_passes_unloads_nobody() -> None:
    box = loaded()
    for _ in range(20):
        box.free = 7.0
        assert box.look(PATIENCE * 0.8) == []
        box.free = 20.0
        assert box.look(0.2) == []


@pytest.mark.parametrize(("asked", "gone"), [(0.1, 1), (3.0, 1), (3.1, 2), (5.0, 2), (50.0, 2)])
def test_who_asks_gets_no_more_roles_than_it_needs_at_once(asked: float, gone: int) -> None:
    box = loaded()
    box.look(asked=asked)
    unloaded = [event.subject for event in box.journal]
    assert unloaded == ["shadow-reader", "narrator"][:gone]
    assert controller.coming_back(box.roles, box.rules) == sum((3, 2)[:gone]) * GIB


def test_one_that_is_still_loading_leaves_like_the_others() -> None:
    box = Box()
    while "shadow-reader loading" not in box.look():
        pass
    assert box.look(asked=1) == ["shadow-reader unloaded"]
    box.run(1, 0.2)
    assert box.seen["shadow-reader"] is Seen.GONE


def test_what_is_on_its_way_back_is_not_asked_for_again() -> None:
    box = loaded()
    box.look(asked=3)
    assert box.look(asked=2.5) == []
    box.run(3)
    assert box.look(asked=2.5) == ["narrator unloaded"], "it is back, and was not enough"


def test_memory_that_is_back_is_waited_for_no_longer() -> None:
    box = loaded()
    box.look(asked=3)
    box.look(0.1)
    assert box.look(0.1) == ["shadow-reader freed"]


def test_memory_that_somebody_else_took_is_not_waited_for() -> None:
    box = loaded()
    box.look(asked=3)
    box.look()
    box.free -= 3.0
    box.look(0.1)
    assert box.of("shadow-reader").leaving is not None
    assert box.look(SETTLE) == ["shadow-reader freed"]
    assert box.journal[-1].sentence.startswith("it has ended, and others have its memory after")


def test_an_unload_tells_its_numbers() -> None:
    box = loaded()
    box.look(asked=0.5)
    (event,) = box.journal
    assert event.sentence == (
        "unloaded for memory: 512.0 MiB are short, 14.0 GiB are available and its claim is 3.0 GiB; it comes back "
        "when there has been room of 11.0 GiB for 60 s"
    )
    assert event.figures == {"claim": 3 * GIB, "short": GIB // 2, "available": 14 * GIB, "wait_seconds": 60}
    box.run(3)
    assert box.journal[-1].sentence.endswith("14.0 GiB were available, 17.0 GiB are")


# --- coming back ------------------------------------------------------------------------------------------------


def test_they_come_back_in_order_after_the_wait() -> None:
    box = squeezed()
    box.free = 20.0
    assert box.run(60) == []
    done = box.run(60)
    assert done == ["narrator reloading", "narrator reloaded", "shadow-reader reloading", "shadow-reader reloaded"]
    assert "there has been room for 60 s" in box.journal[0].sentence


@pytest.mark.parametrize(
    ("short_by", "comes"), [(0.0, True), (0.01, False)], ids=["exactly enough", "a little too little"]
)
def test_room_is_floor_claim_and_reload_margin(short_by: float, comes: bool) -> None:
    box = squeezed()
    box.free = 1 + 4 + 2 + 4 - short_by  # the decider's, floor, claim, reload margin
    assert ("narrator reloading" in box.run(200)) is comes


@pytest.mark.parametrize("change", [{"cache_growth": GIB}, {"reserved": GIB}, {"waiting": 1}])
def test_what_the_engine_may_still_take_is_no_room(change: dict[str, int]) -> None:
    box = squeezed()
    box.free = 11.5  # half a GiB more than the narrator needs
    box.engine = replace(ENGINE, **change)
    assert box.run(200) == []
    box.engine = ENGINE
    assert "narrator reloading" in box.run(70)


def test_room_is_nothing_without_residency_s_leave() -> None:
    box = squeezed(hysteresis=replace(rules().hysteresis, reload_margin=0))
    box.free = 9.0  # 8 - 2 of growth - 2 of its claim are less than floor and margin
    box.engine = replace(ENGINE, held=8 * GIB)
    assert box.run(200) == []
    box.engine = ENGINE
    assert "narrator reloading" in box.run(70)


@pytest.mark.parametrize("broken", ["room", "waiting", "reclaim", "engine"])
def test_a_break_starts_the_wait_anew(broken: str) -> None:
    box = squeezed()
    box.free = 20.0
    assert box.run(55) == []
    if broken == "room":
        box.free = 8.0
    elif broken == "waiting":
        box.engine = replace(ENGINE, waiting=1)
    elif broken == "reclaim":
        box.engine = replace(ENGINE, reclaims=1)
    else:
        box.engine = None
    box.look()
    box.free, box.engine = 20.0, ENGINE
    box.look()
    assert box.run(58) == []
    assert box.run(4)[0] == "narrator reloading"


def test_unloaded_again_too_soon_waits_twice_as_long_up_to_a_limit() -> None:
    box = squeezed()
    waits = []
    for _ in range(8):
        box.free = 20.0
        began = box.now
        while "narrator reloading" not in box.look(1.0):
            pass
        waits.append(round(box.now - began))
        box.free = 3.5
        box.run(10)
    assert waits == pytest.approx([60, 120, 240, 480, 960, 1920, 3600, 3600], abs=2)
    assert "after it had come back" in box.of("narrator").sentence


def test_a_reload_that_lasted_forgets_the_doubling() -> None:
    box = squeezed()
    box.free = 20.0
    box.run(70)
    box.free = 3.5
    box.run(10)
    assert box.wait("narrator") == 120
    box.free = 20.0
    box.run(130 + 600)
    box.free = 3.5
    box.run(10)
    assert box.wait("narrator") == 60


def test_an_edit_of_the_wait_acts_on_those_who_wait() -> None:
    box = squeezed()
    box.free = 20.0
    box.run(10)
    box.rules = replace(box.rules, hysteresis=replace(box.rules.hysteresis, reload_after=5.0))
    assert box.look() == ["narrator reloading"]


def test_the_shadow_reader_waits_for_a_narrator_that_has_room() -> None:
    box = squeezed()
    box.roles = replace(box.roles, by_name={**box.roles.by_name, "narrator": replace(box.of("narrator"), doublings=2)})
    box.free = 20.0
    assert box.run(239) == []
    assert box.run(80)[::2] == ["narrator reloading", "shadow-reader reloading"]


def test_a_narrator_without_room_holds_nobody_up() -> None:
    box = squeezed(roles=(role("decider-0", 1), role("narrator", 9), role("shadow-reader", 3)))
    box.free = 13.0
    assert box.run(70) == ["shadow-reader reloading", "shadow-reader reloaded"]


def test_nothing_loads_while_another_is_on_its_way() -> None:
    box = squeezed()
    box.free = 20.0
    box.seen["decider-0"] = Seen.COMING
    box.obeys = False
    assert box.run(200) == []
    box.seen["decider-0"] = Seen.UP
    assert box.look() == ["decider-0 loaded", "narrator reloading"]


# --- deaths and edits -------------------------------------------------------------------------------------------


def test_one_that_died_asks_again_when_its_wait_is_over() -> None:
    box = loaded()
    box.obeys = False
    box.seen["narrator"] = Seen.DEAD
    assert box.look() == ["narrator failed"]
    assert box.run(5) == []
    box.seen["narrator"] = Seen.GONE
    assert box.look() == ["narrator loading"]


def test_one_that_died_may_be_refused_when_memory_has_gone() -> None:
    box = loaded()
    box.obeys = False
    box.seen["narrator"] = Seen.DEAD
    box.look()
    box.free = 10.0
    box.seen["narrator"] = Seen.GONE
    assert box.look() == ["narrator refused"]


def test_what_runs_already_is_taken_as_it_is() -> None:
    box = Box(seen={"narrator": Seen.UP, "shadow-reader": Seen.COMING})
    box.look()
    assert box.states() == [S.WAITING, S.LOADED, S.STARTING]


def test_one_that_an_edit_stopped_asks_for_its_memory_again() -> None:
    box = loaded()
    box.obeys = False
    box.seen["narrator"] = Seen.GOING
    box.look()
    assert box.states()[1] is S.WAITING
    box.seen["narrator"] = Seen.GONE
    assert box.look() == ["narrator loading"]


def test_a_role_that_the_plan_no_longer_has_is_forgotten() -> None:
    box = loaded()
    box.rules = replace(box.rules, roles=box.rules.roles[:1])
    box.look()
    assert set(box.roles.by_name) == {"decider-0"}


def test_memory_survives_as_json() -> None:
    box = squeezed()
    assert msgspec.json.decode(msgspec.json.encode(box.roles), type=Roles) == box.roles


def test_every_state_can_be_left_and_reached() -> None:
    reached = {after for edges in TRANSITIONS.values() for after in edges}
    assert set(TRANSITIONS) == set(RoleState) == reached
    with pytest.raises(AssertionError, match="waiting -> reloading"):
        become(Role(), S.RELOADING, 0.0, "")


# --- whatever memory does ---------------------------------------------------------------------------------------

MOVES = st.one_of(
    st.tuples(st.just("free"), st.floats(0, 25)),
    st.tuples(st.just("asked"), st.floats(0.01, 6)),
    st.tuples(st.just("waiting"), st.just(0.0)),
    st.tuples(st.just("reclaim"), st.just(0.0)),
    st.tuples(st.just("engine"), st.just(0.0)),
    st.tuples(st.just("die"), st.integers(0, 2)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(MOVES, st.floats(0.1, 90)), max_size=30), st.booleans())
def test_the_invariants_hold_over_any_history(history: list[tuple[tuple[str, float], float]], deciders: bool) -> None:
    """1. What we load leaves floor and margin free, growth counted, at the moment it is decided.
    2. Nothing loads on demand: a held role comes back only after a whole wait of unbroken room.
    3. Nothing flaps faster than the rule: no two reloads of a role within the shortest wait.
    4. Only one role is on its way at a time.
    5. Roles leave only when memory is short, in the order of their kinds, deciders only when declared so.
    6. A hold is released when room lasts.
    """
    said = rules()
    box = Box(rules=replace(said, hysteresis=replace(said.hysteresis, unload_deciders=deciders)))
    watch = Watch(box)
    for (kind, size), seconds in history:
        asked = size if kind == "asked" else 0.0
        if kind == "free":
            box.free = size
        elif kind == "waiting":
            box.engine = replace(ENGINE, waiting=1)
        elif kind == "reclaim" and box.engine is not None:
            box.engine = replace(box.engine, reclaims=box.engine.reclaims + 1)
        elif kind == "engine":
            box.engine = None if box.engine is not None else ENGINE
        elif kind == "die" and box.seen.get(name := list(CLAIMS)[int(size)]) in (Seen.UP, Seen.COMING):
            box.seen[name] = Seen.DEAD
        watch.look(0.2, asked)
        for name, seen in box.seen.items():
            box.seen[name] = Seen.GONE if seen is Seen.DEAD else seen
        for _ in range(round(seconds)):
            watch.look(1.0)
    box.free, box.engine = 30.0, ENGINE
    for _ in range(3 * 3600 + 100):
        watch.look(1.0)
        if box.states() == [S.LOADED] * 3:
            break
    assert box.states() == [S.LOADED] * 3, "room lasts, and a hold is not released"


class Watch:
    """Looks, and checks every invariant that one look can show."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.room_since: dict[str, float] = {}
        self.unloads: dict[str, float] = {}
        self.reloads: dict[str, float] = {}

    def look(self, seconds: float, asked: float = 0.0) -> None:
        box = self.box
        before, available, reclaims = box.roles, box.available, box.roles.reclaims
        told = len(box.journal)
        box.look(seconds, asked)
        assert sum(role.state in COMING for role in box.roles.by_name.values()) <= 1
        for event in box.journal[told:]:
            old = before.by_name.get(event.subject, Role())
            if event.act in ("loading", "reloading"):
                self._check_load(event, available)
            if event.act == "reloading":
                self._check_reload(event.subject, old)
            if event.act == "unloaded":
                self._check_unload(event, available, asked)
        self._follow_room(available, reclaims)

    def _check_load(self, event: Event, available: int) -> None:
        box = self.box
        assert box.engine is not None
        claim = event.figures["claim"]
        growth = max(0, box.rules.declared_peak - box.engine.held)
        assert available - growth - claim >= box.rules.floors.floor + box.rules.floors.margin

    def _check_reload(self, name: str, old: Role) -> None:
        now, rule = self.box.now, self.box.rules.hysteresis
        assert old.state is S.UNLOADED_FOR_MEMORY
        assert now - self.room_since[name] >= wait_of(old, rule) >= rule.reload_after
        assert now - self.unloads[name] >= rule.reload_after
        assert now - self.reloads.get(name, 0.0) >= rule.reload_after
        self.reloads[name] = now

    def _check_unload(self, event: Event, available: int, asked: float) -> None:
        box = self.box
        assert asked or available < box.rules.floors.hard_floor
        kinds = controller.UNLOAD_ORDER
        plans = {plan.name: plan.kind for plan in box.rules.roles}
        kind = plans[event.subject]
        assert kind != "decider" or box.rules.hysteresis.unload_deciders
        earlier = [name for name, other in plans.items() if kinds.index(other) < kinds.index(kind)]
        assert not any(box.of(name).state in WANTED for name in earlier)
        self.unloads[event.subject] = box.now

    def _follow_room(self, available: int, reclaims: int | None) -> None:
        """Since when there has been room, found without the controller's own clock."""
        box = self.box
        for plan in box.rules.roles:
            is_calm = box.engine is not None and not box.engine.waiting and box.engine.reclaims == reclaims
            needed = box.rules.floors.floor + plan.claim + box.rules.hysteresis.reload_margin
            if not (is_calm and available >= needed and box.of(plan.name).state in OUT):
                self.room_since.pop(plan.name, None)
            else:
                self.room_since.setdefault(plan.name, box.now)
