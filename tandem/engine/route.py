"""Which slot a request gets, and why. Pure: facts in, a decision with its sentence and numbers out.

The rules, first that applies; only slots that are free and wide enough are looked at:

1. It continues the conversation a slot holds: that slot, where most is kept.
2. A slot that loses nothing by it (empty, or everything it holds is the beginning of this prompt).
3. The side slot used longest ago; slot 0 last, because only it can hold the longest conversations.

A shared head (system prompt and tools, up to the end of the first user message) is never a continuation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SIDE_MIN_ROOM: Final = 16_384  # rows of output that make a side slot worth taking when max_tokens asks for more


@dataclass(frozen=True, slots=True)
class Ask:
    """What routing needs to know of a request; token counts."""

    prompt: int
    max_tokens: int
    head_end: int


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """What routing needs to know of a free slot."""

    index: int
    window: int
    kept: int  # rows of a conversation that lie here
    shared: int  # of them, rows that hold the first tokens of this prompt
    last_used: float


@dataclass(frozen=True, slots=True)
class Route:
    slot: int
    resume_at: int  # rows that need not be read again; on the chunk grid
    max_tokens: int  # cut to the slot's room
    reason: str


def route(ask: Ask, free: Sequence[SlotFacts], widest: int, chunk: int) -> Route | None:
    """None when no free slot can take it. `widest` is slot 0's window; the prompt must be shorter than that."""
    fitting = [slot for slot in free if fits(ask, slot.window, widest)]
    if not fitting:
        return None
    if continued := [slot for slot in fitting if _continues(ask, slot, chunk)]:
        best = max(continued, key=lambda slot: slot.shared)
        why = f"continues its conversation here, {best.shared:,} of {ask.prompt:,} tokens kept"
    elif unharmed := [slot for slot in fitting if slot.kept == slot.shared]:
        best = max(unharmed, key=lambda slot: (slot.shared, -slot.index))
        why = "new conversation, empty slot"
        if best.shared:
            why = f"begins with all {best.shared:,} tokens kept here"
    else:
        best = min(fitting, key=lambda slot: (slot.index == 0, slot.last_used, slot.index))
        which = "slot used longest ago" if best.index == 0 or len(fitting) == 1 else "side slot used longest ago"
        why = f"new conversation, {which}; {best.kept - best.shared:,} rows kept there are given up"
        if best.shared:
            why += f", a shared head of {best.shared:,} tokens stays"
    room = best.window - ask.prompt
    if ask.max_tokens > room:
        why += f"; max_tokens {ask.max_tokens:,} -> {room:,} (the slot's window of {best.window:,})"
    return Route(best.index, resume_at(ask, best, chunk), min(ask.max_tokens, room), why)


def fits(ask: Ask, window: int, widest: int) -> bool:
    """Whether a slot leaves enough rows of output: what slot 0 would, the whole max_tokens, or `SIDE_MIN_ROOM`."""
    room = window - ask.prompt
    return room >= min(widest - ask.prompt, ask.max_tokens, SIDE_MIN_ROOM)


def resume_at(ask: Ask, slot: SlotFacts, chunk: int) -> int:
    """The last chunk boundary within what is shared; at least one token is always read, for its logits."""
    resumable = min(slot.shared, ask.prompt - 1)
    return resumable - resumable % chunk


def _continues(ask: Ask, slot: SlotFacts, chunk: int) -> bool:
    """Shared past the first user message, and nearly all that the slot holds: within one chunk."""
    return slot.shared > ask.head_end and slot.kept - slot.shared < chunk
