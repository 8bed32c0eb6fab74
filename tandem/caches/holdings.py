"""What all caches hold in memory, by budget level: each asks here before it takes, and tells what it holds.

The budget decides; here its decisions are carried out. A cache that may take because others give way finds the room
when the answer comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tandem.memory.budget import Budget, Denied, Level

log = logging.getLogger("tandem.caches")

GiveBack = Callable[[int], int]  # bytes asked -> bytes returned: all it holds when it cannot give a part


class Holdings:
    """Device thread only."""

    def __init__(self, budget: Budget, engine_now: Callable[[], int]) -> None:
        """`engine_now`: bytes the engine holds, its caches included."""
        self.num_refused = 0
        self._budget = budget
        self._engine_now = engine_now
        self._held = dict.fromkeys(Level, 0)
        self._givers: dict[Level, list[GiveBack]] = {level: [] for level in Level}
        self._is_short = False

    def register(self, level: Level, give_back: GiveBack) -> None:
        """Who holds something of this level. Several may: they are asked in the order in which they came."""
        self._givers[level].append(give_back)

    def may_take(self, level: Level, size: int) -> bool:
        """Whether `size` bytes more may be held; the levels before it have given way for them already."""
        if isinstance(answer := self._budget.ask(level, size, self._engine_now()), Denied):
            self.num_refused += 1
            if not self._is_short:  # once until it may again: a box that is full says it at every chunk
                log.info("[caches] %s", answer.sentence)
            self._is_short = True
            return False
        for step in answer.first:
            self.give_back(step.level, step.size)
        self._is_short = False
        return True

    def give_back(self, level: Level, size: int) -> int:
        """Let a level shrink by at least `size` bytes; returns how many it gave."""
        given = 0
        for giver in self._givers[level]:
            if given < size:
                given += giver(size - given)
        return given

    def note(self, level: Level, change: int) -> None:
        """So many bytes more, or fewer, are held."""
        self._held[level] += change
        self._budget.report(level, self._held[level])

    def held(self, level: Level) -> int:
        return self._held[level]
