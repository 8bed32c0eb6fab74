"""Who may start now: slots and memory, decided at the boundary between two passes. Pure.

The rule is the one of continuous batching with full reservations. First the finished release what they held, then
the queue is walked in order: its head starts while a slot is free and its reservation fits, and the walk stops at
the first that does not fit into memory, so nobody is skipped for being large. A request that waits for a busy slot
(its prompt is too long for the others, or its conversation lies there) is passed by those behind it: they take slots
it does not want. When its own comes free it is asked first.

A reservation is what a request may still take: the workspace of its prefill and the pages of prompt + max_tokens
that its slot has not committed. It shrinks as the slot commits, while MemAvailable falls by the same pages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tandem.units import MIB

PAGE: Final = 2 * MIB  # the granularity in which devices give memory to addresses

Id = TypeVar("Id", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Running:
    """A request that holds a slot."""

    slot: int
    left: int  # tokens it may still write; 0 when it has finished
    reserved: int  # bytes (or blocks) it may still take


@dataclass(frozen=True, slots=True)
class Offer:
    """A free slot a waiting request would take, and what it may then still commit there."""

    slot: int
    need: int


@dataclass(frozen=True, slots=True)
class Shortage(Generic[Id]):
    """The first that did not fit into memory; nobody behind it started."""

    id: Id
    need: int
    left: int
    slot: int  # that it would have taken


@dataclass(frozen=True, slots=True)
class Boundary(Generic[Id]):
    admitted: tuple[tuple[Id, Offer], ...]
    shortage: Shortage[Id] | None


def decide(
    running: Iterable[Running],
    waiting: Iterable[Id],
    slots: Iterable[int],
    capacity: int,
    offer: Callable[[Id, frozenset[int]], Offer | None],
) -> Boundary[Id]:
    """One boundary. `capacity` is what all reservations together may take; `offer` answers which of the free slots
    a request would take, None when it takes none of them. Everyone is asked, so that everyone can be told why."""
    active = [request for request in running if request.left > 0]
    free = frozenset(slots) - {request.slot for request in active}
    left = capacity - sum(request.reserved for request in active)
    admitted: list[tuple[Id, Offer]] = []
    for id in waiting:
        if (found := offer(id, free)) is None:
            continue
        if found.need > left:
            return Boundary(tuple(admitted), Shortage(id, found.need, left, found.slot))
        admitted.append((id, found))
        free -= {found.slot}
        left -= found.need
    return Boundary(tuple(admitted), None)


@dataclass(frozen=True, slots=True)
class RowCost:
    """What rows cost on this device, in bytes."""

    a_token: int
    workspace: int  # of one prefill chunk

    def pages(self, rows: int) -> int:
        """Whole pages behind `rows` rows."""
        return -(-rows * self.a_token // PAGE) * PAGE

    def reservation(self, rows: int, committed: int, reading: bool = True) -> int:
        """What a request of `rows` = prompt + max_tokens may still take on a slot with `committed` rows."""
        return (self.workspace if reading else 0) + max(0, self.pages(rows) - self.pages(committed))
