"""Found rows on their way into a state: what has arrived is loaded, piece by piece; no round waits for a disk."""

from __future__ import annotations

from collections.abc import Callable

from tandem.caches.disk import Chunk, Disk, Fetch, Kind, Wanted
from tandem.caches.found import Found, Step
from tandem.caches.shelf import Copy
from tandem.model.saved import Saved
from tandem.model.state import SequenceState, Snapshot


class Restore:
    """Device thread only. The state's rows up to `found.rows` must have memory."""

    def __init__(
        self, found: Found, state: SequenceState, first: int, disk: Disk | None, find: Callable[[], Found | None]
    ) -> None:
        """`first`: so many rows lie in the state already. `find` looks again when something could not be read."""
        self.is_done = False
        self.rows = 0  # when it is done: where the sequence goes on

    def advance(self, wait: float = 0.0) -> bool:
        """Load one piece when it has arrived, or arrives within `wait` seconds. Returns whether all is done."""
        raise NotImplementedError

    def finish(self) -> int:
        """Wait for all of it; returns the rows."""
        while not self.advance(wait=1.0):
            pass
        return self.rows

    def cancel(self) -> None:
        """Nobody needs it any more. The state must start over."""
        raise NotImplementedError


_ = (Chunk, Fetch, Kind, Wanted, Step, Copy, Saved, Snapshot)
