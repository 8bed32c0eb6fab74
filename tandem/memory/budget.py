"""How much the engine may hold, and which cache gives back first. Decisions only: caches do what it answers.

Two limits are configured: the ceiling, up to which caches may grow the engine, and the peak, up to which a request
may. The engine's fixed bytes (side slots) are not in the configured figures and are added to whatever these are
set to. They are kept apart for that reason: once a limit was set again without them, and every cache of a busy
evening was refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from tandem.units import format_gib


class Level(IntEnum):
    """What caches hold, in the order in which it is given back."""

    STORE = 0
    ANCHORS = 1
    END = 2
    STASH = 3
    PARK = 4
    PIN = 5


@dataclass(frozen=True, slots=True)
class GiveBack:
    """This level is to give back at least so many bytes; all it holds when it cannot give a part."""

    level: Level
    size: int


@dataclass(frozen=True, slots=True)
class Granted:
    """The cache may take what it asked for, once these have given back."""

    first: tuple[GiveBack, ...] = ()


@dataclass(frozen=True, slots=True)
class Denied:
    """It may not: so many bytes are missing even when every level before its own is empty."""

    missing: int
    sentence: str


class Budget:
    """One engine's memory policy. All sizes are bytes; `engine_now` is what the engine holds, its caches included.

    With the KV pool on, slot 0's window costs memory only where it is written and is watched by the pool: `pooled`
    is its size, part of the configured figures but of neither limit, and KV pages are not part of `engine_now`.
    """

    def __init__(self, ceiling: int, peak: int, pooled: int = 0) -> None:
        self._pooled = pooled
        self._fixed = 0
        self._held = dict.fromkeys(Level, 0)
        self.set_limits(ceiling, peak)

    # --- limits ---

    def set_limits(self, ceiling: int, peak: int) -> None:
        """The configured figures, without the fixed bytes, as often and by whomever they are set."""
        assert self._pooled <= ceiling <= peak, f"pooled {self._pooled} <= ceiling {ceiling} <= peak {peak}"
        self._configured_ceiling = ceiling
        self._configured_peak = peak

    def add_fixed(self, size: int) -> None:
        """These bytes are the engine's for good."""
        assert size >= 0
        self._fixed += size

    @property
    def fixed(self) -> int:
        return self._fixed

    @property
    def ceiling(self) -> int:
        return self._configured_ceiling - self._pooled + self._fixed

    @property
    def peak(self) -> int:
        return self._configured_peak - self._pooled + self._fixed

    def cache_growth(self, engine_now: int) -> int:
        """What the caches may still take, at most."""
        return max(0, self.ceiling - engine_now)

    def growth(self, engine_now: int) -> int:
        """What the engine may still take, at most: what residency keeps free for it."""
        return max(0, self.peak - engine_now)

    # --- what caches hold ---

    def report(self, level: Level, held: int) -> None:
        """`level` holds so much now: told after every change."""
        assert held >= 0
        self._held[level] = held

    def held(self, level: Level) -> int:
        return self._held[level]

    @property
    def cached(self) -> int:
        return sum(self._held.values())

    # --- decisions ---

    def ask(self, level: Level, size: int, engine_now: int) -> Granted | Denied:
        """May a cache of `level` take `size` bytes more? It makes the levels before its own give way, never its own."""
        short = size - self.cache_growth(engine_now)
        before = [lower for lower in Level if lower < level]
        found = self._walk(before, short)
        missing = short - sum(step.size for step in found)
        if missing <= 0:
            return Granted(found)
        return Denied(
            missing,
            f"{level.name.lower()}: {format_gib(size)} GiB asked, the engine holds {format_gib(engine_now)} of "
            f"{format_gib(self.ceiling)} and the levels before it {format_gib(sum(map(self.held, before)))}",
        )

    def free(self, size: int) -> tuple[GiveBack, ...]:
        """Who gives back for memory that is wanted elsewhere: level by level, no more than is needed.

        The sizes may sum to less than `size`: the caches hold no more.
        """
        return self._walk(Level, size)

    def _walk(self, levels: Iterable[Level], size: int) -> tuple[GiveBack, ...]:
        steps = []
        for level in levels:
            if size <= 0:
                break
            if self._held[level]:
                steps.append(GiveBack(level, min(size, self._held[level])))
                size -= steps[-1].size
        return tuple(steps)
