"""Conversations kept and found again: what the engine asks, of memory and disk as one.

None of this changes what is written: rows are loaded bit for bit as they were, only for tokens that were all compared,
and only within one scope. Which rows are worth keeping (final, on the grid or off it) the caller says.
Device thread only; nothing here waits for a disk but `Restore.finish` and `close`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tandem.caches.disk import Disk, DiskStats
from tandem.caches.found import Found, Source
from tandem.caches.holdings import Holdings
from tandem.caches.prefix import Grid, Prompt, Words
from tandem.caches.restore import Restore
from tandem.caches.shelf import Hold, Shelf
from tandem.memory.budget import Level
from tandem.model.state import SequenceState, Snapshot


@dataclass(slots=True)
class CacheStats:
    """Since the engine started."""

    lookups: int = 0  # restores asked for
    hits: int = 0
    restored: dict[Source, int] = field(default_factory=dict)  # rows, by where they came from
    given_back: int = 0  # pieces that left memory
    refused: int = 0  # copies that neither limit nor budget had room for
    disk: DiskStats | None = None


class Caches:
    def __init__(
        self, grid: Grid, holdings: Holdings, shelf: Shelf, disk: Disk | None = None, *, any_row: bool
    ) -> None:
        """`any_row`: a row's bits do not depend on the pass that wrote it, so that rows are good up to any one of
        them; otherwise a sequence goes on from the grid."""

    # --- finding ---

    def prompt(self, scope: str, tokens: Sequence[int] | Words) -> Prompt:
        """A sequence to ask for or to keep, made once for each; `tokens` are not changed any more."""
        raise NotImplementedError

    def find(self, prompt: Prompt, state: SequenceState) -> Found | None:
        """What memory and disk hold of it for such a state. At least its last token is left to be read.

        Cheap enough for every waiting request at every boundary: about a microsecond a chunk, and nothing is read.
        """
        raise NotImplementedError

    def prefetch(self, prompt: Prompt, found: Found) -> None:
        """Begin to read from disk what a waiting request will need; `restore` goes on from there."""
        raise NotImplementedError

    def restore(self, prompt: Prompt, found: Found, state: SequenceState, first: int = 0) -> Restore:
        """Bring what was found into a state, whose first `first` rows are right already."""
        raise NotImplementedError

    def load(self, prompt: Prompt, found: Found, state: SequenceState, first: int = 0) -> int:
        """`restore`, waited for. Returns the rows after which the sequence goes on; fewer than were found, down to
        none, when something could not be read."""
        return self.restore(prompt, found, state, first).finish()

    # --- keeping ---

    def park(self, prompt: Prompt, rows: int, state: SequenceState, anchors: Iterable[Snapshot] = ()) -> bool:
        """Move a whole conversation aside: into memory, or when it does not fit there onto the disk (spill).

        False when some of its rows will not be found again. `anchors`: snapshots of it, wherever one was taken.
        """
        raise NotImplementedError

    def store_head(self, prompt: Prompt, rows: int, state: SequenceState, anchors: Iterable[Snapshot] = ()) -> bool:
        """Keep the first `rows` rows for every conversation that begins with them. False when there is no room."""
        raise NotImplementedError

    def pin(self, prompt: Prompt, rows: int, state: SequenceState, anchors: Iterable[Snapshot] = ()) -> Hold | None:
        """Keep what a client asked to keep, until `release`. None when there is no room."""
        raise NotImplementedError

    def stash(self, prompt: Prompt, rows: int, state: SequenceState) -> Hold | None:
        """Copy aside the first `rows` rows, which a guest will overwrite. None when there is no room.

        `unstash` puts them back. The conversation's snapshots stay with whoever has them.
        """
        raise NotImplementedError

    def unstash(self, hold: Hold, state: SequenceState) -> int:
        """Put stashed rows back and forget them. Returns how many, from the first, are right again: fewer when memory
        was wanted meanwhile. The rows behind them were never touched. A state that cannot rewind is to be restored
        to a snapshot."""
        raise NotImplementedError

    def release(self, hold: Hold) -> None:
        """A pin or stash nobody needs any more."""
        raise NotImplementedError

    def write_behind(self, prompt: Prompt, rows: int, state: SequenceState, anchors: Iterable[Snapshot] = ()) -> int:
        """Hand the disk those of the first `rows` rows that it lacks, and the anchors; rows off the grid too.

        Cheap when it lacks none. Returns how many pieces it had no time for: ask again later.
        """
        raise NotImplementedError

    # --- the engine's ---

    def give_back(self, level: Level, size: int) -> int:
        """Let go of at least `size` bytes of a level, or all it has; returns the bytes that are free now."""
        raise NotImplementedError

    @property
    def stats(self) -> CacheStats:
        raise NotImplementedError

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits for the disk, as far as `timeout` seconds go."""
        raise NotImplementedError

    def check_integrity(self) -> None:
        raise NotImplementedError
