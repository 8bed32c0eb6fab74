"""The engine's memory: who may take some now, who gives back first, and who must end for it. Device thread only.

It decides when the ladder is walked and the guard acts, and keeps the account of both. It knows slots and how a
request ends for want of memory; it knows neither the queue nor what a pass computes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import chain
from typing import Final

from tandem.caches.anchors import Anchors
from tandem.caches.holdings import Holdings
from tandem.contract.messages import KvUsage, MemoryPart, RefusalCode
from tandem.contract.plan import EnginePlan, Floors, SlotPlan
from tandem.engine.admit import RowCost, Shortage
from tandem.engine.outbox import Tally
from tandem.engine.pressure import Pressure
from tandem.engine.round import NO_MEMORY_RETRY
from tandem.engine.row_memory import FirstWrite
from tandem.engine.slot import Failed, Sequence, Slot
from tandem.engine.waiting import Key
from tandem.engine.world import World
from tandem.memory.budget import Budget
from tandem.memory.guard import Guard
from tandem.memory.kvpool import KVPool
from tandem.memory.pages import CommitRefused, PageBackend
from tandem.memory.view import engine_parts
from tandem.model.interface import Model
from tandem.residency.journal import Event
from tandem.units import format_bytes

log = logging.getLogger("tandem.engine")

LOOK_EVERY: Final = 0.1  # seconds; a look costs 50 us, which a round of every turn would pay


class MemoryKeeper:
    """Caches report to `budget` and ask it before they take; they register with `pressure` to be asked to give back.

    Commits and admissions always go by a fresh reading. Between them memory is looked at every `LOOK_EVERY` seconds,
    and at every turn once it is under the floor.
    """

    def __init__(
        self, plan: EnginePlan, model: Model, world: World, floors: Floors, tally: Tally, pages: PageBackend | None
    ) -> None:
        """With `pages` the KV pool is on: rows have memory from the pass that writes them to the end of their
        request."""
        self.floors = floors
        self.cost = RowCost(plan.bytes_a_token, plan.workspace)
        self.budget = _budget(plan)
        self.holdings = Holdings(self.budget, lambda: self.engine_now)
        self._pool = KVPool(pages, plan.kv_margin_rows, self._make_room) if pages else None
        unit = 1 if model.is_row_invariant else plan.chunk
        self.slots = [self._build_slot(slot, model, unit, plan.caches.anchors) for slot in plan.slots]
        self.pressure = Pressure(
            self.slots,
            self.budget,
            trim=world.trim if pages is None else lambda: pages.trim() + world.trim(),
            ask_roles=world.ask_roles,
            clock=world.clock,
            has_pool=pages is not None,
        )
        self._guard = Guard()
        self._world = world
        self._tally = tally
        self._rows_elsewhere = plan.device != "cpu"  # rows are no part of the process then
        self._waiting: Key | None = None  # for memory; counted last
        self._is_trimmed = True
        self._next_look = self._next_count = float("-inf")
        self._loaded = self._held()

    def _build_slot(self, plan: SlotPlan, model: Model, unit: int, anchors: int) -> Slot:
        where, kept = (plan.index, plan.window), (unit, Anchors(anchors, self.holdings))
        if self._pool is None:
            return Slot(*where, model.new_state(plan.window), FirstWrite(*where, self.cost), *kept)
        rows = self._pool.slot()
        return Slot(*where, model.new_state(plan.window, rows.allocate), rows, *kept)

    def note_loaded(self) -> None:
        """Weights are in memory and no row has any: what is held now is not counted as anything else later."""
        self.pressure.trim()
        self._loaded = self._held()

    # --- looking ---

    def available(self) -> int:
        """MemAvailable in bytes, now."""
        available = self._world.available()
        self._next_look = self._world.clock() + (LOOK_EVERY if available >= self.floors.floor else 0.0)
        return available

    @property
    def parts(self) -> tuple[MemoryPart, ...]:
        """What the engine holds, split so that the parts sum to the whole; counted anew every `LOOK_EVERY` seconds."""
        if (now := self._world.clock()) >= self._next_count:
            self._next_count = now + LOOK_EVERY
            kv = self.kv if self._pool else ()
            self._parts = engine_parts(self._held(), self._loaded, kv, self.budget.cached)
        return self._parts

    @property
    def engine_now(self) -> int:
        """Bytes the engine holds, its caches included. Pages of the pool count against no limit."""
        rows = sum(usage.committed for usage in self.kv) if self._pool else 0
        return sum(part.bytes for part in self.parts) - rows

    @property
    def cache_growth(self) -> int:
        """Bytes that caches may still take."""
        return self.budget.cache_growth(self.engine_now)

    @property
    def kv(self) -> tuple[KvUsage, ...]:
        """By slot and kind."""
        return tuple(chain.from_iterable(slot.memory.usage for slot in self.slots))

    def _held(self) -> int:
        rows = self._pool.committed + self._pool.spare if self._pool and self._rows_elsewhere else 0
        return self._world.held() + rows

    # --- acting ---

    def watch(self, now: float) -> None:
        """Below the hard floor everything is given back, whoever took the memory; when that does not stop the fall,
        the youngest request ends before the kernel ends all of them."""
        if now < self._next_look:
            return
        floor, available, is_exhausted = self.floors.hard_floor, self.available(), False
        if available < floor:
            is_exhausted, available = not self.relieve(floor), self.available()
        if not self._guard.must_act(available, floor, now) or not is_exhausted:
            return  # what fell again since the ladder had enough, it is asked for at the next look
        running = [slot.sequence for slot in self.slots if slot.sequence and slot.sequence.end is None]
        if not running:
            return
        youngest = max(running, key=lambda sequence: sequence.admitted)
        sentence = (
            f"memory fell to {format_bytes(available)}, under the hard floor of {format_bytes(floor)}, and everything "
            f"else was given back: the youngest request ends so that the others can go on"
        )
        youngest.end = Failed(sentence, RefusalCode.NO_MEMORY, NO_MEMORY_RETRY)
        self._guard.acted(now)
        log.warning("[memory] %s: %s", youngest.request.ask.id, sentence)

    def relieve(self, wanted: int, but: int | None = None, roles: bool = True) -> bool:
        """Whether `wanted` bytes are available, if need be after a walk down the ladder."""

        def short() -> int:
            return wanted - self.available()

        if short() <= 0:
            return True
        done = self.pressure.reclaim(short, but=but, roles=roles)
        self._tally.note_reclaim(done)
        if done.returned:
            figures = {step.rung: step.returned for step in done.steps}
            self._journal("reclaimed", done.sentence, {"short": done.asked, **figures, "still_short": done.short})
        return not done.short

    def relieve_shortage(self, shortage: Shortage[Key]) -> None:
        """What idle slots and caches keep must not make a client wait: it is given up for who waits for memory, who
        may then start at the next boundary. Not the conversation that it may be about to continue, unless the next
        boundary chooses another slot. Roles stay: they leave only under the hard floor."""
        if shortage.id != self._waiting:
            self._waiting = shortage.id
            self._tally.memory_waits += 1
        self.relieve(self.available() + shortage.need - shortage.left, but=shortage.slot, roles=False)

    def retired(self, sequence: Sequence) -> None:
        """It has left its slot."""
        self._is_trimmed = False
        if isinstance(end := sequence.end, Failed) and end.code is RefusalCode.NO_MEMORY:
            self._tally.ended_for_memory += 1
            figures = {"available": self.available(), "hard_floor": self.floors.hard_floor}
            self._journal("ended", end.sentence, figures, sequence.request.ask.id)

    def rest(self) -> None:
        """Nobody waits for what is done here: the heap gives back what the last passes left in it."""
        if not self._is_trimmed:
            self.pressure.trim()
            self._is_trimmed = True

    def _make_room(self, size: int) -> None:
        """A commit is about to take `size` bytes; before the hard floor is passed for it, all else is given back."""
        floor = self.floors.hard_floor
        if not self.relieve(size + floor):
            raise CommitRefused(
                f"memory is full: {format_bytes(size)} are needed for the next rows, {format_bytes(self.available())} "
                f"are available and {format_bytes(floor)} are the hard floor"
            )

    def _journal(self, act: str, sentence: str, figures: Mapping[str, int], subject: str = "") -> None:
        try:
            self._world.journal(Event(act, sentence, dict(figures), subject))
        except OSError as error:
            log.warning("the journal cannot be written: %s", error)

    def check_integrity(self) -> None:
        if self._pool:
            self._pool.check_integrity()


def _budget(plan: EnginePlan) -> Budget:
    """The declared peak has the side slots in it; here they are fixed bytes, kept apart as `Budget` wants them."""
    rows = 0 if plan.kv_pool else plan.bytes_a_token
    fixed = sum(slot.constant + slot.window * rows for slot in plan.slots[1:])
    configured = max(0, plan.declared_peak - fixed)
    budget = Budget(configured, configured)
    budget.add_fixed(fixed)
    return budget
