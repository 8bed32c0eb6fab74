"""Hundreds wait: what a boundary does is counted, and does not grow with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from engine_toy import GIB, KIB, MIB, Hand, ask, engine_plan, hand, live
from hypothesis import given, settings
from hypothesis import strategies as st

import tandem.engine.schedule as schedule_module
from tandem.contract.messages import Cancel, Generate
from tandem.engine.queue import AT_ONCE, Queue
from tandem.engine.slot import Request
from tandem.engine.waiting import Waiting

MANY = 500


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often somebody was asked where to, and told of the wait, since it was cleared."""
    counted: Counter[str] = Counter()

    def counting(name: str, called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            counted[name] += 1
            return called(*args)

        return call

    monkeypatch.setattr(schedule_module, "route", counting("asked", schedule_module.route))
    monkeypatch.setattr(Waiting, "news", counting("told", Waiting.news))
    return counted


def busy(windows: tuple[int, ...], *waiting: Generate, floor: int = 0) -> Hand:
    """Each slot has a request that writes for long, and everybody else has been asked and told."""
    driver = hand(engine_plan(windows), live(max_queue=10 * MANY, floor=floor, request_timeout=1e9))
    driver.turn(*(ask(f"busy {n}", max_tokens=window - 3) for n, window in enumerate(windows)))
    driver.turn(*waiting)
    for _ in range(2 * len(waiting) // AT_ONCE + 2):
        driver.turn()
    return driver


def test_a_turn_in_which_nothing_changes_asks_and_tells_nobody(work: Counter[str]) -> None:
    driver = busy((400, 400), *(ask(f"{n}") for n in range(MANY)))
    assert all(driver.progress(f"{n}")[-1].done == n for n in range(MANY))
    work.clear()
    driver.turn()
    assert not work


def test_a_change_asks_and_tells_a_few_at_a_time(work: Counter[str]) -> None:
    driver = busy((400, 400), *(ask(f"{n}", max_tokens=300) for n in range(MANY)))
    told = {n: len(driver.progress(f"{n}")) for n in range(MANY)}
    driver.turn(Cancel("busy 0"))
    work.clear()
    seen: list[tuple[int, int]] = []
    for _ in range(3 * MANY // AT_ONCE):
        driver.turn()
        seen.append((work["asked"], work["told"]))
        work.clear()
    assert driver.started("0").slot == 0
    assert max(asked for asked, _ in seen) <= AT_ONCE and max(told for _, told in seen) <= AT_ONCE
    assert sum(asked for asked, _ in seen) < MANY + 2 * AT_ONCE
    assert all(driver.progress(f"{n}")[-1].done == n - 1 for n in range(1, MANY))
    assert all(len(driver.progress(f"{n}")) == told[n] + 1 for n in range(MANY // 2, MANY))


def test_a_free_slot_that_nobody_fits_is_found_by_the_one_who_does(work: Counter[str]) -> None:
    """It stands behind hundreds that only slot 0 can hold, and no boundary asks them all again."""
    driver = busy((400, 40), *(ask(f"{n}", range(60), 30) for n in range(MANY)))
    driver.turn(Cancel("busy 1"))
    driver.turn(ask("short"))
    work.clear()
    turns = 0
    while not any(type(message).__name__ == "Started" for message in driver.to("short")):
        driver.turn()
        turns += 1
        assert work["asked"] <= AT_ONCE
        work.clear()
    assert driver.started("short").slot == 1 and turns <= MANY // AT_ONCE + 2


def test_who_waits_for_memory_is_asked_alone(work: Counter[str]) -> None:
    plan = engine_plan([64, 64], bytes_a_token=64 * KIB, workspace=2 * MIB)
    driver = hand(plan, live(max_queue=10 * MANY, floor=GIB, request_timeout=1e9))
    driver.available = GIB
    driver.turn(*(ask(f"{n}", max_tokens=29) for n in range(MANY)))
    work.clear()
    driver.turn()
    assert work["asked"] == 1 and work["told"] <= AT_ONCE
    driver.available = 64 * GIB
    driver.turn()
    assert {driver.started(f"{n}").slot for n in range(2)} == {0, 1}


def test_own_work_is_asked_when_all_clients_were() -> None:
    driver = hand(engine_plan([400]), live(max_queue=10 * MANY, request_timeout=1e9))
    driver.turn(ask("busy", max_tokens=5))
    driver.turn(ask("own", own_work=True), *(ask(f"{n}", max_tokens=1) for n in range(2 * AT_ONCE)))
    driver.until_idle()
    started = [sent.message.id for sent in driver.sent if type(sent.message).__name__ == "Started"]
    assert started == ["busy", *(f"{n}" for n in range(2 * AT_ONCE)), "own"]


def test_an_idle_engine_does_not_sleep_before_all_were_asked() -> None:
    """As long as somebody may find a slot, the next turn comes at once."""
    driver = busy((400, 40), *(ask(f"{n}", range(60), 30) for n in range(3 * AT_ONCE)))
    driver.turn(Cancel("busy 0"), Cancel("busy 1"), *(Cancel(f"{n}") for n in range(3 * AT_ONCE)))
    driver.turn()
    assert driver.engine.schedule.is_idle and driver.engine.patience > 0
    driver.turn(*(ask(f"again {n}", range(60), 30) for n in range(3 * AT_ONCE)))
    assert driver.engine.patience == 0.0


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.booleans()),
            st.tuples(st.just("remove"), st.integers(0, 30)),
            st.tuples(st.just("ask"), st.integers(0, 3)),
            st.tuples(st.just("late"), st.integers(0, 10)),
            st.tuples(st.just("tell"), st.none()),
            st.tuples(st.just("again"), st.none()),
        ),
        max_size=80,
    )
)
def test_a_queue_keeps_its_order_and_asks_everyone_once(acts: list[tuple[str, Any]]) -> None:
    queue, model, unasked = Queue(), list[Request](), list[str]()

    def in_order() -> list[Request]:
        return [r for r in model if not r.ask.own_work] + [r for r in model if r.ask.own_work]

    for now, (act, given_) in enumerate(acts):
        match act:
            case "add":
                request = Request(1, ask(f"{now}", own_work=given_), float(now))
                queue.add(request)
                model.append(request)
                unasked.append(request.ask.id)
            case "remove":
                removed = queue.remove([(1, f"{given_}")])
                assert [entry.request for entry in removed] == [r for r in model if r.ask.id == f"{given_}"]
                model = [r for r in model if r.ask.id != f"{given_}"]
            case "ask":
                asked = [entry.request.ask.id for entry in islice(queue.to_ask(now), given_)]
                assert asked == [r.ask.id for r in in_order() if r.ask.id in unasked][:given_]
                unasked = [id for id in unasked if id not in asked]
            case "late":
                late = queue.remove_arrived_before(now - given_)
                assert [entry.request for entry in late] == [r for r in in_order() if r.arrived < now - given_]
                model = [r for r in model if r.arrived >= now - given_]
            case "tell":
                assert all(in_order()[ahead] is entry.request for ahead, entry in queue.to_tell(more=True))
            case _:
                queue.ask_all_again()
                unasked = [r.ask.id for r in model]
        assert [entry.request for entry in queue] == in_order() and len(queue) == len(model)
        assert all(r.key in queue for r in model)
        queue.check_integrity()


def test_a_place_in_the_queue_counts_who_is_there_when_it_is_told() -> None:
    """A round of news takes several boundaries; people come and go meanwhile."""
    queue = Queue()
    for n in range(2 * AT_ONCE):
        queue.add(Request(1, ask(f"{n}", own_work=n >= AT_ONCE + 4), float(n)))
    assert [ahead for ahead, _ in queue.to_tell(more=True)] == list(range(AT_ONCE))
    queue.remove([(1, "0"), (1, "5"), (1, f"{AT_ONCE + 1}")])
    queue.add(Request(1, ask("new"), 100.0))  # before own work, and after all other clients
    told = {entry.request.ask.id: ahead for ahead, entry in queue.to_tell(more=False)}
    assert told[f"{AT_ONCE}"] == AT_ONCE - 2 and told[f"{AT_ONCE + 2}"] == AT_ONCE - 1
    assert told[f"{AT_ONCE + 4}"] == AT_ONCE + 2 and told[f"{2 * AT_ONCE - 1}"] == len(queue) - 1
