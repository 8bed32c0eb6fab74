"""A box of a known size that fills up: an engine by hand, what its rows take, and what others take and give back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec
from engine_toy import GIB, Hand, ask, hand, live
from test_row_memory import pool_plan, prompt, rows_with_memory

from tandem.contract.plan import Floors
from tandem.memory.host_pages import HostPages
from tandem.residency.journal import Event

HARD_FLOOR = GIB


@dataclass
class Box:
    """`size` bytes, of which the engine's rows, its toy caches and others take their part."""

    size: int = 2 * GIB
    others: int = 0
    trimmable: int = 0
    roles: int = 0
    store: int = 0
    acts: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def trim(self) -> int:
        self.acts.append("allocator")
        freed, self.trimmable = self.trimmable, 0
        return freed

    def ask_roles(self, size: int) -> int:
        self.acts.append("roles")
        freed, self.roles = self.roles, 0
        return freed


def boxed(box: Box, slots: int = 3, floor: int = 0, pages: HostPages | None = None) -> Hand:
    limits = msgspec.structs.replace(
        live(request_timeout=1e6), floors=Floors(floor=floor, hard_floor=HARD_FLOOR, margin=0)
    )
    driver = hand(pool_plan(slots), limits, pages=pages or HostPages())
    engine = driver.engine

    def available() -> int:
        rows = sum(usage.committed for slot in engine.schedule.slots for usage in slot.memory.usage)
        return box.size - box.others - box.trimmable - box.roles - box.store - rows

    memory = engine.memory
    memory._world = replace(memory._world, available=available, journal=box.events.append)
    memory.pressure._trim = box.trim
    memory.pressure._ask_roles = box.ask_roles
    return driver


def leave_room(box: Box, driver: Hand, size: int) -> None:
    """From now on `size` bytes are left above the hard floor."""
    box.others += driver.engine.memory.available() - HARD_FLOOR - size


def keep_three(driver: Hand) -> None:
    """Each slot keeps a conversation of one page or two; slot 1's is the oldest side slot's."""
    for number in (1, 2, 3):
        driver.turn(ask(f"kept{number}", prompt(600, number), 4))
        driver.until_idle()
    assert [rows_with_memory(driver, slot) > 512 for slot in range(3)] == [True] * 3
    driver.until_idle()


def used_order(driver: Hand) -> list[int]:
    return [slot.index for slot in sorted(driver.engine.schedule.slots, key=lambda slot: slot.last_used)]
