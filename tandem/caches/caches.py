"""Conversations kept and found again: what the engine asks, of memory and disk as one.

None of this changes what is written: rows are loaded bit for bit as they were, only for tokens that were all compared,
and only within one scope. Which rows are worth keeping (final, on the grid or off it) the caller says.
Device thread only; nothing here waits for a disk but `Restore.finish` and `close`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tandem.caches.chunk_file import Kind
from tandem.caches.disk import Disk, DiskStats
from tandem.caches.found import Found, Source, find
from tandem.caches.holdings import Holdings
from tandem.caches.prefix import Grid, Piece, Prompt, Words
from tandem.caches.restore import Restore
from tandem.caches.shelf import Copy, Hold, Shelf
from tandem.memory.budget import Level
from tandem.model.state import SequenceState, Snapshot

log = logging.getLogger("tandem.caches")


@dataclass(slots=True)
class CacheStats:
    """Since the engine started."""

    lookups: int = 0  # sequences that were looked for
    restores: int = 0  # of them, those that something was found for and brought to a state
    hits: int = 0  # of these, those whose rows came
    restored: dict[Source, int] = field(default_factory=dict)  # rows, by where they came from
    given_back: int = 0  # pieces that left memory
    refused: int = 0  # copies that neither limit nor budget had room for
    disk: DiskStats | None = None  # None without a disk tier


class Caches:
    def __init__(
        self, grid: Grid, holdings: Holdings, shelf: Shelf, disk: Disk | None, *, any_row: bool, can_rewind: bool
    ) -> None:
        """`any_row`: a row's bits do not depend on the pass that wrote it, so that a sequence may go on behind any
        row; otherwise it goes on from the grid. `can_rewind` as the states'."""
        self.holdings = holdings
        self._grid = grid
        self._shelf = shelf
        self._disk = disk
        self._any_row = any_row
        self._can_rewind = can_rewind
        self._stats = CacheStats()

    # --- finding ---

    def prompt(self, scope: str, tokens: Sequence[int] | Words) -> Prompt:
        """A sequence to ask for or to keep, made once for each; `tokens` are not changed any more."""
        return self._grid.prompt(scope, tokens)

    def find(self, prompt: Prompt) -> Found | None:
        """What memory and disk hold of it. At least its last token is left to be read.

        Cheap enough for every waiting request at every boundary: microseconds a chunk, and nothing is read.
        """
        self._stats.lookups += not prompt.is_sought
        prompt.is_sought = True
        return find(prompt, self._shelf, self._disk, self._any_row, self._can_rewind)

    def restore(self, prompt: Prompt, found: Found) -> Restore:
        """On its way to a state that need not be chosen yet; what is on disk is read ahead from now on."""
        self._shelf.touch(step.origin for step in found.steps if isinstance(step.origin, Copy))
        if self._disk is not None:
            self._disk.touch([step.origin.piece.key for step in reversed(found.steps)])
        return Restore(found, self._disk, self._can_rewind, partial(self.find, prompt), self._count)

    def load(self, prompt: Prompt, found: Found, state: SequenceState, first: int = 0) -> int:
        """Restored and waited for. Returns the rows behind which the sequence goes on: fewer than were found, down to
        none, when something could not be read."""
        restore = self.restore(prompt, found)
        restore.begin(state, first)
        return restore.finish()

    def _count(self, restore: Restore) -> None:
        self._stats.restores += 1
        self._stats.hits += restore.rows > 0
        for source, rows in restore.loaded.items():
            self._stats.restored[source] = self._stats.restored.get(source, 0) + rows

    # --- keeping ---

    def park(self, prompt: Prompt, rows: int, state: SequenceState, anchors: Iterable[Snapshot] = ()) -> bool:
        """Move a whole conversation aside: into memory, and onto the disk what that lacks (with no room in memory,
        that is a spill). `anchors`: snapshots of it, wherever one was taken.

        False when some of its rows will not be found again.
        """
        anchors = tuple(anchors)
        hold = self._shelf.put(prompt, rows, state, Level.PARK, anchors)
        missing = self.write_behind(prompt, rows, state, anchors)
        return hold is not None or (self._disk is not None and not missing)

    def store_head(self, prompt: Prompt, rows: int, state: SequenceState, anchors: Iterable[Snapshot] = ()) -> bool:
        """Keep the first `rows` rows for every conversation that begins with them. False when there is no room."""
        return self._shelf.put(prompt, rows, state, Level.STORE, anchors) is not None

    def pin(self, prompt: Prompt, rows: int, state: SequenceState, anchors: Iterable[Snapshot] = ()) -> Hold | None:
        """Keep what a client asked to keep, until `release`. None when there is no room."""
        return self._shelf.put(prompt, rows, state, Level.PIN, anchors)

    def stash(self, prompt: Prompt, rows: int, state: SequenceState) -> Hold | None:
        """Copy aside the first `rows` rows, which a guest will overwrite; `unstash` puts them back. None when there is
        no room. The conversation's snapshots stay with whoever has them."""
        return self._shelf.put(prompt, rows, state, Level.STASH)

    def unstash(self, hold: Hold, state: SequenceState) -> int:
        """Put stashed rows back, and release them. Returns how many, from the first, are right again: fewer when the
        memory was wanted meanwhile. A state that cannot rewind is to be restored to a snapshot."""
        right = self._shelf.put_back(hold, state)
        self.release(hold)
        return right

    def release(self, hold: Hold) -> None:
        """A pin or a stash that nobody needs any more."""
        self._shelf.release(hold)

    def write_behind(self, prompt: Prompt, rows: int, state: SequenceState, anchors: Iterable[Snapshot] = ()) -> int:
        """Hand the disk what it lacks of the first `rows` rows, and of the anchors. Cheap when that is nothing.

        Returns how many pieces it had no room for: ask again later, while the rows are still there.
        """
        if self._disk is None:
            return 0
        snapshots = {anchor.position: anchor for anchor in anchors}
        pieces = list(prompt.pieces(rows))
        for place, piece in enumerate(pieces):
            try:
                is_taken = self._write(self._disk, piece, state, snapshots.get(piece.end))
            except OSError as error:  # the system has no memory for a copy
                log.warning("[caches] nothing is written behind for now: %s", error)
                is_taken = False
            if not is_taken:
                return len(pieces) - place
        return 0

    def _write(self, disk: Disk, piece: Piece, state: SequenceState, snapshot: Snapshot | None) -> bool:
        exactly = snapshot is not None  # a state belongs to the end of its rows
        chunk = disk.index.holder(piece, exactly)
        if chunk is None and not disk.is_on_its_way(piece, Kind.ROWS):
            if not disk.has_room(state.saved_bytes(piece.rows)):
                return False
            copy = self._shelf.index.holder(piece, exactly=True)
            saved = copy.saved if copy else state.save(piece.first, piece.end)
            disk.write(piece.apart(), Kind.ROWS, saved.data)
        if snapshot is None or (chunk and chunk.has_state) or disk.is_on_its_way(piece, Kind.STATE):
            return True
        if not disk.has_room(snapshot.bytes):
            return False
        disk.write(piece.apart(), Kind.STATE, snapshot.pack())
        return True

    # --- the engine's ---

    @property
    def changes(self) -> int:
        """As long as it is the same, `find` answers the same."""
        return self._shelf.index.changes + (self._disk.changes if self._disk is not None else 0)

    @property
    def room(self) -> int:
        """Bytes that a stash may take at most."""
        return self._shelf.room

    def give_back(self, level: Level, size: int) -> int:
        """Let go of at least `size` bytes of a level, or of all it has; returns the bytes that are free now."""
        return self.holdings.give_back(level, size)

    @property
    def stats(self) -> CacheStats:
        return replace(
            self._stats,
            restored=dict(self._stats.restored),
            given_back=self._shelf.num_given_back,
            refused=self._shelf.num_refused,
            disk=self._disk.stats if self._disk is not None else None,
        )

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits for the disk, as far as `timeout` seconds go."""
        if self._disk is not None:
            self._disk.close(timeout)

    def check_integrity(self) -> None:
        self._shelf.check_integrity()
