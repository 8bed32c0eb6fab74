"""One request beside all slots: what the rules of `tandem.engine.route` look at, each judged once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final

from tandem.contract.plan import Routing
from tandem.engine.facts import Ask, Grid, Held, Holder, SlotFacts, Source, Take, WaitKind

DETOUR: Final = 64  # rows that another place has to save beyond what lies in the slot, or the way there costs as much


class Harm(IntEnum):
    """What it costs others when a request takes a slot."""

    NOTHING = 0  # nobody misses what is lost
    LITTLE = 1  # less than it saves, or than one pass reads
    PUT_ASIDE = 2  # the conversation is put aside and back
    LOST = 3  # a conversation makes way


@dataclass(frozen=True, slots=True)
class Wish:
    """The slot that is worth a wait."""

    slot: SlotFacts
    kind: WaitKind
    patience: float  # seconds from the arrival
    why: str
    sentence: str


@dataclass(frozen=True)
class Case:
    """One request and all that is known beside it."""

    ask: Ask
    slots: tuple[SlotFacts, ...]
    elsewhere: tuple[Held, ...]
    rules: Routing
    grid: Grid
    now: float

    @property
    def slot0(self) -> SlotFacts:
        return self.slots[0]

    @cached_property
    def side_window(self) -> int:
        return max((slot.window for slot in self.slots[1:]), default=0)

    @cached_property
    def is_level(self) -> bool:
        """No slot can hold what another cannot, so none is spared."""
        return all(slot.window == self.slot0.window for slot in self.slots)

    @cached_property
    def fitting(self) -> list[SlotFacts]:
        widest, least = self.slot0.window, self.rules.side_min_room
        return [slot for slot in self.slots if fits(self.ask, slot.window, widest, least)]

    @cached_property
    def free(self) -> list[SlotFacts]:
        return [slot for slot in self.fitting if slot.is_free]

    @cached_property
    def wish(self) -> Wish | None:
        homes = [slot for slot in self.fitting if self.continues(slot)]
        if homes:
            return self._home(max(homes, key=lambda slot: (slot.is_same, slot.continued, slot.shared, slot.index)))
        if (spilled := self._spilled) is None:
            return None
        why = f"its conversation is read back from the {spilled.source}"
        sentence = f"slot 0 reads its conversation back from the {spilled.source}; a free side slot takes it"
        return self._wish_for(self.slot0, WaitKind.SPILL, why, sentence)

    def _home(self, slot: SlotFacts) -> Wish:
        why, sentence = "continues its conversation here", f"slot {slot.index} holds its conversation"
        if self.is_level:
            return self._wish_for(slot, WaitKind.HOME, why, f"{sentence}; another slot takes it")
        if slot.index:
            return self._wish_for(slot, WaitKind.HOME, f"{why} (home)", f"{sentence}; another slot takes it")
        return self._wish_for(slot, WaitKind.SLOT0, why, f"{sentence}; a free side slot takes it")

    def _wish_for(self, slot: SlotFacts, kind: WaitKind, why: str, sentence: str) -> Wish:
        patience = self.rules.home_wait if kind is WaitKind.HOME else self.rules.slot0_wait
        if slot.holder is Holder.OWN_WORK and not self.ask.own_work:
            kind, patience = WaitKind.OWN_WORK, max(patience, self.rules.own_work_wait)
        return Wish(slot, kind, patience, why, sentence)

    @property
    def _spilled(self) -> Held | None:
        """A conversation of its own that only slot 0 takes back, and that nobody else holds as much of."""
        past = self.ask.head_end if self.rules.past_head else 0
        best = max(self.elsewhere, key=lambda held: (held.rows, not held.slot0_only), default=None)
        return best if best is not None and best.slot0_only and best.rows > past else None

    def continues(self, slot: SlotFacts) -> bool:
        """What the slot holds is this conversation, or will be when whoever runs there has ended.

        A turn of a client that still runs is another matter: its answer is not in this prompt, so this is a sibling
        of it (another choice, a sub-agent, a chat with the same head), which has nothing to wait for.
        """
        is_sibling = slot.holder is Holder.CLIENT and not slot.runs_guest
        if (
            (is_sibling and self.rules.past_head)
            or slot.is_errand
            or not slot.kept
            or self.ask.prompt < self.grid.chunk
        ):
            return False
        past, client_past = self.ask.head_end, self.ask.client_head_end
        if not self.rules.past_head:
            past = client_past = 0
        by_rows = slot.shared > past and slot.kept - slot.shared < self.grid.chunk
        if by_rows or self.rules.continues == "resident":
            return by_rows
        reaches = slot.continued > (past if client_past is None else client_past)
        return reaches and slot.served - slot.continued < self.grid.chunk

    def is_guest_of(self, slot: SlotFacts) -> bool:
        """Short beside what the slot holds, and nothing of it."""
        ask, chunk = self.ask, self.grid.chunk
        if not self.rules.guests or slot.is_errand or slot.kept < 2 * chunk or ask.prompt > self.rules.guest_max:
            return False
        return ask.is_errand or (4 * ask.prompt < slot.kept and slot.shared < chunk)

    def harm(self, slot: SlotFacts) -> Harm:
        lost = slot.kept - slot.shared
        if lost == 0 or slot.is_errand:
            return Harm.NOTHING
        if lost < max(self.grid.chunk, slot.shared):
            return Harm.LITTLE
        overwritten = min(slot.kept, self.ask.prompt + self.ask.max_tokens) - slot.shared
        return Harm.PUT_ASIDE if self.is_guest_of(slot) and overwritten <= slot.stash_room else Harm.LOST

    def preference(self, slot: SlotFacts) -> tuple[float, ...]:
        """The least first: least harm; then where most is shared and least is lost, of what is lost the oldest."""
        harm = self.harm(slot)
        if harm is Harm.LOST:
            return harm, slot.last_used, slot.index
        return harm, -slot.shared, slot.kept - slot.shared, slot.index

    @property
    def wants_slot0(self) -> bool:
        return self.wish is not None and self.wish.slot.index == 0

    @cached_property
    def story(self) -> str:
        """What the request is, where the slot that holds its conversation, if any, is not for it."""
        if (wish := self.wish) is not None:
            waited = self.now - self.ask.arrived
            return f"slot {wish.slot.index} still busy after {waited:.1f} s, its conversation goes on here"
        for slot in self.slots:
            if self.continues(slot):
                return f"its conversation leaves slot {slot.index} ({slot.window:,} tokens)"
        if self.ask.anew:
            return "to be read anew"
        if any(held.rows > self.ask.head_end and held.rows >= DETOUR for held in self.elsewhere):
            return "its conversation comes back"
        return "new conversation"

    # --- the answer ---

    def take(self, slot: SlotFacts, why: str) -> Take:
        rows, source, lender = self._rows_for(slot)
        room = slot.window - self.ask.prompt
        is_guest = self.harm(slot) is Harm.PUT_ASIDE
        parts = [why, *self._about_rows(slot, rows, source, lender)]
        if is_guest:
            parts.append("what it overwrites is put aside")
        elif lost := self._makes_way(slot):
            parts.append(f"{lost:,} rows kept there make way")
        if self.ask.max_tokens > room:
            parts.append(f"max_tokens {self.ask.max_tokens:,} -> {room:,} (the slot's window of {slot.window:,})")
        return Take(
            slot.index,
            rows,
            min(self.ask.max_tokens, room),
            "; ".join(parts),
            source,
            is_guest=is_guest,
            carry_from=None if lender is None else lender.index,
            moves=lender is not None and self.continues(lender),
            park_first=self._makes_way(slot) >= self.grid.chunk,
            gave_up=slot.index > 0 and self.wants_slot0,
        )

    def _makes_way(self, slot: SlotFacts) -> int:
        """Rows of a conversation that are gone from the slot for good."""
        if slot.is_errand or self.continues(slot) or self.harm(slot) is Harm.PUT_ASIDE:
            return 0
        return slot.kept - slot.shared

    def _rows_for(self, slot: SlotFacts) -> tuple[int, Source, SlotFacts | None]:
        """Where the sequence can go on, and what brings it there."""
        here = self._resumable(slot.shared)
        lenders = [other for other in self.slots if other is not slot and self.rules.carry]
        offers: list[tuple[int, Source, SlotFacts | None]] = [
            *((self._resumable(other.lent), Source.SIDE, other) for other in lenders),
            *((self._resumable(h.rows), h.source, None) for h in self.elsewhere if slot.index == 0 or not h.slot0_only),
        ]
        best = max(offers, key=lambda offer: (offer[0], -_COST[offer[1]]), default=None)
        if best is not None and best[0] - here >= DETOUR:
            return best
        return here, Source.RESIDENT if here else Source.NONE, None

    def _resumable(self, rows: int) -> int:
        rows = min(rows, self.ask.prompt - 1)
        return rows - rows % self.grid.unit

    def _about_rows(self, slot: SlotFacts, rows: int, source: Source, lender: SlotFacts | None) -> list[str]:
        if source is Source.NONE:
            return ["empty slot"] if not slot.kept else []
        what = f"{rows:,} of {self.ask.prompt:,} tokens"
        if rows <= self.ask.head_end:
            what += ", a shared head,"
        if lender is not None:
            return [f"{what} copied from slot {lender.index}"]
        return [f"{what} kept"] if source is Source.RESIDENT else [f"{what} from the {source}"]


_COST: Final = {source: place for place, source in enumerate(Source)}


def fits(ask: Ask, window: int, widest: int, least: int) -> bool:
    """Whether a slot leaves enough rows of output: what slot 0 would, the whole max_tokens, or `least`."""
    room = window - ask.prompt
    return room >= min(widest - ask.prompt, ask.max_tokens, least)
