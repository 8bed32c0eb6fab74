"""Conversations that come back, as the exactness gate asks them: their turns, and where they lie in between. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from tandem.contract.messages import Generate
from tandem.contract.plan import CachesPlan, DiskCachePlan
from tandem.engine.grammar.mask import Compiled
from tandem.units import GIB, MIB

TURNS: Final = 3
_EVERY: Final = 3  # a request of so many comes back
_MOST_TOKENS: Final = 64  # of each answer
_ROOM: Final = GIB  # of a cache
_ANCHORS: Final = 256 * MIB
_AGE: Final = 3600.0  # seconds; longer than any gate runs
Texts = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """One request, and what its grammar became."""

    ask: Generate
    grammar: Compiled | None = None


class Kept(StrEnum):
    """Where a conversation lies until its next turn."""

    NOWHERE = "nowhere"  # every prompt is read anew
    SLOTS = "slots"  # only what a slot held last is still there
    MEMORY = "memory"
    DISK = "disk"

    def caches(self, folder: Path) -> CachesPlan:
        """`folder` is the disk's."""
        match self:
            case Kept.MEMORY:
                return CachesPlan(_ROOM, _ANCHORS, None)
            case Kept.DISK:
                return CachesPlan(0, _ANCHORS, DiskCachePlan(str(folder), _ROOM, _AGE))
            case _:
                return CachesPlan(0, 0, None)


def returning(cases: Sequence[Case], window: int, least: int) -> list[Case]:
    """Those that come back: some of each kind, at least `least` if there are, and none that would outgrow `window`."""
    some = [case for case in cases[::_EVERY] if longest(case.ask) <= window]
    return some if len(some) >= least else [case for case in cases if longest(case.ask) <= window][:least]


def conversations(cases: Sequence[Case], written: Texts, anew: bool) -> Iterator[list[Case]]:
    """The first turns of all of them, the second turns, and so on. `written` has what each turn wrote, or is to write,
    by the time the turn after it is asked for; one without it has no further turn.

    Who came last comes back first: what slots still hold is met before others overwrite it."""
    firsts = [_first(case, anew) for case in cases]
    turns = {case.ask.id: case for case in firsts}
    for number in range(1, TURNS + 1):
        yield list(turns.values())[:: 1 if number % 2 else -1]
        turns = {
            id: _next(case, turns[id].ask, written[turns[id].ask.id], number + 1)
            for id, case in ((case.ask.id, case) for case in firsts)
            if id in turns and turns[id].ask.id in written
        }


def longest(ask: Generate) -> int:
    """Tokens of its last turn, with the answer."""
    return TURNS * (len(ask.tokens) + min(ask.max_tokens, _MOST_TOKENS) + 1)


def _first(case: Case, anew: bool) -> Case:
    ask = replace(case.ask, id=f"{case.ask.id}, turn 1", max_tokens=min(case.ask.max_tokens, _MOST_TOKENS), anew=anew)
    return Case(ask, case.grammar)


def _next(first: Case, before: Generate, written: tuple[int, ...], number: int) -> Case:
    """What was asked first is asked again, behind the answer and the token that ends a turn, where there is one."""
    opening = (*before.tokens, *written, *before.stop_tokens[:1])
    ask = replace(
        first.ask,
        id=f"{first.ask.id.removesuffix('1')}{number}",
        tokens=(*opening, *first.ask.tokens),
        marks=replace(first.ask.marks, messages_end=len(opening) + first.ask.marks.messages_end),
    )
    return Case(ask, first.grammar)
