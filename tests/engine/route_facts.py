"""Facts of an appliance as wide as the profiles' (slot 0 of 262,144 rows, side slots of 65,536), and of a level one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from tandem.contract.plan import Routing
from tandem.engine.facts import Ask, Grid, Held, Holder, SlotFacts, Take, Wait
from tandem.engine.route import route

CHUNK = 2_048
WIDE, SIDE, LAPTOP = 262_144, 65_536, 8_192
RULES = Routing()
GRID = Grid(CHUNK, CHUNK)
CLIENT, OWN = Holder.CLIENT, Holder.OWN_WORK


def slot(index: int, kept: int = 0, shared: int = 0, holder: Holder = Holder.NOBODY, **facts: object) -> SlotFacts:
    """What lies there was served as long as it is, unless said otherwise."""
    plain = SlotFacts(index, WIDE if index == 0 else SIDE, kept, shared, kept, shared, holder=holder)
    return structs.replace(plain, **facts)


def level(index: int, kept: int = 0, shared: int = 0, holder: Holder = Holder.NOBODY, **facts: object) -> SlotFacts:
    return slot(index, kept, shared, holder, window=LAPTOP, **facts)


def ruled(**rules: object) -> Routing:
    """With another rule or two, or an older one."""
    return structs.replace(RULES, **rules)


def routed(
    ask: Ask, *slots: SlotFacts, rules: Routing = RULES, held: Sequence[Held] = (), now: float = 0.0, grid: Grid = GRID
) -> Take | Wait:
    return route(ask, slots, held, rules, grid, now)


def taken(
    ask: Ask, *slots: SlotFacts, rules: Routing = RULES, held: Sequence[Held] = (), now: float = 0.0, grid: Grid = GRID
) -> Take:
    found = route(ask, slots, held, rules, grid, now)
    assert isinstance(found, Take), found
    return found


def waiting(
    ask: Ask, *slots: SlotFacts, rules: Routing = RULES, held: Sequence[Held] = (), now: float = 0.0, grid: Grid = GRID
) -> Wait:
    found = route(ask, slots, held, rules, grid, now)
    assert isinstance(found, Wait), found
    return found
