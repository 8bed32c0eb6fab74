"""When an engine looks at memory, for whom it gives back, and who ends when that is not enough."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import count

import torch
from engine_toy import Hand, alone, ask, hand
from failing_kernel import FailingKernel
from full_box import HARD_FLOOR, Box, boxed, keep_three, leave_room
from hypothesis import given, settings
from hypothesis import strategies as st
from residency_of import resident_bytes
from test_row_memory import KIB4, committed, pool_plan, prompt

from tandem.contract.messages import Cancel, Finished, Generate, RefusalCode, Refused, RequestState
from tandem.engine.memory import LOOK_EVERY
from tandem.memory.host_pages import HostPages


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
    assert driver.engine.memory.available() >= HARD_FLOOR


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


def test_nobody_ends_when_the_ladder_was_enough() -> None:
    """Memory falls to a tenth of the hard floor, and a role that leaves brings it back above."""
    box = Box()
    driver = boxed(box)
    keep_three(driver)
    box.roles = HARD_FLOOR
    box.others -= HARD_FLOOR
    driver.turn(ask("a", prompt(20), 300))
    driver.turn()
    leave_room(box, driver, -(HARD_FLOOR * 9 // 10))
    driver.until_idle()
    assert "roles" in box.acts
    assert driver.tokens("a") == alone(ask("a", prompt(20), 300), pool_plan())


def test_nobody_ends_while_the_ladder_has_more_to_give() -> None:
    """What the first rung gave is taken by others before the engine looks again; the next look asks the next rung."""
    box = Box()
    driver = boxed(box)
    driver.turn(ask("a", prompt(20), 300))
    driver.turn()
    box.trimmable, box.roles = HARD_FLOOR // 4, HARD_FLOOR
    leave_room(box, driver, -KIB4)
    memory, looks = driver.engine.memory, count()
    read = memory._world.available

    def available() -> int:
        if "allocator" in box.acts and next(looks) == 1:
            box.others += HARD_FLOOR
        return read()

    memory._world = replace(memory._world, available=available)
    driver.now += LOOK_EVERY
    driver.turn()
    assert box.acts == ["allocator"] and read() < HARD_FLOOR
    assert driver.health.running == 1
    driver.until_idle()
    assert "roles" in box.acts
    assert driver.tokens("a") == alone(ask("a", prompt(20), 300), pool_plan())
    assert driver.health.counters.ended_for_memory == 0


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
    assert driver.engine.memory.budget.peak == pool_plan(3).declared_peak


# --- how often it looks ---


def looks_of(driver: Hand) -> list[float]:
    """When memory was read, from now on."""
    looks: list[float] = []
    memory = driver.engine.memory
    read = memory._world.available

    def available() -> int:
        looks.append(driver.now)
        return read()

    memory._world = replace(memory._world, available=available)
    return looks


def test_rounds_in_between_do_not_look() -> None:
    box = Box()
    driver = boxed(box, slots=1)
    driver.turn(ask("a", prompt(20), 100))
    driver.turn()
    looks = looks_of(driver)
    for _ in range(80):
        driver.turn(seconds=0.01)
    assert 7 <= len(looks) <= 9
    assert len(driver.tokens("a")) > 80


def test_every_turn_looks_under_the_floor() -> None:
    box = Box()
    driver = boxed(box, slots=1, floor=3 * HARD_FLOOR // 2)
    driver.turn(ask("a", prompt(20), 100))
    driver.turn()
    leave_room(box, driver, HARD_FLOOR // 4)
    driver.turn()
    looks = looks_of(driver)
    for _ in range(20):
        driver.turn(seconds=0.01)
    assert len(looks) == 20


def test_a_commit_goes_by_a_fresh_reading() -> None:
    """Memory went since the last look; the next page is not taken by what was read then."""
    box = Box()
    driver = boxed(box, slots=1)
    driver.turn(ask("a", prompt(480), 100))
    while len(driver.tokens("a")) < 5:
        driver.turn(seconds=0.001)
    leave_room(box, driver, 0)
    for _ in range(60):
        driver.turn(seconds=0.001)
    assert driver.refused("a").sentence.startswith("memory is full")


def test_what_is_held_is_counted_ten_times_a_second() -> None:
    box = Box()
    driver = boxed(box, slots=1)
    memory, counted = driver.engine.memory, []
    memory._world = replace(memory._world, held=lambda: counted.append(driver.now) or HARD_FLOOR)
    driver.turn(ask("a", prompt(20), 100))
    for _ in range(50):
        driver.turn(seconds=0.01)
    assert 5 <= len(counted) <= 7
    assert sum(part.bytes for part in driver.health.memory) == HARD_FLOOR


def test_health_says_what_requests_and_caches_may_still_take() -> None:
    box = Box()
    driver = boxed(box)
    driver.turn(ask("one", prompt(200), 600))
    reading = driver.health.reserved
    assert reading >= pool_plan().workspace, "its prompt is still to be read"
    driver.turn()
    driver.turn()
    assert 0 <= driver.health.reserved < reading, "it shrinks as the slot commits"
    driver.until_idle()
    assert driver.health.reserved == 0
    held = sum(part.bytes for part in driver.health.memory) - committed(driver)
    budget = driver.engine.memory.budget
    assert driver.health.cache_growth == budget.cache_growth(held)


# --- anything, in any order ---

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from([5, 470, 490, 980]), st.integers(1, 60)),  # a page holds 512 rows
        st.tuples(st.just("ask"), st.sampled_from([5, 470, 490, 980]), st.integers(40, 60)),
        st.tuples(st.just("turn"), st.sampled_from([1, 10, 30, 60])),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("hog"), st.sampled_from([0, 1, 2, 4, -1, -3, -HARD_FLOOR // KIB4])),  # pages left above
        st.tuples(st.just("release")),
        st.tuples(st.just("fail"), st.integers(0, 3)),  # the kernel refuses one of the next commits
    ),
    min_size=8,
    max_size=20,
)


@cache
def rest(tokens: tuple[int, ...]) -> list[int]:
    """The longest answer to a prompt."""
    return alone(ask("alone", tokens, 60), pool_plan())


def kernel_agrees(driver: Hand) -> None:
    """What is booked for the rows of each slot is what lies in memory."""
    for slot in driver.engine.schedule.slots:
        rows = torch.from_numpy(slot.state.hashes.view("int64"))
        assert resident_bytes(rows) == sum(usage.committed for usage in slot.memory.usage)


@given(events=EVENTS, slots=st.integers(1, 3), floor=st.sampled_from([0, HARD_FLOOR + 4 * KIB4]))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_whatever_memory_does_the_books_are_the_kernels_and_every_request_gets_its_last_word(
    events: list[tuple[str, ...]], slots: int, floor: int
) -> None:
    kernel, box = FailingKernel(), Box()
    driver = boxed(box, slots, floor, HostPages(kernel=kernel))
    asked: list[Generate] = []
    for event in events:
        match event:
            case ("ask", length, max_tokens):
                asked.append(ask(f"r{len(asked)}", prompt(length, len(asked) % 3), max_tokens))
                driver.turn(asked[-1])
            case ("turn", count):
                for _ in range(count):
                    driver.turn(seconds=0.07)
                    kernel_agrees(driver)
            case ("cancel", number):
                driver.turn(Cancel(f"r{number}"))
            case ("hog", pages):
                leave_room(box, driver, pages * KIB4)
            case ("release",):
                box.others = 0
            case ("fail", step):
                kernel.fails_in = step
    box.others, kernel.fails_in = 0, None
    driver.until_idle()
    kernel_agrees(driver)
    for request in asked:
        *_, last = driver.to(request.id)
        text = driver.tokens(request.id)
        assert text == rest(request.tokens)[: len(text)]
        if isinstance(last, Finished):
            assert last.completion_tokens == len(text)
        else:
            assert isinstance(last, Refused) and last.code is RefusalCode.NO_MEMORY
    for slot in driver.engine.schedule.slots:
        slot.forget()
    kernel_agrees(driver)
    assert committed(driver) == 0
