"""What becomes of conversations when requests come and go: put aside, moved, brought back, kept. Device thread only.

Routing decides (`route`), this acts: between the answer "slot 0, from the disk" and a sequence that goes on there lies
what is here. Nothing of it changes what is written; what fails is read again as a prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Several
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

import torch

from tandem.caches.caches import Caches
from tandem.caches.opening import DiskTier, open_caches
from tandem.caches.prefix import Prompt
from tandem.caches.restore import PATIENCE
from tandem.caches.shelf import Hold
from tandem.contract.messages import CachesView, DiskView, Missed
from tandem.contract.plan import EnginePlan
from tandem.engine.facts import Held, Source
from tandem.engine.memory import LOOK_EVERY, MemoryKeeper
from tandem.engine.slot import NOTHING_KEPT, Aside, Request, Resident, Sequence, Slot, num_agreeing
from tandem.memory.budget import Level
from tandem.memory.pages import CommitRefused
from tandem.model.interface import Model
from tandem.model.native.library import build, families
from tandem.units import MIB

log = logging.getLogger("tandem.engine")


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found for a request, for as long as the caches do not change."""

    prompt: Prompt
    changes: int
    held: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class _Pin:
    """A conversation that its client asked to keep."""

    kept: Resident
    hold: Hold
    until: float


class Conversations:
    def __init__(self, slots: Several[Slot], caches: Caches) -> None:
        self._slots = slots
        self.caches = caches
        self._known: WeakKeyDictionary[Request, _Known] = WeakKeyDictionary()
        self._pins: list[_Pin] = []
        self._view: CachesView | None = None
        self._next_view = 0.0
        self._unwritten: set[int] = set()  # idle slots whose rows the disk had no room for yet

    # --- what routing asks ---

    def find(self, request: Request) -> Several[Held]:
        """What memory and disk hold of a request's prompt."""
        if request.ask.anew:
            return ()
        known, changes = self._known.get(request), self.caches.changes
        if known is None or known.changes != changes:
            prompt = known.prompt if known else self.caches.prompt(request.ask.scope, request.ask.tokens)
            found = self.caches.find(prompt)
            held = (Held(Source(found.source), found.rows),) if found else ()
            known = self._known[request] = _Known(prompt, changes, held)
        return known.held

    def stash_room(self, slot: Slot) -> int:
        """Rows of it that can be put aside for a guest."""
        return self.caches.room // slot.state.bytes_a_token

    # --- a request takes a slot ---

    def begin(self, slot: Slot, sequence: Sequence) -> None:
        """The sequence runs on its slot from now on, behind rows that lie there, are copied, or are on their way
        (`sequence.restore`)."""
        take, aside = sequence.take, None
        sequence.missed = self._find_miss(sequence)
        if take.is_guest:
            aside = self._put_aside(slot, sequence)
        elif take.park_first:
            self._park(slot)
        sequence.resumed = sequence.read = self._first_rows(slot, sequence)
        lender = self._slots[take.carry_from] if take.carry_from is not None else None
        moves = lender is not None and take.moves and lender.sequence is None
        copied = None if lender is None else lender.kept if moves else NOTHING_KEPT
        if sequence.restore is not None:
            sequence.restore.begin(slot.state)
        if lender is not None and moves:
            lender.forget()
        slot.begin(sequence, aside, copied)  # last: what fails before leaves the slot free

    def _first_rows(self, slot: Slot, sequence: Sequence) -> int:
        """How many rows of the sequence lie in the slot when it begins there."""
        take = sequence.take
        if take.source in (Source.NONE, Source.RESIDENT):
            if take.resume_at and not slot.state.can_rewind:
                anchor = slot.anchors.at(take.resume_at)
                assert anchor is not None and anchor.position == take.resume_at, "not a place to go on from"
                slot.state.restore(anchor)
            return take.resume_at
        try:
            slot.memory.commit(take.resume_at)
        except CommitRefused as refused:  # what is read again is committed chunk by chunk
            log.warning("slot %d: %s; the prompt is read again", slot.index, refused)
            return 0
        if take.carry_from is not None:
            lender = self._slots[take.carry_from]
            slot.state.copy_from(lender.state, take.resume_at, lender.anchors.at(take.resume_at))
            return take.resume_at
        prompt = self._prompt(sequence.request)
        if (found := self.caches.find(prompt)) is not None and found.rows <= slot.memory.rows:
            sequence.restore = self.caches.restore(prompt, found)
        return 0

    def _find_miss(self, sequence: Sequence) -> Missed | None:
        """Where a conversation that goes on parts from what a slot holds; None where something past its head was
        found, or nothing was to be found."""
        ask, head = sequence.request.ask, sequence.request.ask.marks.head_end
        is_first = ask.marks.messages_end <= head
        if is_first or sequence.is_errand or ask.anew or sequence.take.resume_at > head:
            return None
        held = [(slot.index, slot.returns_to) for slot in self._slots]
        held = [(index, kept) for index, kept in held if kept.rows and kept.scope == ask.scope and not kept.is_errand]
        if not held:
            return Missed(0, 0)

        near = [
            (bool(ask.conversation) and kept.conversation == ask.conversation, num_agreeing(ask.tokens, kept.tokens))
            for _, kept in held
        ]
        (_, at), (index, kept) = max(zip(near, held, strict=True), key=lambda each: each[0])
        around = slice(max(0, at - _QUOTED), at + _QUOTED)
        ours, theirs = ask.tokens[around], kept.tokens[around]
        return Missed(at, len(kept.tokens), index, ours, theirs, at - around.start)

    def advance(self, slot: Slot, is_alone: bool) -> bool:
        """One piece more of what is on its way; whether all is there. Waits for it a moment when nobody else runs."""
        sequence = slot.sequence
        assert sequence is not None and sequence.restore is not None
        if not sequence.restore.advance(PATIENCE if is_alone else 0.0):
            return False
        rows, sequence.restore = sequence.restore.rows, None
        slot.brought_back(rows)
        return True

    # --- it reads, and ends ---

    def read(self, slot: Slot, rows: int) -> None:
        """The last `rows` rows of a prompt so far were read just now. Where its head ends among them, it is kept."""
        sequence = slot.sequence
        assert sequence is not None
        head = min(sequence.request.ask.marks.head_end, len(sequence.prompt) - 1)
        if sequence.read - rows < head <= sequence.read and not sequence.is_errand and sequence.end is None:
            kept = slot.resumable(head)
            self.caches.store_head(self._prompt(sequence.request), kept, slot.state, slot.anchors)

    def ended(self, slot: Slot, sequence: Sequence, now: float) -> None:
        """It has left its slot: who was put aside comes back; what it leaves is written behind, and kept in memory
        where its client asked for that."""
        if sequence.restore is not None:
            sequence.restore.cancel()
        if (aside := slot.aside) is None:
            self.write_behind(slot)
            self._pin(slot, sequence, now)
            return
        right = aside.shared
        if aside.hold is not None:
            right = self.caches.unstash(aside.hold, slot.state)
        slot.take_back(aside.kept.rows if right >= aside.overwritten else slot.resumable(right))

    def write_behind(self, slot: Slot) -> None:
        """What an idle slot holds, and the disk lacks."""
        kept, missing = slot.kept, 0
        if kept.rows and not kept.is_errand:
            missing = self.caches.write_behind(self._prompt_of(kept), kept.rows, slot.state, slot.anchors)
        (self._unwritten.add if missing else self._unwritten.discard)(slot.index)

    def _pin(self, slot: Slot, sequence: Sequence, now: float) -> None:
        """Pins end with their time; a conversation that went on has one, of its last turn."""
        kept = slot.kept
        for pin in list(self._pins):
            is_outgrown = pin.kept.scope == kept.scope and kept.tokens[: len(pin.kept.tokens)] == pin.kept.tokens
            if now >= pin.until or is_outgrown:
                self._pins.remove(pin)
                self.caches.release(pin.hold)
        if not sequence.request.ask.keep_for or not kept.rows:
            return
        hold = self.caches.pin(self._prompt_of(kept), kept.rows, slot.state, slot.anchors)
        if hold is None:
            log.info("[caches] %s asked to be kept: no room for %d rows", sequence.request.ask.id, kept.rows)
            return
        self._pins.append(_Pin(kept, hold, now + sequence.request.ask.keep_for))

    def rest(self) -> None:
        """Nobody runs: the disk may have room now for what it had none for."""
        for slot in [self._slots[index] for index in self._unwritten]:
            self.write_behind(slot)

    def close(self) -> None:
        self.caches.close()

    def view(self, now: float) -> CachesView:
        """What is kept, for people; counted anew every `LOOK_EVERY` seconds."""
        if self._view is None or now >= self._next_view:
            self._next_view = now + LOOK_EVERY
            self._view = _view_of(self.caches)
        return self._view

    def check_integrity(self) -> None:
        self.caches.check_integrity()

    # --- moving aside ---

    def _put_aside(self, slot: Slot, guest: Sequence) -> Aside:
        kept = slot.kept
        overwritten = min(kept.rows, len(guest.prompt) + guest.max_tokens)
        hold = self.caches.stash(self._prompt_of(kept), overwritten, slot.state)
        return Aside(kept, overwritten, guest.take.resume_at, hold)

    def _park(self, slot: Slot) -> None:
        kept = slot.kept
        if not self.caches.park(self._prompt_of(kept), kept.rows, slot.state, slot.anchors):
            log.info("[caches] slot %d: %d rows make way, and there is no room to keep them", slot.index, kept.rows)

    def _prompt(self, request: Request) -> Prompt:
        known = self._known.get(request)
        return known.prompt if known else self.caches.prompt(request.ask.scope, request.ask.tokens)

    def _prompt_of(self, kept: Resident) -> Prompt:
        return self.caches.prompt(kept.scope, kept.tokens)


def _view_of(caches: Caches) -> CachesView:
    stats, disk = caches.stats, None
    if stats.disk is not None:
        folder = stats.disk.folder
        disk = DiskView(
            files=folder.chunks,
            bytes=folder.bytes,
            waiting=stats.disk.waiting,
            written=folder.written,
            read=folder.read,
            evicted=folder.evicted,
            dropped=stats.disk.dropped,
            corrupt=folder.corrupt,
            failed=folder.failed,
        )
    held = {level.name.lower(): size for level in Level if (size := caches.holdings.held(level))}
    restored = {str(source): rows for source, rows in stats.restored.items()}
    return CachesView(held, restored, stats.given_back, stats.refused, disk)


def open_conversations(plan: EnginePlan, model: Model, memory: MemoryKeeper) -> Conversations:
    """With the caches that the plan declares; each gives back when memory is short, the conversations of idle slots
    after they were written."""
    caches, like = plan.caches, memory.slots[0].state
    disk = None
    if caches.disk is not None:
        waiting = max(_LEAST_WAITING, caches.memory // _WAITING)
        disk = DiskTier(Path(caches.disk.path), caches.disk.size, caches.disk.max_age, waiting)
    opened = open_caches(
        plan.chunk,
        fingerprint(plan),
        like,
        memory.holdings,
        caches.memory,
        disk,
        any_row=model.is_row_invariant,
    )
    conversations = Conversations(memory.slots, opened)
    for level in Level:
        memory.pressure.register(level, partial(opened.give_back, level))
    memory.pressure.before_forgetting = conversations.write_behind
    return conversations


_QUOTED: Final = 12  # tokens, before and behind the place where two prompts part
_WAITING: Final = 4  # of the memory for copies, this part may wait to be written
_LEAST_WAITING: Final = 64 * MIB


def fingerprint(plan: EnginePlan) -> bytes:
    """Whatever the bits of a row depend on beside its tokens: weights, arithmetic, code."""
    path = Path(plan.weights)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    looks = [(file.name, file.stat()) for file in files if file.exists()]
    weights = plan.weights_sha256 or [(name, seen.st_size, seen.st_mtime_ns) for name, seen in looks]
    code = (families(), build(), torch.__version__, version("tandem-appliance"))
    arithmetic = (plan.compute, plan.device, plan.threads, *code)
    return repr((weights, arithmetic)).encode()
