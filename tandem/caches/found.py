"""What memory and disk hold of a prompt, together: where each of its first rows would come from. Nothing is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tandem.caches.disk import Chunk, Disk
from tandem.caches.prefix import Prompt
from tandem.caches.shelf import Copy, Shelf


class Source(StrEnum):
    """Where rows come from; the words of a request's `cache_source`."""

    STORE = "store"
    STASH = "stash"
    PARK = "park"
    PIN = "pin"
    DISK = "disk"


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The first `rows` rows of one piece, from the one or the other."""

    first: int
    rows: int
    origin: Copy | Chunk

    @property
    def end(self) -> int:
        return self.first + self.rows

    @property
    def is_whole(self) -> bool:
        """All rows of what is kept: a state kept behind it is that of this place."""
        return self.rows == self.origin.piece.rows

    @property
    def source(self) -> Source:
        return Source.DISK if isinstance(self.origin, Chunk) else Source(self.origin.level.name.lower())


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A sequence can go on after the first `rows` rows of a prompt once `steps` are loaded."""

    rows: int
    steps: tuple[Step, ...]

    @property
    def source(self) -> Source:
        """Of the last rows: what made this a hit, whatever held the head."""
        return self.steps[-1].source

    @property
    def disk_rows(self) -> int:
        """Of `rows`, those that must be read from disk."""
        return sum(step.rows for step in self.steps if isinstance(step.origin, Chunk))


def find(prompt: Prompt, shelf: Shelf, disk: Disk | None, any_row: bool, can_rewind: bool) -> Found | None:
    """The most rows of a prompt after which its sequence can go on; None when there are none.

    At least the last token is left to be read, for its logits. Rows end on the grid, or with `any_row` anywhere;
    a sequence that cannot rewind goes on only where its state was kept.
    """
    steps = list(_walk(prompt, shelf, disk))
    while steps and not _may_end(steps[-1], disk, prompt.chunk, any_row, can_rewind):
        steps.pop()
    return Found(steps[-1].end, tuple(steps)) if steps else None


def _walk(prompt: Prompt, shelf: Shelf, disk: Disk | None) -> Iterator[Step]:
    """From the root to where neither goes on. Memory is asked first; on disk there may be more."""
    for piece in prompt.pieces(max(0, len(prompt.tokens) - 1)):
        best: tuple[Copy | Chunk, int] | None = shelf.index.match(piece)
        if disk and (best is None or best[1] < piece.rows) and (read := disk.match(piece)):
            best = max(best, read, key=lambda match: match[1]) if best else read
        if best is None:
            return
        yield Step(piece.first, best[1], best[0])
        if best[1] < prompt.chunk:
            return


def _may_end(step: Step, disk: Disk | None, chunk: int, any_row: bool, can_rewind: bool) -> bool:
    if can_rewind:
        return any_row or step.end % chunk == 0
    has_state = isinstance(step.origin, Copy) and step.origin.snapshot is not None
    return step.is_whole and (has_state or (disk is not None and disk.has_state(step.origin.piece.key)))
