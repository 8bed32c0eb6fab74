"""One request in the queue: what it sees of the slots, what it waits for, and what its client hears of that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tandem.contract.messages import Progress, RequestState
from tandem.engine.admit import Shortage
from tandem.engine.facts import Ask, Holder, SlotFacts, Take, Wait, WaitKind
from tandem.engine.slot import Request, Slot, num_agreeing
from tandem.units import format_bytes

Key = tuple[int, str]  # peer and the peer's own id
Tokens = tuple[int, ...]

MEMORY_REMINDER: Final = 15.0  # seconds after which a request that waits for memory hears again why


@dataclass(slots=True)
class Waiting:
    request: Request
    told: Progress | None = None  # last
    told_at: float = 0.0
    wait: Wait | None = None  # what the last boundary answered
    has_left: bool = False  # the queue
    waited_for: set[WaitKind] = field(default_factory=set)
    compared: dict[tuple[int, str], tuple[Tokens, int]] = field(default_factory=dict)

    # --- what routing is asked ---

    @property
    def ask(self) -> Ask:
        ask = self.request.ask
        return Ask(
            prompt=len(ask.tokens),
            max_tokens=ask.max_tokens,
            head_end=ask.marks.head_end,
            client_head_end=ask.client_head_end,
            arrived=self.request.arrived,
            own_work=ask.own_work,
            task=ask.task,
            anew=ask.anew,
        )

    def facts(self, slot: Slot, is_free: bool, stash_room: int, given: tuple[Request, Take] | None) -> SlotFacts:
        """What the slot is to this request. `stash_room` is in rows; `given` is who takes the slot at this boundary."""
        ask, kept = self.request.ask, slot.returns_to
        can_rewind = slot.state.can_rewind
        shared = continued = 0
        if kept.rows and kept.scope == ask.scope and not ask.anew:
            shared = min(kept.rows, self._num_agreeing((slot.index, "rows"), ask.tokens, kept.tokens))
            if not can_rewind:
                shared = slot.resumable(min(shared, len(ask.tokens) - 1))
            client = ask.tokens if ask.client_tokens is None else ask.client_tokens
            continued = self._num_agreeing((slot.index, "client"), client, kept.client_tokens)
        holder = Holder.NOBODY
        if not is_free:
            request = given[0] if given else slot.sequence and slot.sequence.request
            holder = Holder.OWN_WORK if request and request.ask.own_work else Holder.CLIENT
        return SlotFacts(
            index=slot.index,
            window=slot.window,
            kept=kept.rows if can_rewind else slot.resumable(kept.rows),
            shared=shared,
            served=len(kept.client_tokens),
            continued=continued,
            lent=shared if given is None and slot.aside is None else 0,
            stash_room=stash_room,
            is_errand=kept.is_errand,
            is_same=bool(ask.conversation) and ask.conversation == kept.conversation,
            last_used=slot.last_used,
            holder=holder,
            runs_guest=given[1].is_guest if given else slot.aside is not None,
        )

    def _num_agreeing(self, place: tuple[int, str], mine: Tokens, kept: Tokens) -> int:
        """How many first tokens agree, compared once for as long as `kept` lies at `place`: prompts are long."""
        known = self.compared.get(place)
        if known is None or known[0] is not kept:
            known = self.compared[place] = (kept, num_agreeing(mine, kept))
        return known[1]

    # --- what its client hears ---

    def news(self, ahead: int, waiting: int, shortage: Shortage[Key] | None, floor: int, now: float) -> Progress | None:
        """None while it has heard as much, or nothing is known of it yet. `waiting` stand in the queue, `ahead` of them
        before it."""
        if self.wait is None and shortage is None:
            return None
        message = self._describe(ahead, waiting, shortage, floor)
        if (told := self.told) is not None and (told.state, told.done) == (message.state, message.done):
            if message.state is RequestState.WAITING_MEMORY:  # its numbers are others every time
                if now - self.told_at < MEMORY_REMINDER:
                    return None
            elif told.sentence == message.sentence:
                return None
        self.told, self.told_at = message, now
        return message

    def _describe(self, ahead: int, waiting: int, shortage: Shortage[Key] | None, floor: int) -> Progress:
        state = RequestState.QUEUED
        if shortage is not None and shortage.id == self.request.key:
            state = RequestState.WAITING_MEMORY
            sentence = (
                f"Waiting: memory is almost full: {format_bytes(shortage.need)} needed, {format_bytes(shortage.left)} "
                f"left above the floor of {format_bytes(floor)} and what running requests may still take"
            )
        else:
            why = self.wait.sentence if self.wait and not shortage else "a request before it waits for memory"
            sentence = f"Queued: {why}" + (f", {ahead:,} ahead" if ahead else "")
        return Progress(self.request.ask.id, state, ahead, waiting, sentence)
