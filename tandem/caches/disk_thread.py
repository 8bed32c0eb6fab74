"""What the disk tier's thread does, one step at a time: reading comes before writing, and neither is waited for.

Jobs come in by the inbox and their results lie in them: each field of a job is changed by one side only.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final

from torch import Tensor

from tandem.caches.chunk_file import Kind
from tandem.caches.folder import Chunk, Folder
from tandem.caches.prefix import Key, Piece
from tandem.units import MIB

log = logging.getLogger("tandem.caches")

READ_AHEAD: Final = 64 * MIB  # bytes that a fetch holds before somebody takes them; one file more than that
PAUSE: Final = 30.0  # seconds without writing after rows were refused
TIDY_EVERY: Final = 600.0  # seconds between two looks for what is too old


@dataclass(slots=True, eq=False)
class Write:
    piece: Piece
    kind: Kind
    payload: Tensor | None  # uint8 [bytes], which nobody changes any more; None when it is done, or given up

    @property
    def is_done(self) -> bool:
        return self.payload is None


@dataclass(frozen=True, slots=True)
class Touch:
    """A sequence is used whose pieces these are, the last one first."""

    keys: Sequence[Key]


@dataclass(frozen=True, slots=True)
class Stop:
    deadline: float  # monotonic: what is not written by then is lost


@dataclass(slots=True, eq=False)
class Fetch:
    """Files read ahead, in order; what was taken makes room for the next."""

    files: Sequence[tuple[Chunk, Kind]]
    inbox: SimpleQueue[Job]
    has_failed: bool = False  # the next file cannot be had; it is no longer among what is there
    is_cancelled: bool = False
    taken: int = 0  # bytes
    arrived: SimpleQueue[Tensor | None] = field(default_factory=SimpleQueue)
    num_read: int = 0  # files; the disk thread's
    read: int = 0  # bytes; the disk thread's

    def take(self, wait: float = 0.0) -> Tensor | None:
        """The next file's payload, uint8 [bytes]; None when it does not come within `wait` seconds, or has failed."""
        try:
            payload = self.arrived.get(timeout=wait) if wait else self.arrived.get_nowait()
        except Empty:
            return None
        if payload is None:
            self.has_failed = True
            return None
        self.taken += payload.nbytes
        self.inbox.put(self)
        return payload

    def cancel(self) -> None:
        self.is_cancelled = True

    @property
    def is_over(self) -> bool:
        return self.is_cancelled or self.num_read == len(self.files)

    @property
    def may_read(self) -> bool:
        return not self.is_over and self.read - self.taken < READ_AHEAD


Job = Write | Touch | Stop | Fetch


class DiskThread:
    """`run` is the thread; a test may call `receive` and `step` instead."""

    def __init__(self, folder: Folder, inbox: SimpleQueue[Job]) -> None:
        self.folder = folder
        self.is_scanned = False
        self.paused_until = 0.0  # monotonic; nothing is written before
        self._inbox = inbox
        self._writes: deque[Write] = deque()
        self._fetches: deque[Fetch] = deque()
        self._stop: Stop | None = None
        self._tidy_at = time.monotonic() + TIDY_EVERY

    def run(self) -> None:
        began = time.monotonic()
        self.scan()
        took = time.monotonic() - began
        log.info("[caches] %d chunks on disk, looked through in %.1f s", self.folder.stats.chunks, took)
        while not self.is_over:
            try:
                self.receive()
                self.step()
            except Exception:  # a tier that fails costs reading again, never a request
                log.exception("the disk tier stumbled; it goes on")
        for fetch in self._fetches:
            fetch.arrived.put(None)  # nobody is to wait for it
        self.folder.close()

    def scan(self) -> None:
        try:
            self.folder.scan()
        except Exception:
            log.exception("the disk tier could not look through its folder")
        self.is_scanned = True

    @property
    def is_over(self) -> bool:
        if self._stop is None:
            return False
        return not self._writes or time.monotonic() > self._stop.deadline

    @property
    def _is_idle(self) -> bool:
        return not self._writes and not any(fetch.may_read for fetch in self._fetches)

    def receive(self) -> None:
        """Take all jobs that have come in; with nothing to do, wait for one."""
        try:
            job = self._inbox.get(timeout=TIDY_EVERY) if self._is_idle else self._inbox.get_nowait()
            while True:
                self._accept(job)
                job = self._inbox.get_nowait()
        except Empty:
            pass

    def _accept(self, job: Job) -> None:
        match job:
            case Write():
                self._writes.append(job)
            case Fetch():
                if job not in self._fetches:
                    self._fetches.append(job)
            case Touch(keys=keys):
                self.folder.touch(keys)
            case Stop():
                self._stop = job

    def step(self) -> None:
        """Read one file, or else write one; tidy up when it is time."""
        if reading := next((fetch for fetch in self._fetches if fetch.may_read), None):
            self._read(reading)
        elif self._writes:
            self._write(self._writes.popleft())
        if (now := time.monotonic()) >= self._tidy_at:
            self._tidy_at = now + TIDY_EVERY
            self.folder.expire()
        self._fetches = deque(fetch for fetch in self._fetches if not fetch.is_over)

    def _read(self, fetch: Fetch) -> None:
        payload = None
        try:
            payload = self.folder.read(*fetch.files[fetch.num_read])
        finally:
            fetch.num_read = fetch.num_read + 1 if payload is not None else len(fetch.files)
            fetch.read += payload.nbytes if payload is not None else 0
            fetch.arrived.put(payload)

    def _write(self, write: Write) -> None:
        try:
            if write.payload is not None and time.monotonic() >= self.paused_until:
                is_kept = self.folder.write(write.piece, write.kind, write.payload)
                if not is_kept and write.kind is Kind.ROWS:  # or the same rows would be copied for it again and again
                    self.paused_until = time.monotonic() + PAUSE
        finally:
            write.payload = None
