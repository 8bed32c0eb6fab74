"""Waits as they happen: how long, for whom, what everyone is told and what is counted."""

from __future__ import annotations

from collections.abc import Sequence as Several

import pytest
from engine_toy import CHUNK, GIB, KIB, VOCAB, Hand, ToyModel, ask, engine_plan, hand, live, slot_of
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import json, structs

from tandem.contract.messages import FinishReason, Generate, RefusalCode, SetLive, Turn
from tandem.contract.plan import Live, Routing
from tandem.engine.admit import RowCost
from tandem.engine.case import fits
from tandem.engine.choice import choice_for
from tandem.engine.drafters import no_drafting
from tandem.engine.facts import Ask, Grid, Held, Source, WaitKind
from tandem.engine.schedule import Schedule
from tandem.engine.slot import Request, Sequence

HEAD = (1, 2, 3, 4, 5, 6, 7, 8)  # of a client: system prompt, tools


def ruled(**rules: object) -> Live:
    return structs.replace(live(), routing=Routing(**rules))  # type: ignore[arg-type]


def sentences(driver: Hand, id: str) -> list[str]:
    return [progress.sentence for progress in driver.progress(id) if progress.sentence.startswith("Queued")]


# --- an engine, turned by hand ----------------------------------------------------------------------------------


def test_own_work_gives_way_to_a_client() -> None:
    driver = hand(engine_plan([100, 40]))
    driver.turn(ask("summary", prompt=range(40), max_tokens=50, own_work=True))
    for _ in range(12):
        driver.turn()
    driver.turn(ask("client"))
    assert sentences(driver, "client") == ["Queued: slot 0 does work of the appliance's own, which gives way"]
    driver.turn()
    gave_way = driver.refused("summary")
    assert (gave_way.code, gave_way.retry_after) == (RefusalCode.YIELDED, 1.0)
    assert driver.started("client").slot == 0  # and the side slot was free all the time
    assert driver.health is not None and driver.health.parallel is not None
    assert driver.health.parallel.yielded == 1
    assert driver.health.parallel.waits == {WaitKind.OWN_WORK: 1}


def test_own_work_under_the_older_rule_pushed_a_client_to_a_side_slot() -> None:
    driver = hand(engine_plan([100, 40]), ruled(own_work_wait=0.0))
    driver.turn(ask("summary", prompt=range(40), max_tokens=50, own_work=True))
    driver.turn(ask("client"))
    assert driver.started("client").slot == 1


def test_what_own_work_had_read_when_it_gave_way_is_not_read_again() -> None:
    driver = hand(engine_plan([100, 40]))
    question = tuple(range(30, 60))
    driver.turn(ask("summary", prompt=question, max_tokens=50, own_work=True))
    for _ in range(10):
        driver.turn()
    driver.turn(ask("client", prompt=(*question, 1), max_tokens=50))
    driver.turn()
    assert driver.refused("summary").code is RefusalCode.YIELDED
    assert driver.started("client").cached_tokens == 28  # of 30, on the grid


def test_own_work_goes_on_where_nobody_wants_its_slot() -> None:
    driver = hand(engine_plan([100, 40]))
    driver.turn(ask("busy", max_tokens=60))
    driver.turn(ask("summary", max_tokens=20, own_work=True))
    driver.turn(ask("long", prompt=range(30), max_tokens=60))  # for slot 0 alone, which a client has
    driver.until_idle()
    assert driver.finished("summary").reason is FinishReason.LENGTH
    assert (driver.started("summary").slot, driver.started("long").slot) == (1, 0)


def test_own_work_gives_way_where_a_client_waits_for_its_memory() -> None:
    driver = hand(engine_plan([64, 64], bytes_a_token=64 * KIB, workspace=2 << 20), live(floor=GIB))
    driver.available = GIB + (7 << 20)  # what one takes: two pages, and the workspace of reading
    driver.turn(ask("summary", max_tokens=61, own_work=True))
    driver.turn(ask("client", max_tokens=61))
    driver.turn()
    assert driver.refused("summary").code is RefusalCode.YIELDED
    assert driver.started("client").slot in (0, 1)


def test_a_chat_with_the_same_head_waits_only_under_the_older_rule() -> None:
    """Many prompts' first tokens are their client's, and the conversation beside is as short as they are."""
    first, second = ask("first", (*HEAD, 9), 50, head_end=9), ask("second", (*HEAD, 11), 20, head_end=9)
    for rules, slot in ((ruled(), 1), (ruled(past_head=False, slot0_wait=600.0), 0)):
        driver = hand(engine_plan([100, 40]), rules)
        driver.turn(first)
        for _ in range(4):
            driver.turn()
        driver.turn(second)
        driver.until_idle()
        assert driver.started("second").slot == slot


def test_choices_of_one_prompt_do_not_wait_for_each_other() -> None:
    driver = hand(engine_plan([64, 64, 64]))
    prompt = tuple(range(20))
    driver.turn(*(ask(f"choice {index}", prompt, 9, head_end=2) for index in range(3)))
    assert sorted(driver.started(f"choice {index}").slot for index in range(3)) == [0, 1, 2]


def test_a_conversation_is_told_by_its_clients_messages_and_goes_home() -> None:
    """The conductor's note stands before everything, and another one the next time: no row is shared."""
    message, answer = (*HEAD, 20, 21, 22, 23), (30, 31)
    turn = structs.replace(ask("turn", (50, *message), 9, head_end=10), client_tokens=message, client_head_end=9)
    following = (*message, *answer, 24, 25)
    after = structs.replace(ask("next", (51, *following), 9, head_end=10), client_tokens=following, client_head_end=9)
    for view, slot in (("client", 1), ("resident", 0)):
        driver = hand(engine_plan([100, 64]), ruled(continues=view))
        driver.turn(ask("busy", max_tokens=60))
        driver.turn(turn)
        driver.until_idle()
        driver.turn(after)
        driver.until_idle()
        assert (driver.started("turn").slot, driver.started("next").slot) == (1, slot)


def test_of_two_chats_with_one_beginning_each_goes_where_its_client_says_it_is() -> None:
    driver = hand(engine_plan([64, 64]))
    first, following = tuple(range(20)), tuple(range(24))
    driver.turn(*(structs.replace(ask(name, first, 3, head_end=4), conversation=name) for name in ("one", "two")))
    driver.until_idle()
    slots = {name: driver.started(name).slot for name in ("one", "two")}
    assert sorted(slots.values()) == [0, 1]
    for name, slot in slots.items():
        driver.turn(structs.replace(ask(f"{name} again", following, 3, head_end=4), conversation=name))
        driver.until_idle()
        assert driver.started(f"{name} again").slot == slot


def test_a_title_leaves_no_conversation_behind_that_others_would_spare() -> None:
    driver = hand(engine_plan([64, 64]))
    driver.turn(structs.replace(ask("title", range(20), 3), task=True))
    driver.until_idle()
    driver.turn(ask("chat", range(30, 50), 3))
    driver.until_idle()
    driver.turn(ask("other", range(40, 60), 3))
    assert (driver.started("title").slot, driver.started("chat").slot, driver.started("other").slot) == (0, 1, 0)


def test_an_edit_of_the_rules_reaches_who_waits() -> None:
    driver = hand(engine_plan([100, 40]), ruled(past_head=False, slot0_wait=600.0))
    driver.turn(ask("first", (*HEAD, 9), 50, head_end=9))
    for _ in range(4):
        driver.turn()
    driver.turn(ask("second", (*HEAD, 11), 20, head_end=9))
    assert sentences(driver, "second") == [
        "Queued: slot 0 holds its conversation; a free side slot takes it after 600 s"
    ]
    driver.turn(SetLive(json.encode(ruled(past_head=False, slot0_wait=2.0))))
    driver.turn()
    assert driver.started("second").slot == 1
    assert driver.health is not None and driver.health.parallel is not None
    assert driver.health.parallel.slot0_gave_up == 1
    assert driver.started("second").reason.startswith("slot 0 still busy after 2.0 s, its conversation goes on here")


def test_whoever_waits_for_a_slot_waits_for_one_that_works() -> None:
    """So the engine never sleeps through the end of a wait."""
    driver = hand(engine_plan([100, 40]))
    driver.turn(ask("busy", max_tokens=60), ask("busy 2", max_tokens=30), ask("waits"))
    while driver.engine.schedule.waiting:
        assert driver.engine.patience == 0.0
        driver.turn()


def test_health_says_who_has_the_device() -> None:
    driver = hand(engine_plan([64, 64]))
    turns = []
    driver.turn(ask("a", range(8), 3))
    for _ in range(6):
        assert driver.health is not None and driver.health.parallel is not None
        turns.append(driver.health.parallel.turn)
        driver.turn()
    assert turns == [Turn("reading", (0,))] * 2 + [Turn("writing", (0,))] * 2 + [Turn("idle")] * 2


def test_health_says_how_many_may_run_and_why_not_more() -> None:
    driver = hand(engine_plan([64, 64], bytes_a_token=64 * KIB, workspace=2 << 20), live(floor=GIB))
    driver.available = GIB + (5 << 20)
    driver.turn(ask("a", max_tokens=29), ask("b", max_tokens=29))
    assert driver.health is not None and (parallel := driver.health.parallel) is not None
    assert (parallel.requested, parallel.max_running) == (2, 1)
    assert parallel.max_running_reason == "memory: the next needs 4.0 MiB, 1.0 MiB are left"
    assert (parallel.memory_needed, parallel.memory_left) == (4 << 20, 1 << 20)
    driver.until_idle()
    assert (parallel := driver.health.parallel) is not None
    assert (parallel.max_running, parallel.max_running_reason) == (2, "every slot may run")
    assert (parallel.memory_needed, parallel.memory_left) == (0, 0)


# --- the schedule alone, with what caches hold ------------------------------------------------------------------


class Desk:
    """A schedule whose requests run for as long as the test lets them."""

    def __init__(self, windows: Several[int], held: Several[Held] = (), rules: Routing | None = None) -> None:
        cost = RowCost(0, 0)
        states = [ToyModel().new_state(window) for window in windows]
        slots = [slot_of(state, i) for i, state in enumerate(states)]
        self.asked: list[str] = []  # whose prompt was looked for
        self.held = held
        self.schedule = Schedule(slots, Grid(CHUNK, CHUNK), cost, self.find)
        self.rules = rules or Routing()
        self.now = 0.0
        self.told: dict[str, list[str]] = {}

    def find(self, request: Request) -> Several[Held]:
        self.asked.append(request.ask.id)
        return self.held if len(request.ask.tokens) > 12 else ()

    def submit(self, *requests: Generate) -> None:
        for request in requests:
            assert self.schedule.submit(Request(1, request, self.now), max_queue=100) is None

    def boundary(self, seconds: float = 0.0) -> dict[str, int]:
        """Who starts, and where."""
        self.now += seconds
        starts = self.schedule.admit(GIB, 0, self.rules, self.now)
        for start in starts:
            followed = no_drafting().begin(start.slot.state, "")
            choice = choice_for(start.request.ask, VOCAB, 0)
            start.slot.begin(Sequence(start.request, start.take, choice, followed, self.now))
        for _, progress in self.schedule.progress(self.now, 0):
            self.told.setdefault(progress.id, []).append(progress.sentence)
        self.schedule.check_integrity()
        return {start.request.ask.id: start.slot.index for start in starts}

    def keep(self, index: int, rows: int) -> None:
        """So many rows of the prompt were read."""
        slot = self.schedule.slots[index]
        assert slot.sequence is not None
        slot.memory.commit(rows)
        slot.sequence.read = rows
        slot.wrote(rows)
        slot.keep(rows)

    def end(self, index: int) -> None:
        sequence = self.schedule.slots[index].sequence
        assert sequence is not None
        sequence.end = sequence.end or FinishReason.STOP
        self.schedule.slots[index].end(self.now)

    def retire(self) -> None:
        for slot in self.schedule.ended:
            self.end(slot.index)


SPILLED = [Held(Source.DISK, 12, slot0_only=True)]


def test_a_spilled_conversation_waits_three_seconds_for_slot_0() -> None:
    desk = Desk([100, 40, 40], SPILLED)
    desk.submit(ask("other", max_tokens=60))
    assert desk.boundary() == {"other": 0}
    desk.submit(ask("turn", range(16), 20, head_end=2))
    assert desk.boundary() == {}
    sentence = "slot 0 reads its conversation back from the disk; a free side slot takes it after 3 s"
    assert desk.told["turn"] == [f"Queued: {sentence}"]
    assert desk.boundary(seconds=2.9) == {}
    assert desk.boundary(seconds=0.1) == {"turn": 1}
    parallel = desk.schedule.parallel(Turn("idle"))
    assert (parallel.waits, parallel.slot0_gave_up) == ({WaitKind.SPILL: 1}, 1)
    assert len(desk.told["turn"]) == 1


def test_slot_0_free_again_in_time_takes_it() -> None:
    desk = Desk([100, 40], SPILLED)
    desk.submit(ask("other", max_tokens=60))
    desk.boundary()
    desk.submit(ask("turn", range(16), 20, head_end=2))
    desk.boundary(seconds=1.0)
    desk.end(0)
    assert desk.boundary(seconds=1.0) == {"turn": 0}
    assert desk.schedule.parallel(Turn("idle")).slot0_gave_up == 0


def test_the_sentence_changes_with_what_is_waited_for() -> None:
    desk = Desk([100, 40], SPILLED)
    desk.submit(ask("other", max_tokens=60), ask("another", max_tokens=30))
    desk.boundary()
    desk.submit(ask("turn", range(16), 20, head_end=2))
    desk.boundary()
    desk.boundary(seconds=1.0)
    desk.boundary(seconds=2.0)
    assert [sentence.split(";")[0] for sentence in desk.told["turn"]] == [
        "Queued: slot 0 reads its conversation back from the disk",
        "Queued: all 2 slots are busy",
    ]
    assert desk.schedule.parallel(Turn("idle")).waits == {WaitKind.SPILL: 1, WaitKind.BUSY: 1}


def test_what_the_disk_saves_side_slots_is_counted() -> None:
    desk = Desk([400, 200, 200], [Held(Source.DISK, 80)])
    desk.submit(ask("zero", (9, 9, 9), 90), ask("one", range(100), 90), ask("two", (8, 8, 8), 90))
    assert desk.boundary() == {"zero": 0, "one": 1, "two": 2}
    seen = desk.schedule.parallel(Turn("idle")).side_disk
    assert (seen.lookups, seen.hits, seen.tokens) == (2, 1, 80)


def test_prompts_are_compared_once_for_as_long_as_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    import tandem.engine.waiting as module

    compared: list[int] = []
    agree = module.num_agreeing
    monkeypatch.setattr(module, "num_agreeing", lambda one, other: compared.append(0) or agree(one, other))
    desk = Desk([100, 40])
    desk.submit(ask("a", range(20), 60))
    desk.boundary()
    desk.keep(0, 16)
    desk.submit(ask("b", range(30), 60))  # too long for the side slot, which stays free
    for times in range(1, 5):
        desk.rules = Routing(home_wait=float(times))
        desk.boundary(seconds=1.0)
        assert desk.asked.count("b") == times
    assert len(compared) == 2  # its rows, and the client's prompt


def test_nobody_is_asked_again_before_something_can_have_changed() -> None:
    desk = Desk([100, 40], SPILLED)
    desk.submit(ask("a", max_tokens=60), ask("b"))
    desk.boundary()
    desk.submit(ask("turn", range(16), 20, head_end=2))
    desk.boundary()
    for seconds, times in ((1.0, 1), (1.0, 1), (1.0, 2), (5.0, 2)):  # its wait for slot 0 ends after three
        desk.boundary(seconds)
        assert desk.asked.count("turn") == times
    desk.rules = Routing(slot0_wait=20.0)
    desk.boundary()
    assert desk.asked.count("turn") == 3
    desk.end(1)
    assert desk.boundary() == {}
    assert desk.boundary(seconds=12.0) == {"turn": 1}


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 6),  # seconds after the one before
        st.integers(4, 60),  # tokens of the prompt
        st.integers(1, 60),  # max_tokens
        st.integers(0, 2),  # which conversation
        st.integers(1, 20),  # seconds it runs
        st.booleans(),  # own work
    ),
    min_size=1,
    max_size=9,
)


@settings(deadline=None, max_examples=40)
@given(
    ARRIVALS,
    st.sampled_from([[128, 64, 64], [128, 128], [128], [128, 40]]),
    st.sampled_from([[], SPILLED, [Held(Source.PARK, 8)]]),
    st.booleans(),
)
def test_nobody_waits_for_ever_and_no_slot_is_idle_for_longer_than_the_waits(
    arrivals: list[tuple[int, int, int, int, int, bool]], windows: list[int], held: list[Held], past_head: bool
) -> None:
    rules = Routing(past_head=past_head, side_min_room=16)
    longest = max(rules.slot0_wait, rules.home_wait, rules.own_work_wait)
    desk, at, left = Desk(windows, held, rules), 0, list[tuple[int, Generate, int]]()
    for index, (after, prompt, max_tokens, chat, runs, own) in enumerate(arrivals):
        at += after
        tokens = (chat,) * prompt
        left.append((at, ask(str(index), tokens, max_tokens, head_end=2, own_work=own), runs))
    ends: dict[str, float] = {}
    lengths = {request.id: runs for _, request, runs in left}
    seen: set[str] = set()
    for _ in range(500):  # seconds
        while left and left[0][0] <= desk.now:
            desk.submit(left.pop(0)[1])
        for slot in desk.schedule.running:
            assert slot.sequence is not None
            if ends[slot.sequence.request.ask.id] <= desk.now:
                desk.keep(slot.index, len(slot.sequence.prompt) // CHUNK * CHUNK)
                desk.end(slot.index)
        desk.retire()
        for id in desk.boundary():
            ends[id] = desk.now + lengths[id]
            seen.add(id)
        free = [slot.window for slot in desk.schedule.slots if slot.sequence is None]
        for entry in desk.schedule.waiting:
            wanted = entry.request.ask
            facts = Ask(len(wanted.tokens), wanted.max_tokens, 2)
            usable = [window for window in free if fits(facts, window, windows[0], rules.side_min_room)]
            assert not usable or desk.now - entry.request.arrived < longest
        if not left and desk.schedule.is_idle:
            break
        desk.now += 1.0
    assert seen == {str(index) for index in range(len(arrivals))}
