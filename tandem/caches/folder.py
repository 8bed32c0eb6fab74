"""The disk tier's folder: what is there, whose turn it is to go, and every touch of a file.

One thread uses it; others may look into `index`. Nothing is kept beside the chunks: their headers say what they are,
and their times of change when they were last used. A piece is used when one that goes on from it is, so only pieces
that nothing goes on from are given up, the one used longest ago first.
"""

from __future__ import annotations

import fcntl
import hashlib
import heapq
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from torch import Tensor

from tandem.caches.chunk_file import (
    DIGEST_SIZE,
    FILE_MODE,
    UNFINISHED,
    Corrupt,
    Kind,
    NotOurs,
    file_name,
    header_size,
    read_header,
    read_payload,
    write_file,
)
from tandem.caches.prefix import SECRET_SIZE, Index, Key, Piece
from tandem.errors import CannotStart

log = logging.getLogger("tandem.caches")

_LOCK: Final = "lock"
_SECRET: Final = "secret"
_SLACK: Final = 32  # one part in so many of the limit is freed with what is needed: giving up looks at all chunks


@dataclass(slots=True, eq=False)
class Chunk:
    """One piece on disk."""

    piece: Piece
    used: float  # seconds since the epoch
    sizes: dict[Kind, int] = field(default_factory=dict)  # bytes of its files

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def has_state(self) -> bool:
        return Kind.STATE in self.sizes


@dataclass(slots=True)
class FolderStats:
    """Since the engine started. Sizes are bytes."""

    chunks: int = 0  # there now, of this model
    bytes: int = 0  # there now, other models' included
    written: int = 0  # files
    read: int = 0  # files
    evicted: int = 0  # chunks that made room, or were too old
    corrupt: int = 0  # files that were not what had been written; they are gone
    failed: int = 0  # reads and writes that the system refused


class Folder:
    def __init__(
        self, path: Path, fingerprint: bytes, limit: int, max_age: float, clock: Callable[[], float] = time.time
    ) -> None:
        """`fingerprint` as a `Grid`'s; `limit`: bytes of all files; `max_age`: seconds since a chunk was last used.

        Raises `CannotStart` when the folder cannot be made, or another process has it.
        """
        self.path = path
        self.index: Index[Chunk] = Index()
        self.stats = FolderStats()
        self._limit = limit
        self._max_age = max_age
        self._clock = clock
        self._strangers: dict[Path, tuple[float, int]] = {}  # other models' files: when used, bytes
        self.is_failing = False  # the system refused the last read or write
        self._lock = -1
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            self._lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.secret = _secret(path / _SECRET)
        except OSError as error:
            self.close()
            why = "another process keeps its own there" if isinstance(error, BlockingIOError) else error
            raise CannotStart(f"conversations cannot be kept in {path}: {why}", "name another folder") from error
        self._tag = hashlib.blake2b(fingerprint, key=self.secret, digest_size=DIGEST_SIZE).digest()

    def close(self) -> None:
        """Another process may have it now."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- at the start ---

    def scan(self) -> None:
        """Find out what is there. What a dead process left unfinished, and what is not what it says, is deleted."""
        for kind in Kind:  # rows first: a state belongs to some
            for path in self._files(kind):
                try:
                    self._take_over(path)
                except Corrupt as corrupt:
                    self._report_corrupt(path, corrupt)
                    self._unlink(path)
                except OSError as error:
                    self._report_failure(path, error)
        self.expire()
        self._make_room(0)  # the limit may have been lowered

    def _files(self, kind: Kind) -> Iterator[Path]:
        try:
            names = [entry.name for entry in os.scandir(self.path)]
        except OSError as error:
            self._report_failure(self.path, error)
            return
        for name in names:
            if name.endswith(UNFINISHED):
                (self.path / name).unlink(missing_ok=True)
            elif name.endswith(file_name(b"", kind)):
                yield self.path / name

    def _take_over(self, path: Path) -> None:
        used = path.stat().st_mtime
        try:
            header = read_header(path, self._tag)
        except NotOurs:
            self._strangers[path] = (used, path.stat().st_size)
            self.stats.bytes += self._strangers[path][1]
            return
        if header.kind is Kind.ROWS:
            self._add(Chunk(header.piece, used), header.size)
        elif (chunk := self.index.get(header.piece.key)) is not None:
            self._add_state(chunk, header.size)
        else:
            path.unlink()

    # --- reading and writing ---

    def write(self, piece: Piece, kind: Kind, payload: Tensor) -> bool:
        """Keep it. False when it cannot be: the system refuses, there is no room for one so large, or a state's rows
        are not there. What a conversation's end of last time held is given up when it has grown."""
        chunk = self.index.get(piece.key)
        if kind is Kind.STATE and chunk is None:
            return False
        if chunk is not None and kind in chunk.sizes:
            return True
        size = header_size(piece.rows) + payload.nbytes
        path = self._path(piece.key, kind)
        try:
            if not self._make_room(size, keep=piece):
                return False
            write_file(path, self._tag, kind, piece, payload)
        except OSError as error:
            self._report_failure(path, error)
            return False
        self.is_failing = False
        self.stats.written += 1
        if chunk is not None:
            self._add_state(chunk, size)
        else:
            chunk = Chunk(piece.apart(), self._clock())
            self._drop_outgrown(piece)
            self._add(chunk, size)
        self._set_used(chunk, self._clock())
        return True

    def read(self, chunk: Chunk, kind: Kind) -> Tensor | None:
        """The payload; None when it cannot be had, and then it is no longer among what is there."""
        if self.index.get(chunk.piece.key) is not chunk or kind not in chunk.sizes:
            return None
        path = self._path(chunk.piece.key, kind)
        try:
            payload = read_payload(path, self._tag, kind, chunk.piece)
        except (Corrupt, NotOurs) as corrupt:
            self._report_corrupt(path, corrupt)
        except OSError as error:
            self._report_failure(path, error)
        else:
            self.is_failing = False
            self.stats.read += 1
            return payload
        if kind is Kind.ROWS:
            self._remove(chunk)
        else:
            self._remove_file(chunk, kind)
        return None

    def touch(self, keys: Iterable[Key]) -> None:
        """A sequence was used whose pieces these are, the last one first."""
        for key in keys:
            if (chunk := self.index.get(key)) is not None:
                self._set_used(chunk, self._clock())  # and by that what it goes on from
                return

    # --- giving up ---

    def expire(self) -> None:
        """Give up what was used too long ago."""
        too_old = self._clock() - self._max_age
        for path, (used, _) in list(self._strangers.items()):
            if used < too_old:
                self._remove_stranger(path)
        for chunk in self._oldest_first():
            if chunk.used >= too_old:
                return
            self._evict(chunk)

    def _make_room(self, size: int, keep: Piece | None = None) -> bool:
        """Whether `size` bytes fit under the limit now; other models' files go first. `keep` is about to be added."""
        if size > self._limit:
            return False
        if self.stats.bytes + size <= self._limit:
            return True
        spare = self._limit // _SLACK
        target = self._limit - size - (spare - spare % size if size else 0)  # of a small folder nothing is spared
        for path in sorted(self._strangers, key=lambda path: self._strangers[path]):
            if self.stats.bytes <= target:
                return True
            self._remove_stranger(path)
        for chunk in self._oldest_first():
            if self.stats.bytes <= target:
                break
            if keep is None or chunk.piece.key not in (keep.parent, keep.key):
                self._evict(chunk)
        return self.stats.bytes + size <= self._limit

    def _oldest_first(self) -> Iterator[Chunk]:
        """Chunks that nothing goes on from; when the caller removes one, that may be another."""
        leaves = [chunk for chunk in self.index if not self.index.children(chunk.piece.key)]
        heap = [(chunk.used, -chunk.piece.first, chunk.piece.key, chunk) for chunk in leaves]
        heapq.heapify(heap)
        while heap:
            *_, chunk = heapq.heappop(heap)
            yield chunk
            parent = self.index.get(chunk.piece.parent)
            if parent is not None and not self.index.children(parent.piece.key):
                heapq.heappush(heap, (parent.used, -parent.piece.first, parent.piece.key, parent))

    def _evict(self, chunk: Chunk) -> None:
        self.stats.evicted += 1
        self._remove(chunk)
        parent = self.index.get(chunk.piece.parent)
        if parent is not None and parent.used < chunk.used:
            self._set_used(parent, chunk.used)

    def _drop_outgrown(self, piece: Piece) -> None:
        for shorter in self.index.prefixes(piece):
            if not shorter.has_state:
                self._remove(shorter)

    # --- the books ---

    def _path(self, key: Key, kind: Kind) -> Path:
        return self.path / file_name(key, kind)

    def _add(self, chunk: Chunk, size: int) -> None:
        chunk.sizes = {Kind.ROWS: size}
        self.index.add(chunk)
        self.stats.chunks += 1
        self.stats.bytes += size

    def _add_state(self, chunk: Chunk, size: int) -> None:
        chunk.sizes = {**chunk.sizes, Kind.STATE: size}
        self.index.note_change()
        self.stats.bytes += size

    def _set_used(self, chunk: Chunk, used: float) -> None:
        chunk.used = used
        path = self._path(chunk.piece.key, Kind.ROWS)
        try:
            os.utime(path, (used, used))
        except OSError as error:
            self._report_failure(path, error)

    def _remove(self, chunk: Chunk) -> None:
        self.index.remove(chunk)
        self.stats.chunks -= 1
        for kind in chunk.sizes:
            self._remove_file(chunk, kind)

    def _remove_file(self, chunk: Chunk, kind: Kind) -> None:
        """It no longer counts, whether or not the system lets it go."""
        self.stats.bytes -= chunk.sizes[kind]
        chunk.sizes = {other: size for other, size in chunk.sizes.items() if other is not kind}
        self.index.note_change()
        self._unlink(self._path(chunk.piece.key, kind))

    def _remove_stranger(self, path: Path) -> None:
        self.stats.bytes -= self._strangers.pop(path)[1]
        self._unlink(path)

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._report_failure(path, error)

    def _report_failure(self, path: Path, error: OSError) -> None:
        """Said once until the disk works again."""
        self.stats.failed += 1
        if not self.is_failing:
            log.error("[caches] %s: %s; prompts are read instead until the disk works", path, error.strerror or error)
        self.is_failing = True

    def _report_corrupt(self, path: Path, corrupt: Exception) -> None:
        self.stats.corrupt += 1
        log.error("[caches] %s is removed: %s", path, str(corrupt) or "it is another model's")

    def check_integrity(self) -> None:
        self.index.check_integrity()
        chunks = list(self.index)
        strangers = sum(size for _, size in self._strangers.values())
        assert self.stats.bytes == sum(chunk.bytes for chunk in chunks) + strangers, "bytes on disk"
        assert self.stats.chunks == len(chunks), "chunks on disk"
        assert self.stats.bytes <= self._limit, "the limit"
        assert all(Kind.ROWS in chunk.sizes for chunk in chunks), "a state without rows"


def _secret(path: Path) -> bytes:
    """Of this folder, for good: without it the keys of its files are of no use."""
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        secret = b""
    if len(secret) != SECRET_SIZE:
        secret = secrets.token_bytes(SECRET_SIZE)
        unfinished = path.with_name(path.name + UNFINISHED)
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(file, "wb") as writing:
            writing.write(secret)
        unfinished.rename(path)
    return secret
