"""The queue: who stands where, who has waited too long, and the sentence each is told."""

from __future__ import annotations

import pytest
from engine_toy import GIB, KIB, MIB, Hand, ask, engine_plan, hand, live

from tandem.contract.messages import Cancel, FinishReason, Progress, RefusalCode, RequestState


def crowd(driver: Hand, count: int, max_tokens: int = 30) -> list[str]:
    """Fill every slot with long answers."""
    ids = [f"busy{index}" for index in range(count)]
    driver.turn(*(ask(id, max_tokens=max_tokens) for id in ids))
    return ids


def positions(driver: Hand, id: str) -> list[tuple[RequestState, int, str]]:
    return [(message.state, message.done, message.sentence) for message in driver.progress(id)]


def test_clients_come_in_order_and_own_work_stands_behind_them() -> None:
    driver = hand(engine_plan([64]))
    crowd(driver, 1, max_tokens=3)
    driver.turn(ask("own1", own_work=True), ask("a"), ask("own2", own_work=True), ask("b"))
    order = [entry.request.ask.id for entry in driver.engine.schedule.waiting]
    assert order == ["a", "b", "own1", "own2"]
    driver.until_idle()
    begun = [sent.message.id for sent in driver.sent if type(sent.message).__name__ == "Started"]
    assert begun == ["busy0", "a", "b", "own1", "own2"]


def test_everyone_hears_how_many_are_ahead_and_hears_it_again_only_when_it_changes() -> None:
    driver = hand(engine_plan([64, 64, 64]))
    crowd(driver, 3, max_tokens=9)
    driver.turn(ask("a", max_tokens=1), ask("b", max_tokens=1), ask("c", max_tokens=1))
    driver.turn()
    driver.turn()
    assert positions(driver, "a") == [(RequestState.QUEUED, 0, "Queued: all 3 slots are busy")]
    assert positions(driver, "b") == [(RequestState.QUEUED, 1, "Queued: all 3 slots are busy, 1 ahead")]
    driver.turn(Cancel("a"))
    assert positions(driver, "b")[-1] == (RequestState.QUEUED, 0, "Queued: all 3 slots are busy")
    assert len(positions(driver, "b")) == 2


def test_who_starts_at_once_is_never_told_to_be_queued() -> None:
    driver = hand()
    driver.turn(ask("a"), ask("b"))
    assert all(message.state is not RequestState.QUEUED for id in "ab" for message in driver.progress(id))


def test_one_slot_speaks_of_one_slot() -> None:
    driver = hand(engine_plan([64]))
    crowd(driver, 1)
    driver.turn(ask("a"))
    assert positions(driver, "a")[0][2] == "Queued: the slot is busy"


def test_too_long_for_the_side_slots_waits_for_slot_0_and_is_passed_by_the_short() -> None:
    driver = hand(engine_plan([100, 32, 32]))
    driver.turn(ask("zero", max_tokens=60))
    driver.turn(ask("long", prompt=(1,) * 40, max_tokens=60), ask("short", max_tokens=20))
    sentence = "Queued: too long for a side slot (32 tokens), waits for slot 0"
    assert positions(driver, "long") == [(RequestState.QUEUED, 0, sentence)]
    assert driver.started("short").slot == 1
    driver.until_idle()
    assert driver.started("long").slot == 0


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    driver = hand(engine_plan([64, 64]), live(max_queue=2))
    driver.turn(*(ask(f"r{index}") for index in range(6)))  # two slots, two places
    for id in ("r4", "r5"):
        refusal = driver.refused(id)
        assert refusal.code is RefusalCode.QUEUE_FULL
        assert refusal.sentence == "the queue is full: `limits.max_queue` lets 2 wait"
        assert refusal.retry_after == pytest.approx(25.0)  # the fifth of two slots at ten seconds a request
    driver.until_idle()
    assert [driver.finished(f"r{index}").reason for index in range(4)] == [FinishReason.LENGTH] * 4


def test_the_wait_foretold_follows_what_requests_take() -> None:
    driver = hand(engine_plan([64]))
    schedule = driver.engine.schedule
    before = schedule.expected_wait(0)
    for _ in range(30):
        schedule.note_duration(2.0)
    assert before == 10.0
    assert schedule.expected_wait(0) == pytest.approx(2.0, abs=0.1)
    assert schedule.expected_wait(2) == pytest.approx(6.0, abs=0.2)
    assert schedule.expected_wait(1_000) == 60.0


def test_who_never_started_within_the_request_timeout_is_refused() -> None:
    driver = hand(engine_plan([64]), live(request_timeout=20.0))
    driver.turn(ask("busy", max_tokens=50))
    driver.turn(ask("a"))
    driver.turn(seconds=18.5)
    assert driver.progress("a") and len(driver.to("a")) == 1
    driver.turn(seconds=2.0)
    refusal = driver.refused("a")
    assert refusal.code is RefusalCode.QUEUE_TIMEOUT
    assert refusal.sentence == "waited 20 s for a slot, as long as limits.request_timeout allows"
    assert refusal.retry_after is not None


def test_who_writes_longer_than_the_request_timeout_ends_with_length() -> None:
    driver = hand(engine_plan([64]), live(request_timeout=20.0))
    driver.turn(ask("a", max_tokens=50))
    driver.until_idle()
    finished = driver.finished("a")
    assert finished.reason is FinishReason.LENGTH
    assert 15 < finished.completion_tokens == len(driver.tokens("a")) < 25


# --- memory -----------------------------------------------------------------------------------------------------

# A row costs 64 KiB and a page holds 32 of them; a request of 3 + 29 rows takes one page, and reading takes 2 MiB.
SCARCE = engine_plan([64, 64], bytes_a_token=64 * KIB, workspace=2 * MIB)


def test_who_waits_for_memory_hears_why_at_once_and_every_15_seconds() -> None:
    driver = hand(SCARCE, live(floor=GIB))
    driver.available = GIB + 3 * MIB
    driver.turn(ask("a", max_tokens=29))
    (first,) = driver.progress("a")
    assert first == Progress(
        "a",
        RequestState.WAITING_MEMORY,
        0,
        1,
        "Waiting: memory is almost full: 4.0 MiB needed, 3.0 MiB left above the floor of 1.0 GiB "
        "and what running requests may still take",
    )
    assert driver.health is not None and driver.health.waiting_memory == 1
    assert [(slot.state, slot.request) for slot in driver.health.slots] == [("waiting_memory", "a"), ("idle", None)]
    for _ in range(14):
        driver.turn()
    assert len(driver.progress("a")) == 1
    driver.turn()
    assert len(driver.progress("a")) == 2
    driver.available = GIB + 4 * MIB
    driver.turn()
    assert driver.started("a").slot == 0
    assert driver.health.waiting_memory == 0
    assert driver.health.slots[0].state == "reading"


def test_nobody_passes_who_waits_for_memory() -> None:
    driver = hand(SCARCE, live(floor=GIB))
    driver.available = GIB + 5 * MIB
    driver.turn(ask("large", max_tokens=61), ask("small", max_tokens=29))
    assert positions(driver, "large")[0][0] is RequestState.WAITING_MEMORY
    assert positions(driver, "small") == [
        (RequestState.QUEUED, 1, "Queued: a request before it waits for memory, 1 ahead")
    ]
    driver.turn(Cancel("large"))
    assert driver.started("small").slot == 0


def test_what_a_running_request_may_still_take_is_kept_for_it() -> None:
    driver = hand(SCARCE, live(floor=GIB))
    driver.available = GIB + 5 * MIB  # room for one reader (4), not for another
    driver.turn(ask("a", max_tokens=29), ask("b", max_tokens=29))
    assert driver.started("a").slot == 0
    assert driver.progress("b")[0].state is RequestState.WAITING_MEMORY
    driver.turn()  # `a` was read and its first page is committed: its workspace and that page are credited
    assert driver.started("b").slot == 1


def test_who_waits_for_memory_too_long_is_refused_as_that() -> None:
    driver = hand(SCARCE, live(floor=GIB, request_timeout=20.0))
    driver.available = GIB
    driver.turn(ask("a"))
    driver.turn(seconds=21.0)
    refusal = driver.refused("a")
    assert refusal.code is RefusalCode.MEMORY_TIMEOUT
    assert refusal.sentence == "waited 21 s for enough free memory, as long as limits.request_timeout allows"


def test_what_never_fits_does_not_wait() -> None:
    driver = hand(SCARCE, live(floor=GIB), room=GIB + 3 * MIB)
    driver.turn(ask("a", max_tokens=29))
    assert driver.refused("a").code is RefusalCode.TOO_BIG
