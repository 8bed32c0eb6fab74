"""Which slot, and why: each rule, each border, each sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from route_facts import (
    CHUNK,
    CLIENT,
    GRID,
    LAPTOP,
    OWN,
    RULES,
    SIDE,
    WIDE,
    level,
    routed,
    ruled,
    slot,
    taken,
    waiting,
)

from tandem.contract.plan import Routing
from tandem.engine.case import DETOUR, Case, fits
from tandem.engine.facts import Ask, Grid, Held, Holder, SlotFacts, Source, Take, Wait, WaitKind
from tandem.engine.route import route

CHAT = Ask(prompt=20_000, max_tokens=1_000, head_end=7_000)
SHORT = Ask(prompt=400, max_tokens=100, head_end=400)
ONE_ROW = Grid(CHUNK, 1)

# name, request, all slots, (slot, resumed at), reason
TAKES = [
    ("an empty appliance", CHAT, [slot(0), slot(1)], (0, 0), "new conversation; empty slot"),
    (
        "too long for every side window",
        Ask(prompt=60_000, max_tokens=32_768, head_end=7_000),
        [slot(0, 90_112), slot(1)],
        (0, 0),
        "new conversation; 90,112 rows kept there make way",
    ),
    (
        "home: its conversation lies on a side slot",
        CHAT,
        [slot(0), slot(1), slot(2, 18_432, 18_432)],
        (2, 18_432),
        "continues its conversation here (home); 18,432 of 20,000 tokens kept",
    ),
    (
        "its conversation lies on slot 0",
        CHAT,
        [slot(0, 18_432, 17_000), slot(1)],
        (0, 16_384),
        "continues its conversation here; 16,384 of 20,000 tokens kept",
    ),
    (
        "two slots hold it: where more is kept",
        CHAT,
        [slot(0, 18_432, 18_432), slot(1, 8_192, 8_192)],
        (0, 18_432),
        "continues its conversation here; 18,432 of 20,000 tokens kept",
    ),
    (
        "two slots hold as much: where the client says it is",
        CHAT,
        [slot(0), slot(1, 18_432, 18_432, is_same=True), slot(2, 18_432, 18_432)],
        (1, 18_432),
        "continues its conversation here (home); 18,432 of 20,000 tokens kept",
    ),
    (
        "a guest of slot 0's conversation takes an idle side slot though slot 0 is free",
        SHORT,
        [slot(0, 80_000), slot(1)],
        (1, 0),
        "guest of slot 0's conversation of 80,000 tokens; empty slot",
    ),
    (
        "no side slot idle: slot 0, and what lies there is put aside",
        SHORT,
        [slot(0, 80_000, stash_room=8_192), slot(1, holder=CLIENT)],
        (0, 0),
        "guest of slot 0's conversation of 80,000 tokens; what it overwrites is put aside",
    ),
    (
        "a side slot's own conversation is not given up while slot 0's can be put aside",
        SHORT,
        [slot(0, 80_000, stash_room=8_192), slot(1, 30_000)],
        (0, 0),
        "guest of slot 0's conversation of 80,000 tokens; what it overwrites is put aside",
    ),
    (
        "a new conversation beside one that no side slot could hold",
        CHAT,
        [slot(0, 60_000), slot(1)],
        (1, 0),
        "new conversation, beside one of 60,000 tokens on slot 0; empty slot",
    ),
    (
        "a new conversation where slot 0's fits a side slot, too",
        CHAT,
        [slot(0, 24_576), slot(1)],
        (0, 0),
        "new conversation; 24,576 rows kept there make way",
    ),
    (
        "slot 0 is busy: a side slot",
        CHAT,
        [slot(0, holder=CLIENT), slot(1)],
        (1, 0),
        "new conversation, slot 0 is busy; empty slot",
    ),
    (
        "max_tokens is cut to the room, and the reason says so",
        Ask(prompt=40_000, max_tokens=65_536, head_end=7_000),
        [slot(0, holder=CLIENT), slot(1)],
        (1, 0),
        "new conversation, slot 0 is busy; empty slot; max_tokens 65,536 -> 25,536 (the slot's window of 65,536)",
    ),
    (
        "side slots with conversations: the one used longest ago",
        CHAT,
        [slot(0, holder=CLIENT), slot(1, 30_000, last_used=7.0), slot(2, 40_000, last_used=5.0)],
        (2, 0),
        "new conversation, slot 0 is busy; 40,000 rows kept there make way",
    ),
    (
        "one that gives up less than it saves goes before the one used longest ago",
        CHAT,
        [slot(0, holder=CLIENT), slot(1, 9_000, 6_700, last_used=7.0), slot(2, 40_000, last_used=5.0)],
        (1, 6_144),
        "new conversation, slot 0 is busy; 6,144 of 20,000 tokens, a shared head, kept; 2,300 rows kept there make way",
    ),
    (
        "nobody comes back to an errand's rows",
        CHAT,
        [slot(0, holder=CLIENT), slot(1, 30_000, last_used=1.0), slot(2, 4_096, is_errand=True, last_used=9.0)],
        (2, 0),
        "new conversation, slot 0 is busy",
    ),
    # where all windows are equal
    (
        "level: an empty slot before any conversation",
        Ask(2_500, 500, 100),
        [level(0, 4_096), level(1, 2_048), level(2)],
        (2, 0),
        "new conversation; empty slot",
    ),
    (
        "level: all hold conversations: the one used longest ago, slot 0 too",
        Ask(2_500, 500, 100),
        [level(0, 4_096, last_used=1.0), level(1, 4_096, last_used=2.0)],
        (0, 0),
        "new conversation; 4,096 rows kept there make way",
    ),
    (
        "level: its conversation, wherever it lies",
        Ask(5_000, 500, 100),
        [level(0), level(1, 4_096, 4_096)],
        (1, 4_096),
        "continues its conversation here; 4,096 of 5,000 tokens kept",
    ),
    (
        "level: own work on slot 0 is no reason to wait while another slot is free",
        Ask(2_500, 500, 100),
        [level(0, holder=OWN), level(1)],
        (1, 0),
        "new conversation; empty slot",
    ),
    (
        "level: a short request beside a long conversation takes the empty slot",
        SHORT,
        [level(0, 6_144, stash_room=8_192), level(1)],
        (1, 0),
        "new conversation; empty slot",
    ),
    (
        "level: or puts aside what it overwrites",
        SHORT,
        [level(0, 6_144, stash_room=8_192, last_used=9.0), level(1, 4_096, last_used=1.0)],
        (0, 0),
        "new conversation; what it overwrites is put aside",
    ),
]


@pytest.mark.parametrize(
    ("ask", "slots", "expected", "reason"), [row[1:] for row in TAKES], ids=[row[0] for row in TAKES]
)
def test_who_gets_which_slot(ask: Ask, slots: list[SlotFacts], expected: tuple[int, int], reason: str) -> None:
    found = taken(ask, *slots)
    assert (found.slot, found.resume_at, found.reason) == (*expected, reason)


# name, request, all slots, caches, (kind, for slot, until), sentence
WAITS = [
    (
        "slot 0 holds its conversation and runs a guest of it",
        CHAT,
        [slot(0, 18_432, 18_432, CLIENT, runs_guest=True), slot(1)],
        [],
        (WaitKind.SLOT0, 0, 3.0),
        "slot 0 holds its conversation; a free side slot takes it after 3 s",
    ),
    (
        "home runs a guest",
        CHAT,
        [slot(0), slot(1, 18_432, 18_432, CLIENT, runs_guest=True)],
        [],
        (WaitKind.HOME, 1, 10.0),
        "slot 1 holds its conversation; another slot takes it after 10 s",
    ),
    (
        "its conversation is on the disk, and slot 0 alone brings it back",
        CHAT,
        [slot(0, 90_000, holder=CLIENT), slot(1)],
        [Held(Source.DISK, 18_432, slot0_only=True)],
        (WaitKind.SPILL, 0, 3.0),
        "slot 0 reads its conversation back from the disk; a free side slot takes it after 3 s",
    ),
    (
        "slot 0 holds its conversation and works for the appliance",
        CHAT,
        [slot(0, 18_432, 18_432, OWN), slot(1)],
        [],
        (WaitKind.OWN_WORK, 0, 15.0),
        "slot 0 holds its conversation; a free side slot takes it after 15 s",
    ),
    (
        "own work alone holds slot 0",
        CHAT,
        [slot(0, holder=OWN), slot(1)],
        [],
        (WaitKind.OWN_WORK, 0, 15.0),
        "slot 0 does work of the appliance's own, which gives way",
    ),
    (
        "own work holds the last slot that was left",
        CHAT,
        [slot(0, holder=CLIENT), slot(1, holder=OWN)],
        [],
        (WaitKind.OWN_WORK, 1, None),
        "slot 1 does work of the appliance's own, which gives way",
    ),
    (
        "too long for a side slot",
        Ask(prompt=60_000, max_tokens=32_768, head_end=7_000),
        [slot(0, holder=CLIENT), slot(1)],
        [],
        (WaitKind.TOO_LONG, 0, None),
        "too long for a side slot (65,536 tokens), waits for slot 0",
    ),
    (
        "too long for a side slot, and continues slot 0's: nothing else is promised after 3 s",
        Ask(prompt=60_000, max_tokens=32_768, head_end=7_000),
        [slot(0, 57_344, 57_344, CLIENT, runs_guest=True), slot(1)],
        [],
        (WaitKind.TOO_LONG, 0, None),
        "too long for a side slot (65,536 tokens), waits for slot 0",
    ),
    (
        "all slots are busy",
        CHAT,
        [slot(0, holder=CLIENT), slot(1, holder=CLIENT), slot(2, holder=CLIENT)],
        [],
        (WaitKind.BUSY, None, None),
        "all 3 slots are busy",
    ),
    ("the only slot is busy", CHAT, [slot(0, holder=CLIENT)], [], (WaitKind.BUSY, None, None), "the slot is busy"),
    (
        "own work waits for own work like anybody",
        replace(CHAT, own_work=True),
        [slot(0, holder=OWN), slot(1, holder=OWN)],
        [],
        (WaitKind.BUSY, None, None),
        "all 2 slots are busy",
    ),
]


@pytest.mark.parametrize(
    ("ask", "slots", "held", "expected", "sentence"), [row[1:] for row in WAITS], ids=[row[0] for row in WAITS]
)
def test_who_waits_and_what_for(
    ask: Ask,
    slots: list[SlotFacts],
    held: list[Held],
    expected: tuple[WaitKind, int | None, float | None],
    sentence: str,
) -> None:
    found = waiting(ask, *slots, held=held)
    assert (found.kind, found.for_slot, found.until) == expected
    assert found.sentence == sentence


# --- borders ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fitting"),
    [
        (SIDE - 16_384, 65_536, True),  # just the least room
        (SIDE - 16_384 + 1, 65_536, False),
        (SIDE - 100, 100, True),  # the whole of a small max_tokens
        (SIDE - 100, 101, False),
        (SIDE, 1, False),
        (103_000, 65_536, False),
    ],
)
def test_a_side_slot_must_leave_room_worth_taking(prompt: int, max_tokens: int, fitting: bool) -> None:
    ask = Ask(prompt, max_tokens, head_end=700)
    assert fits(ask, SIDE, WIDE, RULES.side_min_room) is fitting
    assert isinstance(routed(ask, slot(0, holder=CLIENT), slot(1)), Take) is fitting
    assert taken(ask, slot(0), slot(1)).slot == 0


def test_a_side_window_as_wide_as_slot_0_takes_what_slot_0_takes() -> None:
    ask = Ask(prompt=8_000, max_tokens=100_000, head_end=10)
    assert fits(ask, LAPTOP, LAPTOP, RULES.side_min_room)
    assert not fits(ask, LAPTOP - 1, LAPTOP, RULES.side_min_room)
    assert taken(ask, level(0, holder=CLIENT), level(1)).max_tokens == 192


@pytest.mark.parametrize(
    ("served", "continued", "is_home"),
    [
        (18_432, 18_432, True),
        (18_432, 18_432 - CHUNK + 1, True),  # all but a little less than a chunk
        (18_432, 18_432 - CHUNK, False),
        (9_000, 7_000, False),  # the head alone
        (9_000, 7_001, True),
    ],
)
def test_a_continuation_begins_with_nearly_all_of_what_was_served(served: int, continued: int, is_home: bool) -> None:
    found = taken(CHAT, slot(0), slot(1, 16_384, served=served, continued=continued))
    assert (found.slot == 1) is is_home


@pytest.mark.parametrize(
    ("kept", "shared", "is_home"),
    [
        (18_432, 18_432, True),
        (18_432, 16_385, True),
        (18_432, 16_384, False),
        (7_000, 7_000, False),
        (7_001, 7_001, True),
    ],
)
@pytest.mark.parametrize("continues", ["client", "resident"])
def test_rows_alone_tell_a_continuation_too(kept: int, shared: int, is_home: bool, continues: str) -> None:
    found = taken(CHAT, slot(0), slot(1, kept, shared, served=0, continued=0), rules=ruled(continues=continues))
    assert (found.slot == 1) is is_home


def test_nothing_continues_an_errand() -> None:
    assert taken(CHAT, slot(0), slot(1, 18_432, 18_432, is_errand=True)).slot == 0


def test_a_guest_takes_a_side_slot_where_either_can_be_put_aside() -> None:
    found = taken(SHORT, slot(0, 20_000, stash_room=8_192), slot(1, 30_000, stash_room=8_192))
    assert (found.slot, found.is_guest) == (1, True)


def test_a_prompt_shorter_than_a_chunk_continues_nothing() -> None:
    ask = Ask(prompt=CHUNK - 1, max_tokens=100, head_end=10)
    assert taken(ask, slot(0), slot(1, 1_900, 1_900), grid=ONE_ROW).slot == 0
    assert taken(replace(ask, prompt=CHUNK), slot(0), slot(1, 1_900, 1_900), grid=ONE_ROW).slot == 1


@pytest.mark.parametrize(
    ("change", "facts", "is_guest"),
    [
        ({}, {}, True),
        ({"prompt": 8_192}, {}, True),
        ({"prompt": 8_193}, {}, False),  # longer than `guest_max`
        ({"prompt": 4_999}, {"kept": 20_000}, True),
        ({"prompt": 5_000}, {"kept": 20_000}, False),  # a quarter
        ({"prompt": 5_000, "task": True}, {"kept": 20_000}, True),  # a title is one beside any conversation
        ({"prompt": 5_000, "own_work": True}, {"kept": 20_000}, True),
        ({"prompt": 3_000}, {"shared": CHUNK - 1}, True),
        ({"prompt": 3_000}, {"shared": CHUNK}, False),
        ({"prompt": 900}, {"kept": 2 * CHUNK}, True),
        ({"prompt": 900}, {"kept": 2 * CHUNK - 1}, False),
        ({}, {"is_errand": True}, False),
    ],
)
def test_who_is_a_guest(change: dict[str, int], facts: dict[str, int], is_guest: bool) -> None:
    lying = slot(0, 80_000, **facts) if "kept" not in facts else slot(0, **facts)
    ask = replace(Ask(prompt=1_000, max_tokens=100, head_end=900), **change)
    case = Case(ask, (lying, slot(1)), (), RULES, GRID, 0.0)
    assert case.is_guest_of(lying) is is_guest
    assert not Case(ask, (lying, slot(1)), (), ruled(guests=False), GRID, 0.0).is_guest_of(lying)


def test_a_guest_whose_rows_find_no_room_aside_is_none_that_can_be_put_back() -> None:
    lying = slot(0, 80_000, stash_room=499)  # 400 tokens and 100 to write
    found = taken(SHORT, lying, slot(1, holder=CLIENT))
    assert (found.is_guest, found.park_first) == (False, True)
    assert taken(SHORT, replace(lying, stash_room=500), slot(1, holder=CLIENT)).is_guest


# --- where rows come from ---------------------------------------------------------------------------------------

HELD = [Held(Source.STORE, 6_144), Held(Source.DISK, 12_288), Held(Source.PARK, 16_384, slot0_only=True)]


def test_the_source_that_saves_most_is_taken() -> None:
    found = taken(CHAT, slot(0), slot(1), held=HELD)
    assert (found.slot, found.resume_at, found.source) == (0, 16_384, Source.PARK)
    assert found.reason == "its conversation is read back from the park; 16,384 of 20,000 tokens from the park"
    side = taken(CHAT, slot(0, 90_000, holder=CLIENT), slot(1), held=HELD, now=3.0)
    assert (side.slot, side.resume_at, side.source, side.gave_up) == (1, 12_288, Source.DISK, True)
    assert side.reason == (
        "slot 0 still busy after 3.0 s, its conversation goes on here; 12,288 of 20,000 tokens from the disk"
    )


def test_of_two_that_save_as_much_the_cheaper_is_taken() -> None:
    held = [Held(Source.DISK, 6_144), Held(Source.STORE, 6_144)]
    assert taken(CHAT, slot(0), slot(1), held=held).source is Source.STORE
    assert taken(CHAT, slot(0), slot(1, lent=6_144), held=held).source is Source.SIDE


def test_a_detour_must_save_more_than_lies_in_the_slot() -> None:
    here = slot(0, 18_432, 18_432)
    for more, source in ((DETOUR - 1, Source.RESIDENT), (DETOUR, Source.DISK)):
        assert taken(CHAT, here, slot(1), held=[Held(Source.DISK, 18_432 + more)], grid=ONE_ROW).source is source


def test_a_conversation_any_slot_can_bring_back_waits_for_none() -> None:
    found = taken(CHAT, slot(0, holder=CLIENT), slot(1), held=[Held(Source.DISK, 18_432)])
    assert (found.slot, found.resume_at) == (1, 18_432)
    assert found.reason == "its conversation comes back, slot 0 is busy; 18,432 of 20,000 tokens from the disk"


@pytest.mark.parametrize(("unit", "resumed"), [(1, 19_999), (CHUNK, 18_432)])
def test_the_same_prompt_again_reads_at_least_a_token(unit: int, resumed: int) -> None:
    assert taken(CHAT, slot(0, 20_000, 20_000), slot(1), grid=Grid(CHUNK, unit)).resume_at == resumed
    assert taken(replace(CHAT, prompt=1), slot(0, 20_000, 1), slot(1), grid=Grid(CHUNK, unit)).resume_at == 0


def test_a_shared_head_is_copied_and_its_conversation_stays() -> None:
    found = taken(CHAT, slot(0), slot(1, 30_000, 6_144, lent=6_144))
    assert (found.slot, found.carry_from, found.moves) == (0, 1, False)
    assert found.reason == "new conversation; 6,144 of 20,000 tokens, a shared head, copied from slot 1"


def test_what_makes_way_is_worth_keeping_elsewhere() -> None:
    found = taken(CHAT, slot(0, 24_576), slot(1))
    assert (found.park_first, found.is_guest, found.carry_from) == (True, False, None)
    assert not taken(CHAT, slot(0, 24_576, is_errand=True), slot(1)).park_first
    assert not taken(CHAT, slot(0, 18_432, 18_432), slot(1)).park_first
    assert not taken(CHAT, slot(0), slot(1)).park_first


# --- properties -------------------------------------------------------------------------------------------------


@st.composite
def slots_of(draw: st.DrawFn, prompt: int) -> tuple[SlotFacts, ...]:
    window = draw(st.sampled_from([SIDE, LAPTOP, WIDE]))
    slots = []
    for index in range(draw(st.integers(1, 4))):
        mine = WIDE if index == 0 else window
        kept = draw(st.integers(0, mine - 1))
        shared = draw(st.integers(0, min(kept, prompt)))
        served = draw(st.integers(0, mine - 1))
        holder = draw(st.sampled_from(Holder))
        slots.append(
            SlotFacts(
                index,
                mine,
                kept,
                shared,
                served,
                draw(st.integers(0, min(served, prompt))),
                draw(st.integers(0, shared)),
                draw(st.integers(0, 20_000)),
                draw(st.booleans()),
                draw(st.booleans()),
                draw(st.floats(0, 100)),
                holder,
                holder is not Holder.NOBODY and draw(st.booleans()),
            )
        )
    return tuple(slots)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Ask, tuple[SlotFacts, ...], list[Held], Routing, Grid]:
    prompt = draw(st.integers(1, WIDE - 1))
    ask = Ask(
        prompt,
        draw(st.integers(1, WIDE)),
        draw(st.integers(0, prompt)),
        draw(st.none() | st.integers(0, prompt)),
        0.0,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
    )
    sources = st.sampled_from([Source.STORE, Source.PARK, Source.DISK])
    held = draw(st.lists(st.builds(Held, sources, st.integers(0, prompt), st.booleans()), max_size=3))
    rules = Routing(
        draw(st.sampled_from(["client", "resident"])),
        *(draw(st.booleans()) for _ in range(4)),
        *(draw(st.floats(0, 60)) for _ in range(3)),
        draw(st.integers(1, 40_000)),
        draw(st.integers(0, 20_000)),
    )
    return ask, draw(slots_of(prompt)), held, rules, Grid(CHUNK, draw(st.sampled_from([1, CHUNK])))


@given(cases(), st.floats(0, 120))
def test_an_answer_is_possible_and_the_same_every_time(
    case: tuple[Ask, tuple[SlotFacts, ...], list[Held], Routing, Grid], now: float
) -> None:
    ask, slots, held, rules, grid = case
    found = route(ask, slots, held, rules, grid, now)
    assert route(ask, slots, held, rules, grid, now) == found
    if isinstance(found, Wait):
        assert found.until is None or found.until > now
        assert found.for_slot is None or not slots[found.for_slot].is_free
        return
    chosen = slots[found.slot]
    assert chosen.is_free
    assert found.max_tokens == min(ask.max_tokens, chosen.window - ask.prompt) and found.max_tokens >= 1
    assert found.resume_at % grid.unit == 0 and found.resume_at < ask.prompt
    offers = {Source.RESIDENT: [chosen.shared], Source.SIDE: [each.lent for each in slots if each is not chosen]}
    for each in held:
        if chosen.index == 0 or not each.slot0_only:
            offers.setdefault(each.source, []).append(each.rows)
    if found.source is Source.NONE:
        assert found.resume_at == 0
    else:
        assert found.resume_at <= max(offers[found.source])
    assert (found.carry_from is not None) == (found.source is Source.SIDE)
    assert not (found.is_guest and found.park_first)


@given(cases())
def test_no_free_slot_that_fits_is_idle_for_longer_than_the_waits(
    case: tuple[Ask, tuple[SlotFacts, ...], list[Held], Routing, Grid],
) -> None:
    ask, slots, held, rules, grid = case
    longest = max(rules.slot0_wait, rules.home_wait, rules.own_work_wait)
    found = route(ask, slots, held, rules, grid, longest)
    fitting = Case(ask, slots, (), rules, grid, longest).fitting
    assert fitting[0].index == 0  # so there is always one to wait for
    assert isinstance(found, Take) == any(each.is_free for each in fitting)


@given(st.lists(st.booleans(), min_size=2, max_size=4), st.integers(1, 20_000), st.booleans(), st.data())
def test_level_slots_never_give_up_a_conversation_while_one_is_empty(
    is_empty: list[bool], prompt: int, task: bool, data: st.DataObject
) -> None:
    slots = [
        slot(index, 0 if empty else data.draw(st.integers(CHUNK, 20_000)), last_used=index, window=32_768)
        for index, empty in enumerate(is_empty)
    ]
    found = taken(Ask(prompt, 500, 100, task=task), *slots)
    if any(is_empty):
        assert slots[found.slot].kept == 0
    assert found.park_first == (not any(is_empty))
