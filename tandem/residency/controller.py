"""When a role loads, when it gives its memory back, and when it may come back. Pure: facts and the time come in.

A role's state says whether it is to have a process: those in `WANTED` do, the others do not, and whoever follows
makes it so. What was decided, and on which figures, comes out as lines of the journal.

The rules:
- Roles load one at a time, in the plan's order, once the engine is ready, and each only with residency's leave.
- Memory is short when the engine asks for some, or when it has been under the hard floor for `PATIENCE`: the engine's
  own ladder comes first. Then roles go, the shadow reader first, the narrator next, deciders only when declared so,
  no more of them than are needed, and what is on its way back is waited for.
- A role that is out of memory comes back after there has been room for it for a whole wait: headroom of floor, claim
  and reload margin, residency's leave, no request waiting for memory and no reclaim. Nothing loads it on demand.
- One that is unloaded within `thrash` of its reload waits twice as long; a reload that lasts longer forgets that.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from tandem.contract.messages import RoleState
from tandem.contract.plan import Floors, Hysteresis, Placement, RolePlan
from tandem.residency.journal import Event
from tandem.residency.placement import may_load
from tandem.units import format_bytes, format_duration

PATIENCE: Final = 1.0  # seconds under the hard floor; an engine looks ten times in it
SETTLE: Final = 1.0  # seconds from a process's end in which its memory must have come back, or somebody else has it
_MOST_DOUBLINGS: Final = 30  # no hold is longer
WAITS: Final = "waits for its turn after the engine"
UNLOAD_ORDER: Final = ("shadow-reader", "narrator", "decider")  # kinds

# --- states -----------------------------------------------------------------------------------------------------

_S = RoleState
TRANSITIONS: Final[dict[RoleState, frozenset[RoleState]]] = {
    _S.WAITING: frozenset({_S.STARTING, _S.LOADED, _S.REFUSED}),  # LOADED: found running
    _S.STARTING: frozenset({_S.LOADED, _S.FAILED, _S.UNLOADED_FOR_MEMORY, _S.WAITING}),
    _S.LOADED: frozenset({_S.STARTING, _S.FAILED, _S.UNLOADED_FOR_MEMORY, _S.WAITING}),  # WAITING: an edit stopped it
    _S.UNLOADED_FOR_MEMORY: frozenset({_S.RELOADING}),
    _S.RELOADING: frozenset({_S.LOADED, _S.FAILED, _S.UNLOADED_FOR_MEMORY, _S.WAITING}),
    _S.REFUSED: frozenset({_S.STARTING, _S.WAITING}),  # WAITING: what it was refused for has changed
    _S.FAILED: frozenset({_S.STARTING, _S.LOADED, _S.REFUSED}),
}
COMING: Final = frozenset({_S.STARTING, _S.RELOADING})
WANTED: Final = COMING | {_S.LOADED}
OUT: Final = frozenset({_S.UNLOADED_FOR_MEMORY, _S.REFUSED})  # residency keeps it out of memory
ASKING: Final = frozenset({_S.WAITING, _S.FAILED})
TOLD: Final = {  # what the journal calls what a process did
    (_S.STARTING, _S.LOADED): "loaded",
    (_S.RELOADING, _S.LOADED): "reloaded",
    (_S.STARTING, _S.FAILED): "failed",
    (_S.RELOADING, _S.FAILED): "failed",
    (_S.LOADED, _S.FAILED): "failed",
}


class Leaving(Struct, frozen=True):
    """Memory that is on its way back."""

    available: int  # before
    since: float
    gone: float | None = None  # when its process had ended


class Role(Struct, frozen=True):
    """One role, as remembered. `become` is the only way from one state to the next."""

    state: RoleState = _S.WAITING
    since: float = 0.0
    sentence: str = ""
    placement: Placement | None = None  # residency's last answer
    doublings: int = 0  # of the wait for room, because it was unloaded again too soon
    room_since: float | None = None  # OUT: there has been room since then
    reloaded: float | None = None  # when it came back last
    leaving: Leaving | None = None


UNASKED: Final = Role(sentence=WAITS)


class Roles(Struct, frozen=True):
    """All of them, and what is remembered of the memory they share."""

    by_name: dict[str, Role] = {}
    short_since: float | None = None  # under the hard floor since then
    reclaims: int | None = None  # of the engine, counted last


# --- facts and rules --------------------------------------------------------------------------------------------


class Seen(StrEnum):
    """What is seen of a role's process."""

    GONE = "gone"  # there is none, and one may start
    DEAD = "dead"  # it died by itself, and its wait is not over
    COMING = "coming"  # not ready yet
    UP = "up"
    GOING = "going"  # told to stop


class EngineFacts(Struct, frozen=True):
    """What a ready engine says about its memory. Bytes."""

    held: int
    cache_growth: int  # that caches may still take
    reserved: int  # that admitted requests may still take
    waiting: int  # requests that wait for memory
    reclaims: int  # since it started


class Facts(Struct, frozen=True):
    available: int  # MemAvailable
    engine: EngineFacts | None  # None: it is not ready, and nothing loads
    processes: dict[str, Seen]
    asked: int = 0  # bytes that the engine has asked roles for since the last look


class Rules(Struct, frozen=True):
    """What the plan says."""

    roles: tuple[RolePlan, ...]  # in the order in which they load
    floors: Floors
    hysteresis: Hysteresis
    declared_peak: int


class Decision(NamedTuple):
    roles: Roles
    events: list[Event]


def decide(roles: Roles, rules: Rules, facts: Facts, now: float) -> Decision:
    """One look. States follow the processes, then memory that is short, then memory that is there."""
    events: list[Event] = []
    for step in (follow, settle, give_back, watch_room, load):
        roles, more = step(roles, rules, facts, now)
        events += more
    return Decision(roles, events)


def is_wanted(roles: Roles, name: str) -> bool:
    return _of(roles, name).state in WANTED


def coming_back(roles: Roles, rules: Rules) -> int:
    """Bytes of claims that were given up and are not seen in MemAvailable yet."""
    return sum(role.claim for role in rules.roles if _of(roles, role.name).leaving)


# --- the steps, in order ----------------------------------------------------------------------------------------


def follow(roles: Roles, rules: Rules, facts: Facts, now: float) -> Decision:
    """What became of the processes, and of what a refusal rested on. Roles the plan no longer has are forgotten."""
    events = []
    by_name = {}
    for plan in rules.roles:
        before = _of(roles, plan.name)
        role = _follow(before, plan, rules, facts, now)
        by_name[plan.name] = role
        if (told := TOLD.get((before.state, role.state))) is not None:
            took, left = format_duration(round(now - before.since, 1)), format_bytes(facts.available)
            sentence = f"{told} after {took}, {left} are available" if role.state is _S.LOADED else role.sentence
            figures = {"claim": plan.claim, "available": facts.available}
            events.append(Event(told, sentence, figures, plan.name))
    return Decision(replace(roles, by_name=by_name), events)


def _follow(role: Role, plan: RolePlan, rules: Rules, facts: Facts, now: float) -> Role:
    seen = facts.processes.get(plan.name, Seen.GONE)
    match role.state, seen:
        case _S.STARTING | _S.RELOADING | _S.WAITING | _S.FAILED, Seen.UP:
            return become(role, _S.LOADED, now, "loaded")
        case _S.WAITING | _S.FAILED | _S.LOADED, Seen.COMING:
            return become(role, _S.STARTING, now, "its process is on its way")
        case _S.STARTING | _S.RELOADING | _S.LOADED, Seen.DEAD:
            return become(role, _S.FAILED, now, "its process died; it asks residency again when its wait is over")
        case (_S.STARTING | _S.RELOADING | _S.LOADED, Seen.GOING) | (_S.LOADED, Seen.GONE):
            return become(role, _S.WAITING, now, WAITS)
        case _S.STARTING | _S.RELOADING, Seen.GONE if facts.engine is None:
            return become(role, _S.WAITING, now, WAITS)  # its leave was given beside an engine that is gone
        case _S.REFUSED, _ if facts.engine is None or not _rests_on(role.placement, plan, rules):
            return become(role, _S.WAITING, now, WAITS)
    return role


def _rests_on(placement: Placement | None, plan: RolePlan, rules: Rules) -> bool:
    """Whether a refusal would be given for the same figures of the documents."""
    figures = (plan.claim, rules.floors.floor, rules.floors.margin)
    return placement is not None and (placement.claim, placement.floor, placement.margin) == figures


def settle(roles: Roles, rules: Rules, facts: Facts, now: float) -> Decision:
    """Memory that was given up is back, or somebody else has it."""
    events = []
    for plan in rules.roles:
        role = _of(roles, plan.name)
        if (leaving := role.leaving) is None:
            continue
        if facts.processes.get(plan.name, Seen.GONE) not in (Seen.GONE, Seen.DEAD):
            continue
        gone = now if leaving.gone is None else leaving.gone
        risen = facts.available - leaving.available
        if risen < plan.claim // 2 and now < gone + SETTLE:
            roles = _with(roles, plan.name, replace(role, leaving=replace(leaving, gone=gone)))
            continue
        roles = _with(roles, plan.name, replace(role, leaving=None))
        end = "its memory is back" if risen >= plan.claim // 2 else "it has ended, and others have its memory"
        sentence = (
            f"{end} after {format_duration(round(now - leaving.since, 1))}: "
            f"{format_bytes(leaving.available)} were available, {format_bytes(facts.available)} are"
        )
        figures = {"claim": plan.claim, "available_before": leaving.available, "available": facts.available}
        events.append(Event("freed", sentence, figures, plan.name))
    return Decision(roles, events)


def give_back(roles: Roles, rules: Rules, facts: Facts, now: float) -> Decision:
    """Unload what memory that is short asks for, and no more."""
    under = rules.floors.hard_floor - facts.available
    since = (now if roles.short_since is None else roles.short_since) if under > 0 else None
    roles = replace(roles, short_since=since)
    lasting = under if since is not None and now - since >= PATIENCE else 0
    short = max(facts.asked, lasting)
    events = []
    for plan in _in_unload_order(rules):
        if coming_back(roles, rules) >= short:
            break
        role = _of(roles, plan.name)
        if role.state not in WANTED:
            continue
        is_thrash = role.reloaded is not None and now - role.reloaded < rules.hysteresis.thrash
        role = replace(role, doublings=role.doublings + 1 if is_thrash else 0, leaving=Leaving(facts.available, now))
        wait = wait_of(role, rules.hysteresis)
        sentence = _unload_sentence(role, plan, rules, facts, short, now if is_thrash else None)
        roles = _with(roles, plan.name, become(role, _S.UNLOADED_FOR_MEMORY, now, sentence))
        figures = {"claim": plan.claim, "short": short, "available": facts.available, "wait_seconds": round(wait)}
        events.append(Event("unloaded", sentence, figures, plan.name))
    return Decision(roles, events)


def wait_of(role: Role, rule: Hysteresis) -> float:
    """Seconds for which there has to be room before it loads, by the rule as it is now."""
    return min(rule.reload_after * 2.0 ** min(role.doublings, _MOST_DOUBLINGS), rule.max_hold)


def watch_room(roles: Roles, rules: Rules, facts: Facts, now: float) -> Decision:
    """The clocks of those that are out: each runs as long as there is room for its role, without a break."""
    engine = facts.engine
    is_calm = engine is not None and not engine.waiting and engine.reclaims == roles.reclaims
    for plan in rules.roles:
        role = _of(roles, plan.name)
        if role.state not in OUT:
            continue
        has = is_calm and has_room(plan, rules, facts)
        since = (now if role.room_since is None else role.room_since) if has else None
        roles = _with(roles, plan.name, replace(role, room_since=since))
    return Decision(replace(roles, reclaims=engine.reclaims if engine is not None else None), [])


def has_room(plan: RolePlan, rules: Rules, facts: Facts) -> bool:
    """Headroom for floor, claim and reload margin, and residency's leave."""
    assert facts.engine is not None
    headroom = facts.available - facts.engine.cache_growth - facts.engine.reserved
    needed = rules.floors.floor + plan.claim + rules.hysteresis.reload_margin
    return headroom >= needed and ask(plan, rules, facts).admitted


def load(roles: Roles, rules: Rules, facts: Facts, now: float) -> Decision:
    """The next role, when nothing is on its way in or out. Who has room and only waits is not overtaken."""
    events: list[Event] = []
    if facts.engine is None or _is_moving(roles, rules, facts):
        return Decision(roles, events)
    for plan in rules.roles:
        role, seen = _of(roles, plan.name), facts.processes.get(plan.name, Seen.GONE)
        is_asking = role.state in ASKING and seen is Seen.GONE
        if not is_asking and role.room_since is None:
            continue
        if role.room_since is not None and now - role.room_since < wait_of(role, rules.hysteresis):
            break
        placement = ask(plan, rules, facts)
        role, event = _start(role, placement, now) if placement.admitted else _refuse(role, placement, now)
        roles = _with(roles, plan.name, role)
        events.append(event)
        if placement.admitted:
            break
    return Decision(roles, events)


def _start(role: Role, placement: Placement, now: float) -> tuple[Role, Event]:
    sentence, reloaded, state, act = placement.sentence, role.reloaded, _S.STARTING, "loading"
    if role.room_since is not None:
        sentence += f"; there has been room for {format_duration(round(now - role.room_since))}"
    if role.state is _S.UNLOADED_FOR_MEMORY:
        reloaded, state, act = now, _S.RELOADING, "reloading"
    role = become(role, state, now, sentence, placement=placement, reloaded=reloaded)
    return role, Event(act, sentence, _figures(placement), placement.role)


def _refuse(role: Role, placement: Placement, now: float) -> tuple[Role, Event]:
    role = become(role, _S.REFUSED, now, placement.sentence, placement=placement)
    return role, Event("refused", placement.sentence, _figures(placement), placement.role)


def ask(plan: RolePlan, rules: Rules, facts: Facts) -> Placement:
    """Residency's answer, now."""
    assert facts.engine is not None
    return may_load(
        plan.name,
        available=facts.available,
        engine_now=facts.engine.held,
        declared_peak=rules.declared_peak,
        claim=plan.claim,
        floor=rules.floors.floor,
        margin=rules.floors.margin,
    )


# --- parts ------------------------------------------------------------------------------------------------------


def become(role: Role, state: RoleState, now: float, sentence: str, **changes: object) -> Role:
    """The one way into another state; an edge that `TRANSITIONS` does not draw is our bug."""
    assert state in TRANSITIONS[role.state], f"{role.state} -> {state}"
    return replace(role, state=state, since=now, sentence=sentence, **{"room_since": None, **changes})


def _is_moving(roles: Roles, rules: Rules, facts: Facts) -> bool:
    """Whether MemAvailable does not show yet what was decided."""
    held = (_of(roles, plan.name) for plan in rules.roles)
    on_the_way = {Seen.COMING, Seen.GOING} & set(facts.processes.values())
    return bool(on_the_way) or any(role.state in COMING or role.leaving for role in held)


def _in_unload_order(rules: Rules) -> list[RolePlan]:
    """Within a kind the last loaded goes first."""
    kinds = UNLOAD_ORDER if rules.hysteresis.unload_deciders else UNLOAD_ORDER[:-1]
    return sorted(
        (plan for plan in reversed(rules.roles) if plan.kind in kinds), key=lambda plan: kinds.index(plan.kind)
    )


def _unload_sentence(role: Role, plan: RolePlan, rules: Rules, facts: Facts, short: int, again: float | None) -> str:
    """`again`: the time, of one that goes too soon after it had come back."""
    room = rules.floors.floor + plan.claim + rules.hysteresis.reload_margin
    soon = f", {format_duration(round(again - (role.reloaded or 0)))} after it had come back" if again else ""
    return (
        f"unloaded for memory{soon}: {format_bytes(short)} are short, {format_bytes(facts.available)} are available "
        f"and its claim is {format_bytes(plan.claim)}; it comes back when there has been room of {format_bytes(room)} "
        f"for {format_duration(wait_of(role, rules.hysteresis))}"
    )


def _figures(placement: Placement) -> dict[str, int]:
    names = ("available", "growth", "claim", "after", "floor", "margin")
    return {name: getattr(placement, name) for name in names}


def _of(roles: Roles, name: str) -> Role:
    return roles.by_name.get(name, UNASKED)


def _with(roles: Roles, name: str, role: Role) -> Roles:
    if role == roles.by_name.get(name):
        return roles
    return replace(roles, by_name={**roles.by_name, name: role})
