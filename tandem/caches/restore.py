"""Found rows on their way into a state: what has arrived is loaded, piece by piece; no round waits for a disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from tandem.caches.chunk_file import Kind
from tandem.caches.disk import Disk
from tandem.caches.disk_thread import Fetch
from tandem.caches.folder import Chunk
from tandem.caches.found import Found, Source, Step
from tandem.caches.shelf import Copy
from tandem.model.saved import Saved
from tandem.model.state import SequenceState, Snapshot

PATIENCE: Final = 0.05  # seconds between two looks of one who waits


@dataclass(slots=True, eq=False)
class Restore:
    """Made for a request that may still wait: reading ahead begins at once. `begin` it when the request has its slot,
    then `advance` until it is done. Device thread only.

    What cannot be read is looked for again elsewhere: a bad file costs its own rows and those behind them.
    """

    found: Found
    disk: Disk | None
    can_rewind: bool
    find: Callable[[], Found | None]
    done: Callable[[Restore], None]  # is told when it is
    is_done: bool = False
    rows: int = 0  # once it is done: the sequence goes on behind so many rows; at 0 it starts over
    loaded: dict[Source, int] = field(default_factory=dict)  # rows, by where they came from
    _state: SequenceState | None = None
    _right: int = 0  # so many first rows of the state are this sequence's
    _steps: deque[Step] = field(default_factory=deque)
    _fetch: Fetch | None = None

    def __post_init__(self) -> None:
        self._plan(self.found)

    def begin(self, state: SequenceState, first: int = 0) -> None:
        """Into this state. Its first `first` rows are this sequence's already, and a place where it may go on; those
        up to `found.rows` must have memory."""
        assert self._state is None, "begun twice"
        self._state, self._right = state, first
        if first:
            self._plan(self.found)

    def advance(self, wait: float = 0.0) -> bool:
        """Load one piece, if it has arrived or arrives within `wait` seconds. Returns whether all is done."""
        assert self._state is not None, "begin it first"
        if not self.is_done:
            if self._steps:
                self._load_rows(self._state, self._steps[0], wait)
            elif self.can_rewind:
                self._finish(self.found.rows)
            else:
                self._load_state(self._state, self.found.steps[-1].origin, wait)
        return self.is_done

    def finish(self) -> int:
        """Wait for all of it; returns the rows."""
        while not self.advance(PATIENCE):
            pass
        return self.rows

    def cancel(self) -> None:
        """Nobody needs it any more. A state it had begun on starts over."""
        if self._fetch is not None:
            self._fetch.cancel()

    def _plan(self, found: Found) -> None:
        self.cancel()
        self.found = found
        self._steps = deque(step for step in found.steps if step.end > self._right)
        files = [(step.origin, Kind.ROWS) for step in self._steps if isinstance(step.origin, Chunk)]
        if self.disk is not None:
            if not self.can_rewind and (chunk := self._chunk_of_state(found.steps[-1].origin)) is not None:
                files.append((chunk, Kind.STATE))
            self._fetch = self.disk.fetch(files) if files else None

    def _chunk_of_state(self, origin: Copy | Chunk) -> Chunk | None:
        """Where the state is to be read from, unless memory has it."""
        if isinstance(origin, Chunk):
            return origin
        return self.disk.index.get(origin.piece.key) if self.disk is not None and origin.snapshot is None else None

    def _load_rows(self, state: SequenceState, step: Step, wait: float) -> None:
        if isinstance(step.origin, Copy):
            saved = step.origin.saved
        elif (payload := self._take(wait)) is not None:
            saved = Saved(step.first, step.origin.piece.rows, payload)
        else:
            return
        state.load(saved, step.rows)
        self._right = step.end
        self.loaded[step.source] = self.loaded.get(step.source, 0) + step.rows
        self._steps.popleft()

    def _load_state(self, state: SequenceState, origin: Copy | Chunk, wait: float) -> None:
        snapshot: Snapshot | None = origin.snapshot if isinstance(origin, Copy) else None
        if snapshot is None and (payload := self._take(wait)) is not None:
            snapshot = state.unpack(payload, self.found.rows)
        if snapshot is not None:
            state.restore(snapshot)
            self._finish(self.found.rows)

    def _take(self, wait: float) -> Tensor | None:
        """The next file, or None when there is none yet, or never will be: then there is a new plan."""
        if self._fetch is not None and (payload := self._fetch.take(wait)) is not None:
            return payload
        if self._fetch is None or self._fetch.has_failed:
            found = self.find()
            if found is None or (self.can_rewind and found.rows <= self._right):
                self._finish(self._right if self.can_rewind else 0)
            else:
                self._plan(found)
        return None

    def _finish(self, rows: int) -> None:
        self.rows, self.is_done = rows, True
        self.cancel()
        self.done(self)
