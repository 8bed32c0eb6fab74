"""The disk tier as the device thread sees it: what is there, a place to leave copies, and reading ahead.

A thread of its own does everything that touches files; no round waits for it. It alone changes what is there, the
device thread only looks. What a slow disk cannot take in time is not kept; what cannot be read is read as a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from tandem.caches.prefix import Index, Key, Piece


class Kind(StrEnum):
    """What a file holds of a piece; the end of its name."""

    ROWS = "rows"
    STATE = "state"  # behind its last row


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """One piece on disk."""

    piece: Piece
    size: int  # bytes of its file


@dataclass(slots=True)
class DiskStats:
    """Since the engine started. Sizes are bytes."""

    chunks: int = 0  # there now
    bytes: int = 0  # there now
    written: int = 0  # files
    dropped: int = 0  # copies that nobody had time or room to write
    evicted: int = 0  # files that made room, or were too old
    read: int = 0  # files
    corrupt: int = 0  # files that were not what had been written, and are gone
    failed: int = 0  # reads and writes that the system refused
    is_scanned: bool = False  # what was there at the start is known


@dataclass(frozen=True, slots=True)
class Wanted:
    piece: Piece
    kind: Kind


class Fetch:
    """Files read ahead, in order, a few at a time: what was taken makes room for the next."""

    @property
    def has_failed(self) -> bool:
        """The next file cannot be had; it is no longer among what is there."""
        raise NotImplementedError

    @property
    def is_done(self) -> bool:
        """All were taken."""
        raise NotImplementedError

    def take(self, wait: float = 0.0) -> Tensor | None:
        """The next file's payload, uint8 [bytes]; None when it does not come within `wait` seconds, or has failed."""
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError


class Disk:
    stats: DiskStats

    def match(self, piece: Piece) -> tuple[Chunk, int] | None:
        """As `Index.match`."""
        raise NotImplementedError

    def has_state(self, key: Key) -> bool:
        raise NotImplementedError

    def wants(self, piece: Piece, kind: Kind, size: int) -> bool:
        """Whether a copy of `size` bytes is worth making: it is neither there nor on its way, and may be queued.
        Counts what is dropped."""
        raise NotImplementedError

    def write(self, piece: Piece, kind: Kind, payload: Tensor) -> None:
        """Leave a copy to be written, which nobody changes any more."""
        raise NotImplementedError

    def fetch(self, wanted: Sequence[Wanted]) -> Fetch:
        raise NotImplementedError

    def touch(self, pieces: Sequence[Piece]) -> None:
        """They are used now, the first most recently."""
        raise NotImplementedError

    def close(self, timeout: float) -> None:
        """Write what waits, as far as `timeout` seconds go."""
        raise NotImplementedError


_ = Index
