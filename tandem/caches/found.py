"""What memory and disk hold of a prompt, together: where each of its first rows would come from. Nothing is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from tandem.caches.disk import Disk
from tandem.caches.folder import Chunk
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


def find(prompt: Prompt, shelf: Shelf, disk: Disk | None, any_row: bool, can_rewind: bool) -> Found | None:
    """The most rows of a prompt after which its sequence can go on; None when there are none.

    At least the last token is left to be read, for its logits. Rows end on the grid, or with `any_row` anywhere;
    a sequence that cannot rewind goes on only where its state was kept.
    """
    steps = list(_walk(prompt, shelf, disk, whole=not can_rewind))
    while steps:
        last = steps[-1]
        if _has_state(last.origin, disk) if not can_rewind else any_row or last.end % prompt.chunk == 0:
            return Found(last.end, tuple(steps))
        steps.pop()
    return None


def _walk(prompt: Prompt, shelf: Shelf, disk: Disk | None, whole: bool) -> Iterator[Step]:
    """From the first row to where neither goes on. Memory is asked first; on disk there may be more."""
    for piece in prompt.pieces(max(0, len(prompt.tokens) - 1)):
        best: tuple[Copy | Chunk, int] | None = shelf.index.match(piece, whole)
        if disk is not None and (best is None or best[1] < piece.rows):
            there = disk.index.match(piece, whole)
            best = there if there and (best is None or best[1] < there[1]) else best
        if best is None:
            return
        yield Step(piece.first, best[1], best[0])
        if best[1] < prompt.chunk:
            return


def _has_state(origin: Copy | Chunk, disk: Disk | None) -> bool:
    if isinstance(origin, Copy) and origin.snapshot is not None:
        return True
    return disk is not None and (chunk := disk.index.get(origin.piece.key)) is not None and chunk.has_state
