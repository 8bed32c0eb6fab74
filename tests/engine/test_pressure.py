"""What an engine whose box is full gives back: in which order, how much, and what is left alone."""

from __future__ import annotations

from engine_toy import GIB, alone, ask
from full_box import HARD_FLOOR, Box, boxed, keep_three, leave_room
from test_row_memory import KIB4, pool_plan, prompt

from tandem.contract.messages import RefusalCode
from tandem.memory.budget import Level


def test_rungs_are_taken_in_order_and_only_as_far_as_needed() -> None:
    box = Box(roles=KIB4 // 2, store=KIB4 // 2)
    driver = boxed(box)

    def give_store(size: int) -> int:
        box.acts.append("store")
        freed, box.store = box.store, 0
        driver.engine.memory.budget.report(Level.STORE, 0)
        return freed

    driver.engine.memory.pressure.register(Level.STORE, give_store)
    driver.engine.memory.budget.report(Level.STORE, box.store)
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
        missing = 1 - (driver.engine.memory.available() - HARD_FLOOR) if wanted > 1 else 1
        driver.engine.memory.relieve(HARD_FLOOR + driver.engine.memory.available() - HARD_FLOOR + max(1, missing))
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


def test_the_allocator_is_not_asked_at_every_pass_unless_caches_gave_back() -> None:
    """While requests run it always has a little, which the next pass takes again."""
    box = Box()
    driver = boxed(box, slots=1)
    pressure = driver.engine.memory.pressure
    for seconds in (0.0, 1.0, 13.0, 15.1):
        driver.now = seconds
        box.trimmable = KIB4
        pressure.reclaim(lambda: GIB)
    assert box.acts == ["allocator", "roles"] + ["roles"] * 2 + ["allocator", "roles"]
    box.acts.clear()

    def give_store(size: int) -> int:
        box.acts.append("store")
        return size

    pressure.register(Level.STORE, give_store)
    driver.engine.memory.budget.report(Level.STORE, KIB4)
    driver.now += 1.1
    pressure.reclaim(lambda: GIB)
    assert box.acts == ["store", "allocator", "roles"]
