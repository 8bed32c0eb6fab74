"""Conversations that come back: nothing is read twice, and every text is what a cold engine writes.

On the toy model, whose logits show any wrong row at once: one that is row invariant, and one that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from engine_toy import CHUNK, MIB, Hand, alone, ask, engine_plan, hand
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tandem.contract.messages import Cancel, Generate, RefusalCode, Sampling
from tandem.contract.plan import CachesPlan, DiskCachePlan, EnginePlan
from tandem.engine.conversations import fingerprint

CODE = "tandem.engine.conversations."
WINDOWS = {"one": (512,), "level": (512, 512, 512), "sides": (512, 256, 256)}


def plan_of(windows: Sequence[int], memory: int = 64 * MIB, disk: Path | None = None) -> EnginePlan:
    kept = DiskCachePlan(str(disk), 64 * MIB, 3600.0) if disk else None
    return structs.replace(engine_plan(windows, bytes_a_token=8), caches=CachesPlan(memory, memory // 4, kept))


def cold(request: Generate, is_row_invariant: bool = True, is_recurrent: bool = False) -> list[int]:
    return alone(request, engine_plan((512,)), is_row_invariant, is_recurrent)


class Chat:
    """Its turns go on from what was written."""

    def __init__(self, name: str, seed: int, head: int = 50, message: int = 31) -> None:
        self.name, self.seed, self.message, self.turns = name, seed, message, 0
        self.tokens: tuple[int, ...] = tuple((seed * 11 + at * 5) % 60 + 1 for at in range(head))
        self.head = 0

    def turn(self, max_tokens: int = 4) -> Generate:
        said = tuple((self.seed * 7 + self.turns * 13 + at * 3) % 60 + 1 for at in range(self.message))
        self.tokens += said
        self.turns += 1
        self.head = self.head or len(self.tokens)
        return ask(f"{self.name}{self.turns}", self.tokens, max_tokens, head_end=self.head)

    def go(self, driver: Hand, max_tokens: int = 4) -> int:
        """One turn; returns the rows that were not read again."""
        request = self.turn(max_tokens)
        driver.turn(request)
        driver.until_idle()
        written = driver.tokens(request.id)
        assert written == cold(request, driver.model.is_row_invariant, driver.model.is_recurrent), f"{request.id} cold"
        self.tokens += tuple(written)
        return driver.finished(request.id).cached_tokens


def title(number: int, tokens: int = 5) -> Generate:
    return structs.replace(ask(f"t{number}", tuple(range(1, tokens + 1)), 3), task=True)


def test_the_next_turn_goes_on_behind_the_answer() -> None:
    driver, chat = hand(plan_of((512,), memory=0), is_row_invariant=True), Chat("a", 1)
    assert chat.go(driver) == 0
    for _ in range(3):
        before = len(chat.tokens)
        assert chat.go(driver) == before - 1  # the last token that is written has no row


def test_what_cannot_go_back_goes_on_behind_its_answer_from_the_end_anchor() -> None:
    driver, chat = hand(plan_of((512,)), is_row_invariant=True, is_recurrent=True), Chat("a", 1)
    chat.go(driver)
    for _ in range(3):
        before = len(chat.tokens)
        assert chat.go(driver) == before - 1


def test_on_the_grid_only_where_rows_depend_on_their_pass() -> None:
    driver, chat = hand(plan_of((512,), memory=0)), Chat("a", 1)
    chat.go(driver)
    prompt = len(chat.tokens) - 4
    assert chat.go(driver) == prompt - prompt % CHUNK


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
def test_what_cannot_go_back_goes_on_from_its_last_anchor(windows: tuple[int, ...]) -> None:
    """In its slot, from memory, and with a title in between."""
    driver = hand(plan_of(windows), is_recurrent=True)
    chats = [Chat(name, seed) for seed, name in enumerate("abcd")]
    for chat in chats:
        chat.go(driver)
    for number in range(2):
        for chat in chats:
            driver.turn(request := title(10 * number + chat.seed))
            driver.until_idle()
            assert driver.tokens(request.id) == cold(request, False, True)
            prompt = len(chat.tokens) - 4
            assert chat.go(driver) == prompt - prompt % CHUNK


@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
def test_chats_that_take_turns_find_everything_again(windows: tuple[int, ...]) -> None:
    """More of them than slots: who makes way is put into memory."""
    driver = hand(plan_of(windows), is_row_invariant=True)
    chats = [Chat(name, seed) for seed, name in enumerate("abcd")]
    for chat in chats:
        chat.go(driver)
    for _ in range(3):
        for chat in chats:
            before = len(chat.tokens)
            assert chat.go(driver) == before - 1
    assert driver.engine.conversations.caches.stats.restored or len(windows) > len(chats)


def test_what_memory_has_no_room_for_comes_back_from_the_disk(tmp_path: Path) -> None:
    driver = hand(plan_of((512,), memory=0, disk=tmp_path), is_row_invariant=True)
    one, other = Chat("a", 1), Chat("b", 2)
    for chat in (one, other):
        chat.go(driver)
    driver.engine.close()
    again = hand(plan_of((512,), memory=0, disk=tmp_path), is_row_invariant=True)
    for chat in (one, other, one, other):
        settle(again)
        before = len(chat.tokens)
        assert chat.go(again) >= (before - 1) - (before - 1) % CHUNK
    assert {message.cache_source for chat in (one,) for message in [again.started("a2")]} == {"disk"}
    again.engine.close()


def settle(driver: Hand) -> None:
    """The disk's thread has looked and written."""
    disk = driver.engine.conversations.caches.stats.disk
    while disk is not None and (not disk.is_scanned or disk.waiting):
        driver.turn()
        disk = driver.engine.conversations.caches.stats.disk


def test_a_title_on_copied_rows_is_kept_as_a_title() -> None:
    """Open WebUI asks for two chats' titles at once: their prompts begin alike, and the second begins with rows of the
    first. Kept as a conversation, it was put aside for those that came later."""
    driver, shared = hand(plan_of((512, 512)), is_row_invariant=True), tuple(range(1, 61)) * 3
    for name, end in (("t1", 7), ("t2", 8)):
        driver.turn(structs.replace(ask(name, (*shared, end), 100), task=True))
        for _ in range(20):
            driver.turn()
    driver.until_idle()
    assert driver.started("t2").cache_source == "side"
    assert all(slot.kept.is_errand for slot in driver.engine.conversations._slots)


def test_copied_rows_are_gone_on_from_at_none_of_the_places_that_lay_there_before() -> None:
    """Of a model that cannot go back: what lay in the slot had states at the same positions, of other rows."""
    driver, shared = hand(plan_of((512, 512)), is_recurrent=True), tuple(range(1, 61)) * 3
    driver.turn(ask("other", tuple(range(60, 0, -1)) * 4, 4))  # on slot 0
    driver.until_idle()
    driver.turn(ask("lender", (*shared, 7), 300))  # on slot 1, which is empty
    for _ in range(60):
        driver.turn()
    borrower, again = (ask(name, (*shared, 8), 4) for name in ("borrower", "again"))
    for request in (borrower, again, ask("last", (*shared[:100], 9, 9), 4)):  # on slot 0
        driver.turn(request)
        for _ in range(60):
            driver.turn()
        assert driver.started(request.id).slot == 0
        assert driver.tokens(request.id) == cold(request, False, True)
    assert driver.started("borrower").cache_source == "side"
    assert (driver.started("again").cache_source, driver.started("again").cached_tokens) == ("resident", 180)


def test_a_title_on_the_only_slot_leaves_the_conversation_as_it_was() -> None:
    driver, chat = hand(plan_of((512,)), is_row_invariant=True), Chat("a", 1, head=40, message=60)
    chat.go(driver)
    for number in range(3):
        request = title(number)
        driver.turn(request)
        driver.until_idle()
        assert driver.tokens(request.id) == cold(request)
        before = len(chat.tokens)
        assert chat.go(driver) == before - 1


def test_a_title_beside_it_takes_an_idle_side_slot() -> None:
    driver, chat = hand(plan_of((512, 256)), is_row_invariant=True), Chat("a", 1, head=40, message=60)
    chat.go(driver)
    driver.turn(title(1))
    driver.until_idle()
    assert driver.started("t1").slot == 1


def test_a_conversation_that_outgrows_its_side_slot_is_carried_into_slot_0() -> None:
    driver = hand(plan_of((512, 128), memory=0), is_row_invariant=True)
    long, side = Chat("a", 1, head=100, message=100), Chat("b", 2, head=40, message=30)
    first = long.turn(max_tokens=20)
    driver.turn(first)
    driver.turn(side.turn())
    driver.until_idle()
    assert driver.started("b1").slot == 1
    side.tokens += tuple(driver.tokens("b1"))
    side.message = 80
    before = len(side.tokens)
    assert side.go(driver) == before - 1
    started = driver.started("b2")
    assert (started.slot, started.cache_source) == (0, "side")


def test_a_new_chat_begins_with_the_head_of_its_client() -> None:
    driver = hand(plan_of((512,)), is_row_invariant=True)
    head = tuple(at % 60 + 1 for at in range(70))
    for number in range(4):
        request = ask(f"n{number}", (*head, 40 + number, 50), 3, head_end=len(head) + 2)
        driver.turn(request)
        driver.until_idle()
        assert driver.tokens(request.id) == cold(request)
        assert driver.finished(request.id).cached_tokens >= (len(head) if number else 0)


def test_a_cancel_while_rows_come_back_leaves_the_slot_clean(tmp_path: Path) -> None:
    driver, chat = hand(plan_of((512,), memory=0, disk=tmp_path), is_row_invariant=True), Chat("a", 1)
    chat.go(driver)
    other = Chat("b", 2)
    other.go(driver)
    settle(driver)
    driver.engine.conversations.advance = lambda slot, is_alone: False  # type: ignore[method-assign]  # a slow disk
    request = chat.turn()
    driver.turn(request)
    driver.turn(Cancel(request.id))
    driver.turn()
    assert driver.engine.schedule.is_idle
    del driver.engine.conversations.advance
    settle(driver)
    other.go(driver)
    driver.engine.close()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    windows=st.sampled_from(list(WINDOWS.values())),
    kind=st.sampled_from([(True, False), (False, False), (False, True), (True, True)]),
    memory=st.sampled_from([0, 3000, 64 * MIB]),
    order=st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=4, max_size=10),
    seed=st.integers(0, 9),
)
def test_whatever_is_kept_texts_are_those_of_a_cold_engine(
    windows: tuple[int, ...], kind: tuple[bool, bool], memory: int, order: list[tuple[int, bool]], seed: int
) -> None:
    """Several at once, some drawn, some titles, in any order and with caches of any size."""
    driver = hand(plan_of(windows, memory), is_row_invariant=kind[0], is_recurrent=kind[1])
    chats = [Chat(name, seed + number, head=30 * number + 2) for number, name in enumerate("abcd")]
    sampling = Sampling(temperature=0.8, seed=seed)
    number = 0
    for who, with_title in order:
        chat = chats[who]
        if len(chat.tokens) > 200:
            continue
        request = structs.replace(chat.turn(), sampling=sampling if who % 2 else Sampling())
        asked = [request]
        if with_title:
            number += 1
            asked.append(title(number, tokens=3 + who))
        driver.turn(*asked)
        driver.until_idle()
        for each in asked:
            assert driver.tokens(each.id) == cold(each, *kind), each.id
        chat.tokens += tuple(driver.tokens(request.id))


def test_who_asks_for_it_reads_everything_anew() -> None:
    driver, chat = hand(plan_of((512, 512)), is_row_invariant=True), Chat("a", 1)
    chat.go(driver)
    request = structs.replace(chat.turn(), anew=True)
    driver.turn(request)
    driver.until_idle()
    assert driver.finished(request.id).cached_tokens == 0
    assert driver.tokens(request.id) == cold(request)


def test_a_conversation_that_is_read_again_says_where_it_parts() -> None:
    """A date in the system prompt, as clients write it: every turn is another conversation."""
    driver, chat = hand(plan_of((512,)), is_row_invariant=True), Chat("a", 1)
    chat.go(driver)
    chat.tokens = (*chat.tokens[:9], 63, *chat.tokens[10:])
    request = chat.turn()
    driver.turn(request)
    driver.until_idle()
    missed = driver.started(request.id).missed
    assert missed is not None and (missed.at, missed.before, missed.slot) == (9, 9, 0)
    assert missed.ours[missed.before] == 63 != missed.theirs[missed.before]
    assert missed.ours[: missed.before] == missed.theirs[: missed.before] == chat.tokens[:9]


def test_what_is_found_or_new_or_a_title_misses_nothing() -> None:
    driver, chat = hand(plan_of((512,)), is_row_invariant=True), Chat("a", 1)
    chat.go(driver)
    chat.go(driver)
    driver.turn(title(1))
    driver.until_idle()
    assert all(driver.started(id).missed is None for id in ("a1", "a2", "t1"))


def test_what_a_client_asked_to_keep_outlives_the_others_until_its_time() -> None:
    """Memory has room for about two conversations; four more come by."""
    driver = hand(plan_of((512,), memory=3000), is_row_invariant=True)
    chat = Chat("a", 1)
    request = structs.replace(chat.turn(), keep_for=600.0)
    driver.turn(request)
    driver.until_idle()
    chat.tokens += tuple(driver.tokens(request.id))
    for seed in range(4):
        Chat("bcde"[seed], 2 + seed).go(driver)
    before = len(chat.tokens)
    request = structs.replace(chat.turn(), keep_for=600.0)
    driver.turn(request)
    driver.until_idle()
    assert driver.finished(request.id).cached_tokens == before - 1
    assert driver.tokens(request.id) == cold(request)
    assert len(driver.engine.conversations._pins) == 1  # of the last turn
    driver.turn(seconds=700.0)
    Chat("f", 9).go(driver)
    assert not driver.engine.conversations._pins


def test_writing_slots_wait_for_a_part_of_a_chunk_only_where_rows_are_invariant() -> None:
    for is_row_invariant, longest in ((True, 8), (False, 32)):
        plan = structs.replace(engine_plan((512, 512), chunk=32), bytes_a_token=8)
        driver = hand(plan, row_bucket=4, is_row_invariant=is_row_invariant)
        driver.turn(ask("writes", (1, 2, 3), 40))
        driver.turn()
        driver.model.passes.clear()
        request = ask("reads", tuple(at % 60 + 1 for at in range(100)), 3)
        driver.turn(request)
        driver.until_idle()
        assert max(rows for blocks in driver.model.passes for rows in blocks) == longest
        expected = alone(request, plan, is_row_invariant)
        assert driver.tokens("reads") == expected


def test_rows_that_fail_on_their_way_end_their_request_and_nothing_else(tmp_path: Path) -> None:
    driver, chat = hand(plan_of((512,), memory=0, disk=tmp_path), is_row_invariant=True), Chat("a", 1)
    chat.go(driver)
    Chat("b", 2).go(driver)
    settle(driver)

    def broken(slot: object, is_alone: bool) -> bool:
        raise RuntimeError("our bug")

    driver.engine.conversations.advance = broken  # type: ignore[method-assign, assignment]
    request = chat.turn()
    driver.turn(request)
    driver.turn()
    assert driver.refused(request.id).code is RefusalCode.FAILED
    assert driver.engine.schedule.is_idle
    del driver.engine.conversations.advance
    Chat("c", 3).go(driver)
    driver.engine.close()


@pytest.mark.parametrize("change", [
    lambda plan, patch: structs.replace(plan, compute="int8"),
    lambda plan, patch: structs.replace(plan, threads=2),
    lambda plan, patch: structs.replace(plan, weights_sha256="0" * 64),
    lambda plan, patch: patch.setattr(CODE + "build", lambda: "compiled anew") or plan,
    lambda plan, patch: patch.setattr(CODE + "families", lambda: ("portable",)) or plan,
    lambda plan, patch: patch.setattr(CODE + "version", lambda package: "99") or plan,
], ids=["compute", "threads", "weights", "build", "families", "version"])  # fmt: skip
def test_rows_on_the_disk_are_those_of_one_arithmetic(
    change: Callable[[EnginePlan, pytest.MonkeyPatch], EnginePlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, plan = fingerprint(engine_plan()), change(engine_plan(), monkeypatch)
    assert fingerprint(plan) == fingerprint(plan) != before
