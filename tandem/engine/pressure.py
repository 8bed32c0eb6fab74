"""What an engine can give back, in the order of the ladder, and who is asked for it. Device thread only.

Nothing a running request needs is here: caches, free blocks, roles, and conversations that idle slots keep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from tandem.engine.slot import Slot
from tandem.memory.budget import Budget, Level
from tandem.memory.ladder import Reclaim, Rung, reclaim

log = logging.getLogger("tandem.engine")

GiveBack = Callable[[int], int]  # bytes asked -> bytes returned

EMPTY_FOR = 1.0  # seconds; a rung that had nothing is not asked at every pass
TRIMMED_FOR = 15.0  # seconds; what the allocator gives back while requests run, the next pass takes again
ALLOCATOR = "allocator"
ROLES = "roles"


class Pressure:
    def __init__(
        self,
        slots: list[Slot],
        budget: Budget,
        *,
        trim: Callable[[], int],
        ask_roles: GiveBack,
        clock: Callable[[], float],
        has_pool: bool,
    ) -> None:
        """Without the pool rows are the engine's for good, and giving a conversation up returns nothing."""
        self._slots = slots
        self._budget = budget
        self._trim = trim
        self._ask_roles = ask_roles
        self._clock = clock
        self._has_pool = has_pool
        self._caches: dict[Level, GiveBack] = {}
        self.before_forgetting: Callable[[Slot], None] = lambda slot: None  # a conversation's last chance to be kept
        self._rests: dict[str, float] = {}  # rung -> not to be asked before

    def register(self, level: Level, give_back: GiveBack) -> None:
        """A cache that reports to the budget under `level` gives back here when it is asked."""
        self._caches[level] = give_back

    def reclaim(self, short: Callable[[], int], *, but: int | None = None, roles: bool = True) -> Reclaim:
        """One walk, logged once. `but` is a slot whose conversation somebody is about to continue."""
        now = self._clock()
        rungs = (rung for rung in self._rungs(but, roles) if self._rests.get(rung.name, now) <= now)
        done = reclaim(short, rungs, self._clock)
        for step in done.steps:
            if step.rung == ALLOCATOR:
                self._rests[ALLOCATOR] = now + TRIMMED_FOR
            elif not step.returned:
                self._rests[step.rung] = now + EMPTY_FOR
        if done.steps:
            log.info("[memory] %s", done.sentence)
        return done

    def trim(self) -> int:
        """What the allocator keeps free and the page backend keeps spare; returns the bytes."""
        return self._trim()

    def _rungs(self, but: int | None, roles: bool) -> Iterable[Rung]:
        for level, give_back in sorted(self._caches.items()):
            yield Rung(level.name.lower(), partial(self._from_cache, level, give_back))
        yield Rung(ALLOCATOR, lambda size: self._trim())
        if roles:
            yield Rung(ROLES, self._ask_roles)
        if self._has_pool:
            idle = [slot for slot in self._slots if slot.sequence is None and slot.index != but and slot.kept.rows]
            for slot in sorted(idle, key=lambda slot: (slot.index == 0, slot.last_used)):
                yield Rung(f"conversation of slot {slot.index}", partial(self._forget, slot))

    def _from_cache(self, level: Level, give_back: GiveBack, size: int) -> int:
        wanted = sum(step.size for step in self._budget.free(size) if step.level is level)
        returned = give_back(wanted) if wanted else 0
        if returned:
            self._rests.pop(ALLOCATOR, None)  # some of it may have gone to the allocator
        return returned

    def _forget(self, slot: Slot, size: int) -> int:
        self.before_forgetting(slot)
        return slot.forget()
