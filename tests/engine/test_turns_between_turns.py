"""Two chats that take turns, an agent whose prompt grows, titles in between: what a slot or a cache holds is not read
again, and every text is what a cold engine writes. On the toy model, with rules and caches as they are served."""

from __future__ import annotations

import pytest
from engine_toy import Hand, alone, engine_plan, hand, live
from msgspec import structs
from test_conversations import Chat, plan_of, title

from tandem.contract.messages import Finished, Generate, RefusalCode
from tandem.contract.plan import Routing

WIDE, LEVEL = (1_024, 400, 400), (1_024, 1_024, 1_024)
PASS = 0.1  # seconds


def cold(request: Generate) -> list[int]:
    return alone(request, engine_plan(WIDE[:1]), is_row_invariant=True)


def serve(driver: Hand, turns: int) -> tuple[int, int]:
    """Two chats, an agent and titles, each turn begun while the one before it still runs. Returns the rows that were
    not read again, and those a conversation's own turn before had left."""
    chats = [Chat("chat a", 1), Chat("chat b", 2), Chat("agent", 3, head=80, message=17)]
    saved = left = 0
    running: dict[str, tuple[Chat, Generate, int]] = {}

    def settle(name: str) -> None:
        nonlocal saved, left
        chat, request, before = running.pop(name)
        while not any(isinstance(message, Finished) for message in driver.to(request.id)):
            driver.turn(seconds=PASS)
        written = driver.tokens(request.id)
        assert written == cold(request), f"{request.id} beside others"
        chat.tokens += tuple(written)
        saved += driver.finished(request.id).cached_tokens
        left += max(0, before - 1)

    for number in range(turns):
        chat = chats[(0, 2, 1, 2, 2)[number % 5]]
        if chat.name in running:
            settle(chat.name)
        before = len(chat.tokens) if chat.turns else 0
        request = chat.turn(max_tokens=6)
        running[chat.name] = chat, request, before
        driver.turn(request, seconds=PASS)
        for _ in range(number % 4):
            driver.turn(seconds=PASS)
        if number % 3 == 0:
            driver.turn(title(number, tokens=9), seconds=PASS)
    for name in list(running):
        settle(name)
    driver.until_idle()
    return saved, left


@pytest.mark.parametrize("windows", [WIDE, LEVEL], ids=["sides", "level"])
def test_forty_turns_read_nothing_twice(windows: tuple[int, ...]) -> None:
    saved, left = serve(hand(plan_of(windows), is_row_invariant=True), turns=40)
    assert saved / left >= 0.97


def test_without_caches_and_with_the_older_rules_they_do() -> None:
    """So the number above can be missed."""
    older = Routing(guests=False, past_head=False, new_first=False, carry=False, home_wait=0.0, slot0_wait=0.0)
    plain = structs.replace(live(), routing=older)
    saved, left = serve(hand(plan_of(WIDE, memory=0), plain, is_row_invariant=True), turns=40)
    assert saved / left < 0.9


@pytest.mark.parametrize(("own_work_wait", "slot"), [(15.0, 0), (0.0, 1)])
def test_own_work_on_slot_0_gives_way_and_the_turn_goes_on_where_it_was(own_work_wait: float, slot: int) -> None:
    """The question was a guest of the conversation; under the older rule the turn was read again on a side slot, but
    for its client's head."""
    rules = structs.replace(live(), routing=Routing(own_work_wait=own_work_wait, slot0_wait=0.0))
    driver, chat = hand(plan_of((1_024, 700)), rules, is_row_invariant=True), Chat("chat", 1, message=150)
    for _ in range(2):
        chat.go(driver)
    beside = structs.replace(title(1, tokens=30), max_tokens=20)  # has the side slot for a while
    question = structs.replace(title(2, tokens=20), max_tokens=60, own_work=True, task=False)
    driver.turn(beside)
    driver.turn(question)
    while not any(isinstance(message, Finished) for message in driver.to(beside.id)):
        driver.turn()
    before, turn = len(chat.tokens), chat.turn()
    driver.turn(turn)
    driver.until_idle()
    assert (driver.started(question.id).slot, driver.started(turn.id).slot) == (0, slot)
    assert driver.tokens(turn.id) == cold(turn)
    if slot == 0:
        assert driver.refused(question.id).code is RefusalCode.YIELDED
        assert driver.finished(turn.id).cached_tokens == before - 1
    else:
        assert driver.finished(turn.id).cached_tokens <= chat.head
