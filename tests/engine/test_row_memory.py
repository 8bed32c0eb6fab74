"""Rows and their memory through the life of requests: with the pool, and what is only accounted for without it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from engine_toy import GIB, MIB, Hand, alone, ask, engine_plan, hand, live
from torch import Tensor

from tandem.contract.messages import Cancel, FinishReason, RefusalCode, RequestState
from tandem.contract.plan import EnginePlan, Floors
from tandem.engine.admit import PAGE, RowCost
from tandem.engine.row_memory import FirstWrite
from tandem.memory.host_pages import HostPages
from tandem.memory.kvpool import SlotRows
from tandem.model.interface import Block

ROWS_A_PAGE = 512  # a toy row has 8 bytes, and a page 4 KiB
WINDOW = 4 * ROWS_A_PAGE
KIB4 = 4096


def pool_plan(slots: int = 2, margin: int = 16) -> EnginePlan:
    plan = engine_plan([WINDOW] * slots, chunk=64, bytes_a_token=8)
    return msgspec.structs.replace(plan, kv_margin_rows=margin)


def pooled(slots: int = 2, hard_floor: int = 0, margin: int = 16) -> Hand:
    floors = Floors(floor=0, hard_floor=hard_floor, margin=0)
    limits = msgspec.structs.replace(live(request_timeout=1e6), floors=floors)
    return hand(pool_plan(slots, margin), limits, pages=HostPages())


def rows_with_memory(driver: Hand, slot: int = 0) -> int:
    return driver.engine.schedule.slots[slot].memory.rows


def committed(driver: Hand) -> int:
    driver.turn()
    assert driver.health is not None
    return sum(usage.committed for usage in driver.health.kv)


def prompt(length: int, first: int = 1) -> list[int]:
    return [first, *(index % 50 for index in range(1, length))]


def test_nothing_is_committed_before_the_first_request() -> None:
    driver = pooled()
    driver.engine.warm_up()
    assert committed(driver) == 0
    assert [(usage.slot, usage.kind, usage.reserved) for usage in driver.health.kv] == [
        (0, "attention", WINDOW * 8),
        (1, "attention", WINDOW * 8),
    ]


def test_rows_have_memory_before_any_pass_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pooled()
    forward, seen = driver.model.forward, []

    def checked(blocks: Sequence[Block]) -> Tensor:
        for block in blocks:
            (slot,) = [slot for slot in driver.engine.schedule.slots if slot.state is block.state]
            assert slot.memory.rows >= min(block.start + block.rows + 16, WINDOW)
            seen.append(block.start + block.rows)
        return forward(blocks)

    monkeypatch.setattr(driver.model, "forward", checked)
    driver.turn(ask("a", prompt(900), 200), ask("b", prompt(WINDOW - 100, 2), 100))
    driver.until_idle()
    assert max(seen) == WINDOW - 1  # the last token that is written has no row
    assert len(driver.tokens("a")) == 200


def test_texts_are_those_without_the_pool() -> None:
    requests = [ask(f"{length}", prompt(length, length % 60), 40) for length in (3, 500, 513, 1300)]
    driver = pooled(slots=4)
    driver.turn(*requests)
    driver.until_idle()
    for request in requests:
        assert driver.tokens(request.id) == alone(request, pool_plan(1))


def test_at_its_end_a_request_keeps_the_pages_of_what_may_be_resumed() -> None:
    driver = pooled()
    driver.turn(ask("a", prompt(600), 600))
    driver.until_idle()
    assert committed(driver) == 2 * KIB4  # 576 rows are whole chunks; the answer's rows went back
    driver.turn(ask("b", prompt(620), 4))
    driver.until_idle()
    assert driver.finished("b").cached_tokens == 576
    assert driver.tokens("b") == alone(ask("b", prompt(620), 4), pool_plan())


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_whatever_ends_a_request_gives_its_rows_back(end: str) -> None:
    driver = pooled()
    driver.turn(ask("a", prompt(30), 1500))
    for _ in range(700):
        driver.turn()
    assert rows_with_memory(driver) > 700
    if end == "failed":
        driver.model.broken.append(RuntimeError("a product failed"))
        driver.turn()
        driver.turn()
        assert driver.refused("a").code is RefusalCode.FAILED
    else:
        driver.turn(Cancel("a"))
        assert driver.finished("a").reason is FinishReason.CANCELLED
    assert committed(driver) == 0


def test_a_refused_commit_ends_that_request_alone() -> None:
    """While two write, memory falls to the hard floor; the first that needs a page ends, the other writes on."""
    driver = pooled(hard_floor=10 * GIB)
    driver.turn(ask("long", prompt(480), 100), ask("short", prompt(20, 2), 60))
    while rows_with_memory(driver, 0) < 512 or not driver.tokens("long"):
        driver.turn()
    driver.available = 10 * GIB + KIB4 - 1
    driver.until_idle()
    refusal = driver.refused("long")
    assert refusal.code is RefusalCode.NO_MEMORY
    assert refusal.sentence == (
        "memory is full: 4.0 KiB are needed for the next rows, 10.0 GiB are available and 10.0 GiB are the hard floor"
    )
    assert refusal.retry_after == 15.0
    assert 0 < len(driver.tokens("long")) < 100
    assert driver.tokens("short") == alone(ask("short", prompt(20, 2), 60), pool_plan())
    driver.available = 64 * GIB
    driver.turn(ask("again", prompt(480), 100))
    driver.until_idle()
    assert driver.tokens("again") == alone(ask("again", prompt(480), 100), pool_plan())


def test_a_prompt_that_gets_no_memory_is_not_read() -> None:
    driver = pooled(hard_floor=10 * GIB)
    driver.available = 10 * GIB
    driver.turn(ask("a", prompt(100), 4))
    passes = len(driver.model.passes)
    driver.turn()
    assert driver.refused("a").code is RefusalCode.NO_MEMORY
    assert len(driver.model.passes) == passes == 0
    assert driver.health.counters.rounds_by_size == {}


def test_admission_counts_the_pages_a_request_has_yet_to_commit() -> None:
    """Three pages are left: a request of two that runs, and has one of them, leaves room for one of one more."""
    driver = pooled(margin=0)
    driver.available = 3 * KIB4
    driver.turn(ask("a", prompt(400), 500), ask("b", prompt(400, 2), 500))
    assert driver.started("a").slot == 0
    assert driver.progress("b")[0].state is RequestState.WAITING_MEMORY
    driver.turn()  # `a` has its first page now; the box, in this test, is as full as before
    assert driver.started("b").slot == 1


def test_without_the_pool_memory_stays_where_it_was_written() -> None:
    cost = RowCost(a_token=KIB4, workspace=MIB)
    memory = FirstWrite(0, 2048, cost)
    assert memory.still_to_commit(1000) == 2 * PAGE
    memory.commit(600)
    memory.commit(300)
    memory.give_back(0)
    assert memory.rows == 600
    assert memory.still_to_commit(1000) == 0
    assert memory.still_to_commit(1100) == PAGE
    (usage,) = memory.usage
    assert (usage.slot, usage.kind, usage.reserved, usage.committed) == (0, "attention", 4 * PAGE, 2 * PAGE)


def test_the_pool_is_off_when_the_plan_says_so() -> None:
    assert isinstance(hand().engine.schedule.slots[0].memory, FirstWrite)
    assert isinstance(pooled().engine.schedule.slots[0].memory, SlotRows)
