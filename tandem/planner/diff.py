"""What an edit would do: two plans, their differences in words, and which processes would not live through it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from tandem.contract.plan import EnginePlan, Plan, RolePlan
from tandem.units import format_bytes, format_duration

MOVES: Final = "`state` cannot move under a running appliance: put it back, `tandem down`, then edit and `tandem up`"


AT_ONCE: Final = ": acts at once"
_DRAINS: Final = {
    "gateway": "the gateway drains and restarts: running answers finish, new connections wait a moment",
    "engine": "the engine drains, restarts and must answer; if it does not, the plan before comes back by itself",
    "director": "the director restarts and adopts what runs",
}
_DONE: Final = {
    _DRAINS["gateway"]: "the gateway has restarted",
    _DRAINS["engine"]: "the engine has restarted and answers",
    _DRAINS["director"]: "the director has restarted",
}


class ChangeClass(StrEnum):
    """How deep an edit cuts; the worst difference decides."""

    NONE = "none"
    LIVE = "live"  # running processes take the new values
    ROLE = "role"  # the named roles restart, through residency
    ENGINE = "engine"  # the named processes drain and restart; the old plan comes back when they do not get healthy


@dataclass(frozen=True, slots=True)
class Change:
    kind: ChangeClass
    sentences: tuple[str, ...]  # what differs and what happens, one a line
    restarts: tuple[str, ...]  # programs of the new plan that must start anew, in start order
    stops: tuple[str, ...] = ()  # programs the new plan no longer has
    roles: tuple[str, ...] = ()  # roles that come, go or restart
    moves: bool = False  # the appliance itself moves: only `tandem down` and `tandem up` can do that


_BYTES: Final = frozenset(("floor", "hard_floor", "margin", "reload_margin", "max_body", "workspace", "claim", "size"))
_SECONDS: Final = frozenset(
    (
        *("request_timeout", "queue_timeout", "drain_timeout", "keepalive"),
        *("reload_after", "thrash", "max_hold"),
        *("slot0_wait", "home_wait", "own_work_wait"),
        *("decider_within", "model_within"),
    )
)
_SWITCHED: Final = frozenset({"draft", "lookup", "model"})  # sections that may be off
_UNSAID: Final = frozenset({"weights_sha256", "declared_peak"})  # they follow from what is said beside them


def diff(old: Plan, new: Plan) -> Change:
    """The change from `old` to `new`. What the box's memory happens to be is no difference."""
    restarts = _restarts(old, new)
    stops = tuple(program.name for program in old.programs if new.program(program.name) is None)
    roles = _changed_roles(old.roles, new.roles)
    live = list(_differences("", old.live, new.live))
    moves = old.paths != new.paths or old.appliance != new.appliance
    sentences = [f"{line}{AT_ONCE}" for line in live]
    sentences += [_role_sentence(name, old.roles, new.roles) for name in roles]
    sentences += _engine_differences(old.engine, new.engine)
    sentences += _differences("gateway", old.gateway, new.gateway)
    sentences += _consequences(restarts, tuple(name for name in stops if name not in roles), moves)
    if set(restarts + stops) - set(roles):
        kind = ChangeClass.ENGINE
    elif roles:
        kind = ChangeClass.ROLE
    else:
        kind = ChangeClass.LIVE if live else ChangeClass.NONE
    return Change(kind, tuple(sentences), restarts, stops, roles, moves)


def done(sentences: Iterable[str]) -> tuple[str, ...]:
    """A change's sentences once it has happened."""
    return tuple(_DONE.get(sentence, sentence.removesuffix(AT_ONCE)) for sentence in sentences)


def _restarts(old: Plan, new: Plan) -> tuple[str, ...]:
    before = {program.name: program.fingerprint for program in old.programs}
    return tuple(program.name for program in new.programs if before.get(program.name) != program.fingerprint)


def _changed_roles(old: tuple[RolePlan, ...], new: tuple[RolePlan, ...]) -> tuple[str, ...]:
    before, after = {role.name: role for role in old}, {role.name: role for role in new}
    return tuple(name for name in {**before, **after} if before.get(name) != after.get(name))


def _role_sentence(name: str, old: tuple[RolePlan, ...], new: tuple[RolePlan, ...]) -> str:
    before = next((role for role in old if role.name == name), None)
    after = next((role for role in new if role.name == name), None)
    if before is None:
        return f"{name}: new, asks residency for its memory"
    if after is None:
        return f"{name}: stops"
    said = _differences(name, msgspec.structs.replace(before, weights=after.weights), after)  # they follow from `model`
    return f"{'; '.join(said)}: {name} restarts, through residency"


def _engine_differences(old: EnginePlan, new: EnginePlan) -> Iterator[str]:
    yield from _differences("engine", msgspec.structs.replace(old, slots=()), msgspec.structs.replace(new, slots=()))
    if old.slots != new.slots:
        yield f"slots: {_slots(old)} -> {_slots(new)}"


def _slots(engine: EnginePlan) -> str:
    side = f", side window {engine.slots[1].window:,}" if len(engine.slots) > 1 else ""
    return f"{len(engine.slots)} (window {engine.slots[0].window:,}{side})"


def _differences(path: str, old: msgspec.Struct, new: msgspec.Struct) -> Iterator[str]:
    for name in old.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        where = f"{path}.{name}" if path else name
        if before == after or name in _UNSAID:
            continue
        names = _by_name(before), _by_name(after)
        if isinstance(before, msgspec.Struct) and isinstance(after, msgspec.Struct):
            yield from _differences(where, before, after)
        elif names[0] is not None and names[1] is not None:
            yield from _named_differences(where, names[0], names[1])
        else:
            yield f"{where}: {_value(name, before)} -> {_value(name, after)}"


def _by_name(value: Any) -> dict[str, Any] | None:
    """What a document names: a section of names, or a list of parts that have an id."""
    if isinstance(value, tuple) and all(hasattr(each, "id") for each in value):
        return {each.id: each for each in value}
    return value if isinstance(value, dict) else None


def _named_differences(path: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    for name in {**old, **new}:
        before, after, where = old.get(name), new.get(name), f"{path}.{name}"
        if before == after:
            continue
        if isinstance(before, msgspec.Struct) and isinstance(after, msgspec.Struct):
            yield from _differences(where, before, after)
        elif name not in old:
            yield f"{where}: new"
        else:
            yield f"{where}: {'gone' if name not in new else f'{_value(name, before)} -> {_value(name, after)}'}"


def _value(name: str, value: Any) -> str:
    if value is None or value in ((), ""):
        return "nothing" if name not in _SWITCHED else "off"
    if isinstance(value, msgspec.Struct):
        return "on"
    if isinstance(value, bool):
        return "on" if value else "off"
    if name in _BYTES:
        return format_bytes(value, 2)
    if name in _SECONDS:
        return format_duration(value)
    if isinstance(value, tuple):
        return ", ".join(str(item[0] if isinstance(item, tuple) else item) for item in value)
    return f"{value:,}" if isinstance(value, int) and name != "port" else str(value)


def _consequences(restarts: tuple[str, ...], stops: tuple[str, ...], moves: bool) -> Iterator[str]:
    if moves:
        yield MOVES
        return
    for name, sentence in _DRAINS.items():
        if name in restarts:
            yield sentence
    for name in stops:
        yield f"{name} stops"
