"""Places where a sequence that cannot rewind may go on: copies of what the rows do not hold, of one slot.

Anchors are taken at chunk boundaries as they come. When their bytes run out, those go whose neighbours are nearest, so
that what stays is spread over the conversation; the newest stay, because the next turn resumes there. The end anchor,
behind the last answer, is of a budget level of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tandem.caches.holdings import Holdings
from tandem.memory.budget import Level
from tandem.model.state import SequenceState, Snapshot

NEWEST: Final = 2  # anchors that make no room for others


class Anchors:
    """Device thread only. Of a state that can rewind none are taken: it goes on anywhere."""

    def __init__(self, limit: int, holdings: Holdings) -> None:
        """`limit`: bytes of the anchors; the end anchor is one more."""
        self._limit = limit
        self._holdings = holdings
        self._anchors: list[Snapshot] = []  # by position
        self._end: Snapshot | None = None
        holdings.register(Level.ANCHORS, self._give_back)
        holdings.register(Level.END, self._give_back_end)

    def __iter__(self) -> Iterator[Snapshot]:
        """By position; the end anchor last."""
        yield from self._anchors
        if self._end is not None:
            yield self._end

    def note(self, state: SequenceState) -> bool:
        """The state stands at a chunk boundary, past all anchors. False when nothing can be kept of it."""
        size = state.fixed_bytes
        if not size or size > self._limit:
            return False
        if self._anchors and self._anchors[-1].position == state.position:
            return True
        while self._bytes + size > self._limit:
            self._drop(self._most_crowded(NEWEST - 1) or self._anchors[0])
        while not self._holdings.may_take(Level.ANCHORS, size):
            if (crowded := self._most_crowded(NEWEST - 1)) is None:
                return False
            self._drop(crowded)
        assert not self._anchors or self._anchors[-1].position < state.position, "anchors of another sequence"
        self._anchors.append(state.snapshot())
        self._holdings.note(Level.ANCHORS, size)
        return True

    def note_end(self, state: SequenceState) -> bool:
        """The state stands at the end of an answer. False when it cannot be kept."""
        self._give_back_end()
        if not state.fixed_bytes or not self._holdings.may_take(Level.END, state.fixed_bytes):
            return False
        self._end = state.snapshot()
        self._holdings.note(Level.END, self._end.bytes)
        return True

    def at(self, rows: int) -> Snapshot | None:
        """The last one at `rows` rows or before."""
        return max((kept for kept in self if kept.position <= rows), key=lambda kept: kept.position, default=None)

    def cut(self, rows: int) -> None:
        """The rows past the first `rows` are another sequence's from now on; with 0, all are."""
        while self._anchors and self._anchors[-1].position > rows:
            self._drop(self._anchors[-1])
        if self._end is not None and self._end.position > rows:
            self._give_back_end()

    @property
    def _bytes(self) -> int:
        return sum(anchor.bytes for anchor in self._anchors)

    def _most_crowded(self, newest: int) -> Snapshot | None:
        """Of all but the `newest` ones, that which leaves the smallest gap; of equals the oldest."""
        places = [0, *(anchor.position for anchor in self._anchors)]
        gaps = {place: after - before for before, place, after in zip(places, places[1:], places[2:], strict=False)}
        may_go = self._anchors[: max(0, len(self._anchors) - max(newest, 1))]
        return min(may_go, key=lambda anchor: gaps[anchor.position], default=None)

    def _drop(self, anchor: Snapshot) -> None:
        self._anchors.remove(anchor)
        self._holdings.note(Level.ANCHORS, -anchor.bytes)

    def _give_back(self, size: int) -> int:
        before = self._bytes
        while self._anchors and before - self._bytes < size:
            self._drop(self._most_crowded(NEWEST) or self._anchors[0])
        return before - self._bytes

    def _give_back_end(self, size: int = 0) -> int:
        given, self._end = (self._end.bytes if self._end else 0), None
        self._holdings.note(Level.END, -given)
        return given

    def check_integrity(self) -> None:
        places = [anchor.position for anchor in self._anchors]
        assert places == sorted(set(places)), "anchors out of order"
        assert self._bytes <= self._limit, "bytes of anchors"
