"""The disk tier as the device thread sees it: what is there, a place to leave copies, and reading ahead.

A thread of its own does everything that touches files; no round waits for it. It alone changes what is there, the
device thread only looks. What a slow disk cannot take in time is not kept; what cannot be read is read as a prompt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Final

from torch import Tensor

from tandem.caches.chunk_file import Kind
from tandem.caches.disk_thread import DiskThread, Fetch, Job, Stop, Touch, Write
from tandem.caches.folder import Chunk, Folder, FolderStats
from tandem.caches.prefix import Index, Key, Piece

_NOTHING: Final[Index[Chunk]] = Index()


@dataclass(frozen=True, slots=True)
class DiskStats:
    """Since the engine started."""

    folder: FolderStats
    dropped: int  # times that a copy found no room to wait in; it may come again
    waiting: int  # bytes that are still to be written
    is_scanned: bool  # what was there at the start is known


class Disk:
    def __init__(self, folder: Folder, waiting_limit: int) -> None:
        """`waiting_limit`: bytes of copies that may wait to be written; one copy may, however large."""
        self._folder = folder
        self._waiting_limit = waiting_limit
        self._inbox: SimpleQueue[Job] = SimpleQueue()
        self._waits: dict[tuple[Key, Kind], tuple[Write, int]] = {}  # with its bytes, in the order they are written
        self._waiting = 0  # bytes
        self._dropped = 0
        self._is_closed = False
        self._work = DiskThread(folder, self._inbox)
        self._thread = threading.Thread(target=self._work.run, name="disk-tier", daemon=True)
        self._thread.start()

    @property
    def stats(self) -> DiskStats:
        self._forget_done()
        return DiskStats(replace(self._folder.stats), self._dropped, self._waiting, self._work.is_scanned)

    @property
    def changes(self) -> int:
        """Of what is there, as far as it may be seen."""
        return self._folder.index.changes + 1 if self._work.is_scanned else 0

    @property
    def index(self) -> Index[Chunk]:
        """To look into only. Empty before the folder was looked through."""
        return self._folder.index if self._is_open else _NOTHING

    def is_on_its_way(self, piece: Piece, kind: Kind) -> bool:
        self._forget_done()
        return (piece.key, kind) in self._waits

    def has_room(self, size: int) -> bool:
        """Whether a copy of so many bytes would be taken now; one that would not is counted as dropped."""
        self._forget_done()
        may = (
            self._is_open
            and time.monotonic() >= self._work.paused_until
            and (not self._waiting or self._waiting + size <= self._waiting_limit)
        )
        self._dropped += not may
        return may

    def write(self, piece: Piece, kind: Kind, payload: Tensor) -> None:
        """Leave a copy, uint8 [bytes], that nobody changes any more. A state comes after its rows."""
        assert (piece.key, kind) not in self._waits, "written twice"
        write = Write(piece, kind, payload)
        self._waits[piece.key, kind] = write, payload.nbytes
        self._waiting += payload.nbytes
        self._inbox.put(write)

    def fetch(self, files: Sequence[tuple[Chunk, Kind]]) -> Fetch:
        """Begin to read these files, in order."""
        fetch = Fetch(files, self._inbox)
        if self._is_closed:
            fetch.arrived.put(None)  # nobody reads any more
        self._inbox.put(fetch)
        return fetch

    def touch(self, keys: Sequence[Key]) -> None:
        """A sequence is used whose pieces these are, the last one first."""
        self._inbox.put(Touch(keys))

    def close(self, timeout: float) -> bool:
        """Write what waits, as far as `timeout` seconds go. Whether the thread has ended."""
        self._is_closed = True
        self._inbox.put(Stop(time.monotonic() + timeout))
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def _is_open(self) -> bool:
        return self._work.is_scanned and not self._is_closed

    def _forget_done(self) -> None:
        while self._waits:
            oldest = next(iter(self._waits))
            write, size = self._waits[oldest]
            if not write.is_done:
                return
            del self._waits[oldest]
            self._waiting -= size
