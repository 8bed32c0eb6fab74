"""Which slot, and why: each rule, each border, each sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine.route import SIDE_MIN_ROOM, Ask, Route, SlotFacts, fits, resume_at, route

CHUNK = 256
WIDE, SIDE = 262_144, 65_536


def slot(index: int, kept: int = 0, shared: int = 0, last_used: float = 0.0, window: int | None = None) -> SlotFacts:
    return SlotFacts(index, window or (WIDE if index == 0 else SIDE), kept, shared, last_used)


def routed(ask: Ask, *free: SlotFacts) -> Route | None:
    return route(ask, free, WIDE, CHUNK)


CHAT = Ask(prompt=3_000, max_tokens=1_000, head_end=700)

# name, request, free slots, (slot, resumed at, max_tokens), reason
TABLE = [
    ("an empty engine", CHAT, [slot(0), slot(1)], (0, 0, 1_000), "new conversation, empty slot"),
    (
        "its conversation lies on a side slot",
        CHAT,
        [slot(0), slot(1, kept=2_048, shared=2_048)],
        (1, 2_048, 1_000),
        "continues its conversation here, 2,048 of 3,000 tokens kept",
    ),
    (
        "its conversation but for the last chunk",
        CHAT,
        [slot(0), slot(1, kept=2_048, shared=1_800)],
        (1, 1_792, 1_000),
        "continues its conversation here, 1,800 of 3,000 tokens kept",
    ),
    (
        "a chunk and more would be lost: a branch of it, and there is an empty slot",
        CHAT,
        [slot(0), slot(1, kept=2_048, shared=1_700)],
        (0, 0, 1_000),
        "new conversation, empty slot",
    ),
    (
        "two slots hold it: where more is kept",
        CHAT,
        [slot(1, kept=1_024, shared=1_024), slot(2, kept=2_816, shared=2_816)],
        (2, 2_816, 1_000),
        "continues its conversation here, 2,816 of 3,000 tokens kept",
    ),
    (
        "a shared head is no continuation",
        CHAT,
        [slot(0), slot(1, kept=2_048, shared=700)],
        (0, 0, 1_000),
        "new conversation, empty slot",
    ),
    (
        "only its head lies there: nothing is lost by resuming on it",
        CHAT,
        [slot(0), slot(1, kept=512, shared=512)],
        (1, 512, 1_000),
        "begins with all 512 tokens kept here",
    ),
    (
        "the same prompt again: at least one token is read",
        Ask(prompt=2_048, max_tokens=9, head_end=700),
        [slot(1, kept=2_048, shared=2_048)],
        (1, 1_792, 9),
        "continues its conversation here, 2,048 of 2,048 tokens kept",
    ),
    (
        "slot 0 holds another conversation: a side slot first, though used later",
        CHAT,
        [slot(0, kept=9_984, last_used=1.0), slot(1, kept=512, last_used=5.0)],
        (1, 0, 1_000),
        "new conversation, side slot used longest ago; 512 rows kept there are given up",
    ),
    (
        "of the side slots the one used longest ago",
        CHAT,
        [slot(1, kept=512, last_used=7.0), slot(2, kept=1_024, last_used=5.0), slot(3, kept=512, last_used=6.0)],
        (2, 0, 1_000),
        "new conversation, side slot used longest ago; 1,024 rows kept there are given up",
    ),
    (
        "slot 0 alone is free",
        CHAT,
        [slot(0, kept=9_984, shared=700)],
        (0, 512, 1_000),
        "new conversation, slot used longest ago; 9,284 rows kept there are given up, "
        "a shared head of 700 tokens stays",
    ),
    (
        "max_tokens is cut to the room, and the reason says so",
        Ask(prompt=40_000, max_tokens=65_536, head_end=700),
        [slot(1)],
        (1, 0, 25_536),
        "new conversation, empty slot; max_tokens 65,536 -> 25,536 (the slot's window of 65,536)",
    ),
]


@pytest.mark.parametrize(("ask", "free", "expected", "reason"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE])
def test_the_table(ask: Ask, free: list[SlotFacts], expected: tuple[int, int, int], reason: str) -> None:
    found = routed(ask, *free)
    assert found is not None
    assert (found.slot, found.resume_at, found.max_tokens) == expected
    assert found.reason == reason


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "fitting"),
    [
        (SIDE - SIDE_MIN_ROOM, 65_536, True),  # just the least room
        (SIDE - SIDE_MIN_ROOM + 1, 65_536, False),
        (SIDE - 100, 100, True),  # the whole of a small max_tokens
        (SIDE - 100, 101, False),
        (SIDE, 1, False),
        (103_000, 65_536, False),
    ],
)
def test_a_side_slot_must_leave_room_worth_taking(prompt: int, max_tokens: int, fitting: bool) -> None:
    ask = Ask(prompt, max_tokens, head_end=700)
    assert fits(ask, SIDE, WIDE) is fitting
    assert (routed(ask, slot(1), slot(2)) is not None) is fitting
    assert routed(ask, slot(0)) is not None


def test_a_side_window_as_wide_as_slot_0_takes_what_slot_0_takes() -> None:
    ask = Ask(prompt=8_000, max_tokens=100_000, head_end=10)
    assert fits(ask, 8_192, widest=8_192)
    assert not fits(ask, 8_191, widest=8_192)


SLOTS = st.builds(
    lambda index, chunks, part, used: SlotFacts(index, WIDE if index == 0 else SIDE, chunks * CHUNK, part, used),
    st.integers(0, 7),
    st.integers(0, 20),
    st.integers(0, 20 * CHUNK),
    st.floats(0, 100),
)


@given(
    prompt=st.integers(1, WIDE - 1),
    max_tokens=st.integers(1, WIDE),
    head=st.integers(0, 2_000),
    free=st.lists(SLOTS, max_size=5, unique_by=lambda slot: slot.index),
)
def test_a_route_is_always_possible(prompt: int, max_tokens: int, head: int, free: list[SlotFacts]) -> None:
    facts = [
        SlotFacts(slot.index, slot.window, slot.kept, min(slot.shared, slot.kept, prompt), slot.last_used)
        for slot in free
    ]
    ask = Ask(prompt, max_tokens, head)
    found = routed(ask, *facts)
    if found is None:
        assert not any(fits(ask, slot.window, WIDE) for slot in facts)
        return
    (chosen,) = [slot for slot in facts if slot.index == found.slot]
    assert 1 <= found.max_tokens <= max_tokens and prompt + found.max_tokens <= chosen.window
    assert found.resume_at % CHUNK == 0 and found.resume_at <= chosen.shared and found.resume_at < prompt
    assert found.resume_at == resume_at(ask, chosen, CHUNK)
