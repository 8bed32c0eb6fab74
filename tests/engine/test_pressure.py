"""An engine whose box is full: what is given back, in which order, for whom, and what is left alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec
from engine_toy import GIB, Hand, alone, ask, hand, live
from test_row_memory import KIB4, committed, pool_plan, prompt, rows_with_memory

from tandem.contract.messages import RefusalCode, RequestState
from tandem.contract.plan import Floors
from tandem.memory.budget import Level
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


def boxed(box: Box, slots: int = 3, floor: int = 0) -> Hand:
    limits = msgspec.structs.replace(
        live(request_timeout=1e6), floors=Floors(floor=floor, hard_floor=HARD_FLOOR, margin=0)
    )
    driver = hand(pool_plan(slots), limits, pages=HostPages())
    engine = driver.engine

    def available() -> int:
        rows = sum(usage.committed for slot in engine.schedule.slots for usage in slot.memory.usage)
        return box.size - box.others - box.trimmable - box.roles - box.store - rows

    world = replace(engine._world, available=available, journal=box.events.append)
    engine._world = world
    engine.pressure._trim = box.trim
    engine.pressure._ask_roles = box.ask_roles
    return driver


def leave_room(box: Box, driver: Hand, size: int) -> None:
    """From now on `size` bytes are left above the hard floor."""
    box.others += driver.engine._world.available() - HARD_FLOOR - size


def keep_three(driver: Hand) -> None:
    """Each slot keeps a conversation of one page or two; slot 1's is the oldest side slot's."""
    for number in (1, 2, 3):
        driver.turn(ask(f"kept{number}", prompt(600, number), 4))
        driver.until_idle()
    assert [rows_with_memory(driver, slot) > 512 for slot in range(3)] == [True] * 3
    driver.until_idle()


def used_order(driver: Hand) -> list[int]:
    return [slot.index for slot in sorted(driver.engine.schedule.slots, key=lambda slot: slot.last_used)]


def test_rungs_are_taken_in_order_and_only_as_far_as_needed() -> None:
    box = Box(roles=KIB4 // 2, store=KIB4 // 2)
    driver = boxed(box)

    def give_store(size: int) -> int:
        box.acts.append("store")
        freed, box.store = box.store, 0
        driver.engine.budget.report(Level.STORE, 0)
        return freed

    driver.engine.pressure.register(Level.STORE, give_store)
    driver.engine.budget.report(Level.STORE, box.store)
    keep_three(driver)
    box.trimmable = KIB4 // 2  # what keeps coming together while others work
    box.acts.clear()
    rest = alone(ask("a", prompt(1600, 9), 5), pool_plan())
    driver.turn(ask("a", prompt(1600, 9), 5))
    leave_room(box, driver, 0)
    driver.until_idle()
    assert driver.tokens("a") == rest  # nobody is refused: there was enough to give back
    assert list(dict.fromkeys(box.acts)) == ["store", "allocator", "roles"]
    counters = driver.health.counters
    assert list(counters.reclaimed) == ["store", "allocator", "roles", "conversation"]
    assert counters.ended_for_memory == 0
    assert {event.act for event in box.events} == {"reclaimed"}


def test_side_conversations_go_before_slot_zeros_oldest_first() -> None:
    box = Box()
    driver = boxed(box, slots=4)
    keep_three(driver)
    driver.turn(ask("kept4", prompt(600, 4), 4))
    driver.until_idle()
    slots = driver.engine.schedule.slots
    slots[0].last_used, slots[1].last_used, slots[2].last_used, slots[3].last_used = 0.0, 30.0, 10.0, 20.0
    leave_room(box, driver, 0)
    order = []
    for wanted in range(1, 5):
        held = {slot.index for slot in slots if slot.kept.rows}
        missing = 1 - (driver.engine._world.available() - HARD_FLOOR) if wanted > 1 else 1
        driver.engine._relieve(HARD_FLOOR + driver.engine._world.available() - HARD_FLOOR + max(1, missing))
        order += sorted(held - {slot.index for slot in slots if slot.kept.rows})
    assert order == [2, 3, 1, 0]


def test_what_a_running_request_needs_is_never_taken_and_only_the_asker_ends() -> None:
    box = Box()
    driver = boxed(box, slots=2)
    driver.turn(ask("short", prompt(20, 2), 300), ask("long", prompt(480), 200))
    while len(driver.tokens("short")) < 5 or len(driver.tokens("long")) < 5:
        driver.turn()
    leave_room(box, driver, 0)
    driver.until_idle()
    refusal = driver.refused("long")
    assert refusal.code is RefusalCode.NO_MEMORY
    assert driver.tokens("short") == alone(ask("short", prompt(20, 2), 300), pool_plan())
    (event,) = box.events
    assert (event.act, event.subject, event.sentence) == ("ended", "long", refusal.sentence)
    assert driver.health.counters.ended_for_memory == 1


def test_kept_conversations_make_way_for_a_client_that_waits_for_memory() -> None:
    box = Box()
    driver = boxed(box, slots=3, floor=HARD_FLOOR)
    keep_three(driver)
    leave_room(box, driver, 0)
    driver.turn(ask("new", prompt(1300, 40), 4))
    assert driver.progress("new")[0].state is RequestState.WAITING_MEMORY
    assert "roles" not in box.acts
    driver.until_idle()
    assert driver.tokens("new") == alone(ask("new", prompt(1300, 40), 4), pool_plan())
    assert driver.health.counters.memory_waits == 1


def test_under_the_hard_floor_all_is_given_back_though_nobody_asks() -> None:
    box = Box()
    driver = boxed(box)
    keep_three(driver)
    leave_room(box, driver, -2 * KIB4)
    driver.turn()
    assert 0 < committed(driver) < 6 * KIB4
    assert driver.engine._world.available() >= HARD_FLOOR


def test_the_guard_ends_the_youngest_and_journals_why() -> None:
    box = Box()
    driver = boxed(box, slots=2)
    driver.turn(ask("old", prompt(20), 300))
    driver.turn()
    driver.turn(ask("young", prompt(20, 2), 300))
    driver.turn()
    leave_room(box, driver, -(HARD_FLOOR * 9 // 10))
    driver.turn()
    refusal = driver.refused("young")
    assert refusal.code is RefusalCode.NO_MEMORY
    assert "the youngest request ends" in refusal.sentence
    (event,) = [event for event in box.events if event.act == "ended"]
    assert (event.subject, event.figures["hard_floor"]) == ("young", HARD_FLOOR)
    box.others = 0
    driver.until_idle()
    assert driver.tokens("old") == alone(ask("old", prompt(20), 300), pool_plan())
    assert driver.health.counters.ended_for_memory == 1


def test_an_idle_engine_trims_once_after_work() -> None:
    box = Box()
    driver = boxed(box)
    driver.turn()
    assert box.acts == []
    driver.turn(ask("a", prompt(20), 4))
    driver.until_idle()
    driver.turn()
    driver.turn()
    assert box.acts == ["allocator"]


def test_the_budgets_peak_is_the_declared_one() -> None:
    driver = hand(pool_plan(3), pages=HostPages())
    assert driver.engine.budget.peak == pool_plan(3).declared_peak
