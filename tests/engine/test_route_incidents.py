"""What once went wrong, with its numbers: each goes wrong again under the older rule, and not under the one that holds.

The numbers are those of the reports: a window of 262,144 tokens, side slots of 65,536, chunks of 2,048.
"""

from __future__ import annotations

import pytest
from route_facts import CLIENT, OWN, ruled, slot, taken, waiting

from tandem.engine.facts import Ask, Held, Source, WaitKind

FOR_EVER = 600.0  # seconds, as long as a request may run


def test_a_shared_head_is_no_continuation() -> None:
    """A second tab asked a sum while the first wrote an essay: 6,675 of its tokens were the client's head, and it
    waited 35.8 s beside an idle side slot."""
    second_tab = Ask(prompt=6_720, max_tokens=32_768, head_end=6_700)
    essay = slot(0, 7_096, 6_675, CLIENT)
    older = ruled(past_head=False, slot0_wait=FOR_EVER)
    for seconds in (0.0, 35.8):
        assert waiting(second_tab, essay, slot(1), rules=older, now=seconds).kind is WaitKind.SLOT0
    found = taken(second_tab, essay, slot(1))
    assert (found.slot, found.gave_up) == (1, False)


def test_the_next_turn_of_the_same_chat_still_is_one() -> None:
    """It shares its first message and what follows: it waits for slot 0 while a title is made there."""
    next_turn = Ask(prompt=7_400, max_tokens=32_768, head_end=6_700)
    assert waiting(next_turn, slot(0, 7_096, 7_096, CLIENT, runs_guest=True), slot(1)).kind is WaitKind.SLOT0


def test_a_spilled_conversation_that_matches_at_the_head_only_is_a_new_one() -> None:
    """9,093 tokens matched an older chat's entry on the disk at 8,192, system prompt and tools: it waited 437 s for
    slot 0 to bring that back, while both side slots were free."""
    new_chat = Ask(prompt=9_093, max_tokens=32_768, head_end=8_900)
    slots = slot(0, 20_000, holder=CLIENT), slot(1), slot(2)
    spilled = [Held(Source.DISK, 8_192, slot0_only=True)]
    older = ruled(past_head=False, slot0_wait=FOR_EVER)
    assert waiting(new_chat, *slots, held=spilled, rules=older, now=437.0).kind is WaitKind.SPILL
    assert taken(new_chat, *slots, held=spilled).slot == 1
    anyone = taken(new_chat, *slots, held=[Held(Source.DISK, 8_192)])
    assert (anyone.slot, anyone.resume_at, anyone.source) == (1, 8_192, Source.DISK)


def test_a_turn_waits_for_slot_0_for_seconds_and_not_for_minutes() -> None:
    """Slot 0 ran another chat's call for 496 s; whoever preferred slot 0 waited for all of it."""
    turn = Ask(prompt=30_000, max_tokens=32_768, head_end=8_900)
    slots, spilled = (slot(0, 90_000, holder=CLIENT), slot(1)), [Held(Source.DISK, 28_672, slot0_only=True)]
    older = ruled(slot0_wait=FOR_EVER)
    assert waiting(turn, *slots, held=spilled, rules=older, now=496.0).for_slot == 0
    assert waiting(turn, *slots, held=spilled, now=2.9).until == 3.0
    found = taken(turn, *slots, held=spilled, now=3.0)
    assert (found.slot, found.gave_up) == (1, True)
    assert found.reason.startswith("slot 0 still busy after 3.0 s, its conversation goes on here")


def test_two_chats_do_not_queue_for_slot_0_beside_an_idle_side_slot() -> None:
    """A tool loop of 64,000 tokens ran on slot 0, a new chat on the side slot. Compared with the whole max_tokens the
    chat's next turns were too long for its slot, so both took turns on slot 0, with waits of 31 to 180 s."""
    turn = Ask(prompt=33_000, max_tokens=32_768, head_end=6_700)
    home = slot(1, 30_720, 30_720, lent=30_720)
    older = ruled(side_min_room=32_768)
    for seconds in (31.0, 180.0):
        assert waiting(turn, slot(0, 64_000, holder=CLIENT), home, rules=older, now=seconds).kind is WaitKind.TOO_LONG
    found = taken(turn, slot(0, 64_000, holder=CLIENT), home)
    assert (found.slot, found.resume_at, found.max_tokens) == (1, 30_720, 65_536 - 33_000)
    assert "max_tokens 32,768 -> 32,536 (the slot's window of 65,536)" in found.reason


def test_a_chat_on_a_side_slot_does_not_evict_the_long_one_when_slot_0_falls_idle() -> None:
    """The same evening: the chat's turn found slot 0 idle and was moved there, and 83,160 tokens went to the disk."""
    turn = Ask(prompt=33_000, max_tokens=32_768, head_end=6_700)
    slots = slot(0, 83_160), slot(1, 30_720, 30_720, lent=30_720)
    evicting = taken(turn, *slots, rules=ruled(side_min_room=32_768))
    assert (evicting.slot, evicting.park_first) == (0, True)
    home = taken(turn, *slots)
    assert (home.slot, home.park_first) == (1, False)


def test_a_conversation_that_outgrows_its_side_slot_is_copied_and_not_read_again() -> None:
    """Its next turn read 8,700 tokens behind the client's head again on slot 0, 17.0 s to the first token."""
    turn = Ask(prompt=50_000, max_tokens=32_768, head_end=7_400)
    slots = slot(0, 80_000), slot(1, 47_104, 47_104, lent=47_104)
    head = [Held(Source.DISK, 6_144)]
    read = taken(turn, *slots, held=head, rules=ruled(carry=False))
    assert (read.slot, read.resume_at, read.source) == (0, 6_144, Source.DISK)
    carried = taken(turn, *slots, held=head)
    assert (carried.slot, carried.resume_at, carried.source) == (0, 47_104, Source.SIDE)
    assert (carried.carry_from, carried.moves, carried.park_first) == (1, True, True)
    assert "47,104 of 50,000 tokens copied from slot 1" in carried.reason


def test_own_work_sends_no_client_to_a_side_slot() -> None:
    """The shadow reader held slot 0, and the agent's turn read its whole conversation again on the side slot: its
    cached share fell from 0.97 to as low as 0.4."""
    turn = Ask(prompt=40_000, max_tokens=8_192, head_end=7_400)
    slots = slot(0, 38_912, 38_912, OWN, runs_guest=True), slot(1)
    older = ruled(own_work_wait=0.0, slot0_wait=0.0)
    assert (taken(turn, *slots, rules=older).slot, taken(turn, *slots, rules=older).resume_at) == (1, 0)
    assert waiting(turn, *slots).kind is WaitKind.OWN_WORK
    there = taken(turn, slot(0, 38_912, 38_912), slot(1), now=1.0)  # it gave way
    assert there.slot == 0 and there.resume_at / turn.prompt > 0.97
    assert taken(turn, *slots, now=15.0).slot == 1  # and not even for this does a client wait without a bound


def test_an_agents_turn_is_told_by_what_its_client_sent() -> None:
    """Behind the conductor's notes the rows part from the next prompt within its first thousands, so no agent's turn
    ever counted as a continuation."""
    turn = Ask(prompt=40_000, max_tokens=8_192, head_end=7_500, client_head_end=7_400)
    noted = slot(0, 38_912, 9_000, OWN, served=38_500, continued=38_500)
    older = ruled(continues="resident", own_work_wait=0.0)
    assert taken(turn, noted, slot(1), rules=older).slot == 1
    assert waiting(turn, noted, slot(1), rules=ruled(own_work_wait=0.0)).kind is WaitKind.OWN_WORK


@pytest.mark.parametrize("prompt", [150, 450, 3_000])
def test_a_short_request_leaves_the_long_conversation_alone(prompt: int) -> None:
    """The questions before a new message and titles wrote over the rows that the next turn resumes on."""
    title = Ask(prompt, max_tokens=1_000, head_end=prompt, task=True)
    slots = slot(0, 41_474), slot(1)
    assert taken(title, *slots, rules=ruled(guests=False, new_first=False)).slot == 0
    assert taken(title, *slots, rules=ruled(guests=False, new_first=False)).park_first
    found = taken(title, *slots)
    assert (found.slot, found.is_guest) == (1, False)


def test_a_title_that_comes_before_its_turn_leaves_slot_0_to_it() -> None:
    """opencode's came half a second ahead: it took slot 0, and the turn, too long for a side slot, waited behind it."""
    title, turn = Ask(587, 32_000, 580, task=True), Ask(64_000, 32_000, 6_000)
    older = ruled(guests=False)
    assert taken(title, slot(0), slot(1), rules=older).slot == 0
    assert waiting(turn, slot(0, holder=CLIENT), slot(1), rules=older).kind is WaitKind.TOO_LONG
    found = taken(title, slot(0), slot(1))
    assert (found.slot, found.reason) == (1, "a task, leaves slot 0 to conversations; empty slot")
    assert taken(turn, slot(0), slot(1, holder=CLIENT)).slot == 0


def test_a_title_gives_up_no_side_slot_s_conversation_for_an_empty_slot_0() -> None:
    title = Ask(587, 32_000, 580, task=True)
    assert taken(title, slot(0), slot(1, 30_000)).slot == 0
    assert taken(title, slot(0, 1_000), slot(1)).slot == 1  # a young conversation on slot 0 stays, too


def test_a_new_conversation_does_not_evict_one_that_no_side_slot_could_hold() -> None:
    new_chat = Ask(prompt=9_000, max_tokens=32_768, head_end=8_900)
    slots = slot(0, 64_000), slot(1)
    evicting = taken(new_chat, *slots, rules=ruled(new_first=False))
    assert (evicting.slot, evicting.park_first) == (0, True)
    assert taken(new_chat, *slots).slot == 1
