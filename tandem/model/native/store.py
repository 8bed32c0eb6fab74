"""Packed weights on disk: packed once, and only mapped at every start after that.

A file of the state folder holds everything `dense.read` asks for, one tensor behind the other and an index last. Its
name says what it was made of (the content of the weights, and the code that packed them) and what it holds (its own
sha256), so a file that is old, torn or not ours is never taken for another. It is written aside and renamed when it
is whole; where it cannot be written, weights are packed at every start. What no start would open again is removed by
the next one, of whatever model.

Its pages are the page cache's, shared by all processes that map them and there again after a restart. They are locked:
every step reads all of them, so pages that the kernel drops would cost a disk's speed at each step; and locked pages
are memory that is in use to whoever looks at `MemAvailable`, as weights are. Where the system does not allow a process
to lock so much (`ulimit -l`), the file is read into memory of the process's own.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import logging
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from tandem.contract.content import recalled_sha256, remember, remembered_sha256
from tandem.model.native.blocks import Blocks
from tandem.model.saved import host_memory
from tandem.units import MIB, format_bytes

if TYPE_CHECKING:
    from tandem.model.families.dense import Weights

log = logging.getLogger("tandem.engine")

Wrap = Callable[["Weights"], "Weights"]
Made = TypeVar("Made")

_ALIGNED: Final = 64  # bytes; where a tensor begins
_NAMED: Final = 32  # digits of each hash in a name
_LENGTH: Final = struct.Struct("<Q")  # of the index, the last bytes of a file
_SPARE: Final = 512 * MIB  # of disk, for the ledger and logs
_PER_SOURCE: Final = 2  # forms of the same weights that are kept: who tries another finds the first one again
_PACKAGE: Final = Path(__file__).parents[1]
_CODE: Final = (
    "families/architecture.py",
    "families/dense.py",
    "families/directory.py",
    "families/fields.py",
    "families/file.py",
    "families/header.py",
    "families/names.py",
    "native/blocks.py",
    "native/store.py",
    "weights/*.py",
)
"""What packing runs through: a change to any of these may change what a file should hold, and a change to the rest of
the package is no reason to pack gigabytes again."""


class NotKept(Exception):
    """Packed weights cannot be written, or read, here; `str()` says why. Nothing is wrong with their source."""


class Entry(Struct, frozen=True):
    """One tensor: bytes from `start`. A matrix has its size and bits, a norm none."""

    start: int
    shape: tuple[int, ...]
    outputs: int = 0
    inputs: int = 0
    bits: int = 0


class Origin(Struct, frozen=True):
    """What packed weights are made of: the numbers, how they are to be held, and the code that packs them."""

    source: str  # the weights' path
    contents: dict[str, str]  # its files, and the sha256 of each
    compute: str
    code: str  # sha256, also of the version of torch

    @property
    def key(self) -> str:
        """The same for the same numbers, wherever they lie."""
        made_of = [list(self.contents.values()), self.compute, self.code]
        return hashlib.sha256(msgspec.json.encode(made_of)).hexdigest()[:_NAMED]


class Index(Struct, frozen=True):
    origin: Origin
    entries: dict[str, Entry]


def read(
    state: Path | None, source: Path, compute: str, pack: Callable[[Wrap], Made], take: Callable[[Weights], Made]
) -> Made:
    """What `take` makes of the file that was kept of `source` at an earlier time; the first time, of one that is made
    now. `pack` reads `source`, asking for the same as `take` does, of what it is given for its `Weights`.

    Without `state`, and where nothing can be kept, `pack` alone. Raises what `pack` raises, and `OSError` where
    `source` cannot be read.
    """
    if state is not None:
        try:
            kept = Store(state).open(source, compute, pack)
        except NotKept as error:
            log.warning("packed weights are not kept, every start packs them anew: %s", error)
        else:
            return take(kept)
    return pack(lambda weights: weights)


class Store:
    """The packed weights of one state folder."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._folder = state / "packed"

    def open(self, source: Path, compute: str, pack: Callable[[Wrap], object]) -> Kept:
        """Raises `NotKept`, and what `pack` raises."""
        origin = self._origin(source, compute)
        if (path := self._find(origin.key)) is None:
            with _or_not_kept():
                self._folder.mkdir(mode=0o700, exist_ok=True)
            with _only_one(self._folder):
                path = self._find(origin.key) or self._make(origin, pack)
        with _or_not_kept():
            kept = Kept(path)
        with suppress(OSError):  # of no use to this start
            _note_use(path)
            self._tidy(path, origin)
        return kept

    def _origin(self, source: Path, compute: str) -> Origin:
        files = [*sorted(source.glob("*.safetensors")), source / "config.json"] if source.is_dir() else [source]
        contents = {str(file): remembered_sha256(file, self._state) for file in files}
        return Origin(str(source), contents, compute, _code())

    def _find(self, key: str) -> Path | None:
        """The whole file of that key. One that is not what its name says is removed."""
        with _or_not_kept():
            for path in self._folder.glob(f"{key}-*.packed"):
                if remembered_sha256(path, self._state)[:_NAMED] == path.stem.rpartition("-")[2]:
                    return path
                log.info("packed weights in %s are damaged: they are packed anew", path)
                _remove(path)
        return None

    def _make(self, origin: Origin, pack: Callable[[Wrap], object]) -> Path:
        with _or_not_kept():
            for part in self._folder.glob("*.part"):  # of a process that was killed: whoever writes one holds the lock
                part.unlink(missing_ok=True)
        with Writer(self._folder / f"{origin.key}.part") as writer:
            pack(lambda weights: Packing(weights, writer))
            sha256 = writer.finish(origin)
            path = self._folder / f"{origin.key}-{sha256[:_NAMED]}.packed"
            with _or_not_kept():
                writer.path.replace(path)
                _sync(self._folder)
                size = path.stat().st_size
        remember(path, self._state, sha256)
        log.info("weights are packed, and kept for the next start: %s in %s", format_bytes(size), path)
        return path

    def _tidy(self, path: Path, origin: Origin) -> None:
        """Remove what no start would open, and of `origin`'s source what was not used for longest. Reads nothing but
        indexes. Who has mapped one goes on with it."""
        beside: list[Path] = []  # of the same source
        for other in self._folder.glob("*.packed"):
            if other == path:
                continue
            index = _index_of(other)
            if index is None or not self._may_be_opened(index.origin, origin):
                _remove(other)
            elif index.origin.source == origin.source:
                beside.append(other)
        for other in sorted(beside, key=_used_at, reverse=True)[_PER_SOURCE - 1 :]:
            _remove(other)

    def _may_be_opened(self, other: Origin, now: Origin) -> bool:
        """A source that was changed since anybody read it may be anything: whoever reads it next finds out."""
        if other.code != now.code or not all(Path(name).exists() for name in other.contents):
            return False
        if other.source == now.source:
            return other.contents == now.contents
        known = {name: recalled_sha256(Path(name), self._state) for name in other.contents}
        return all(known[name] in (None, sha256) for name, sha256 in other.contents.items())


class Writer:
    """A file of packed weights, as it grows. It is gone behind the `with`, unless it was renamed there. Everything
    raises `NotKept`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _or_not_kept():
            self._file = path.open("wb")
        self._at = 0
        self._hash = hashlib.sha256()
        self._entries: dict[str, Entry] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """What ended the writing matters, not what ends the file."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def put(self, name: str, tensor: Tensor, **matrix: int) -> None:
        """Raises before the disk is full, too: that helps nobody."""
        with _or_not_kept():
            disk = os.fstatvfs(self._file.fileno())
        if (free := disk.f_bavail * disk.f_frsize) < tensor.nbytes + _SPARE:
            raise NotKept(f"the disk has {format_bytes(free)} free, and {format_bytes(_SPARE)} are left alone")
        self._write(bytes(-self._at % _ALIGNED))
        self._entries[name] = Entry(self._at, tuple(tensor.shape), **matrix)
        self._write(tensor.contiguous().view(torch.uint8).numpy().data)

    def finish(self, origin: Origin) -> str:
        """Writes the index, and all of it to the disk; returns the sha256 of the whole file."""
        index = msgspec.json.encode(Index(origin, self._entries))
        self._write(index)
        self._write(_LENGTH.pack(len(index)))
        with _or_not_kept():
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._hash.hexdigest()

    def _write(self, data: bytes | memoryview) -> None:
        with _or_not_kept():
            self._file.write(data)
        self._hash.update(data)
        self._at += memoryview(data).nbytes


class Packing:
    """Implements `dense.Weights`: what is asked for goes into the file, and the answer's matrices are empty, so that
    one of them is in memory at a time. A survey's matrices and norms, which have no memory, pass through."""

    def __init__(self, weights: Weights, writer: Writer) -> None:
        self._weights = weights
        self._writer = writer

    def matrix(self, width: int, parts: Sequence[tuple[str, int]]) -> Blocks:
        blocks = self._weights.matrix(width, parts)
        if blocks.data.is_meta:
            return blocks
        assert blocks.data.dtype is torch.uint8
        self._writer.put(_name(parts), blocks.data, outputs=blocks.outputs, inputs=blocks.inputs, bits=blocks.bits)
        return Blocks(blocks.data.new_empty(0), blocks.outputs, blocks.inputs, blocks.bits)

    def norm(self, name: str, width: int) -> Tensor:
        norm = self._weights.norm(name, width)
        if not norm.is_meta:
            assert norm.dtype is torch.float32
            self._writer.put(name, norm)
        return norm


class Kept:
    """Implements `dense.Weights` on a file that `Packing` wrote: views of its pages, nothing is copied."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError`."""
        index = _index_of(path)
        if index is None:
            raise OSError(f"{path} has no index")
        self._entries = index.entries
        self._data = in_memory(path)

    def matrix(self, width: int, parts: Sequence[tuple[str, int]]) -> Blocks:
        entry = self._entries[_name(parts)]
        return Blocks(self._view(entry, torch.uint8), entry.outputs, entry.inputs, entry.bits)

    def norm(self, name: str, width: int) -> Tensor:
        return self._view(self._entries[name], torch.float32)

    def _view(self, entry: Entry, dtype: torch.dtype) -> Tensor:
        size = torch.Size(entry.shape).numel() * dtype.itemsize
        return self._data[entry.start : entry.start + size].view(dtype).view(entry.shape)


def in_memory(path: Path) -> Tensor:
    """uint8 [bytes] of a file, not to be written to: its pages in the page cache, locked there, or else a copy.

    Raises `OSError`.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        # Private and writable because torch wants a writable buffer, then read-only because locking what can be written
        # would copy it. A write ends the process.
        pages = mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        mapped = torch.frombuffer(pages, dtype=torch.uint8)
        libc, where = ctypes.CDLL(None), (ctypes.c_void_p(mapped.data_ptr()), ctypes.c_size_t(size))
        if libc.mprotect(*where, mmap.PROT_READ) == 0 and libc.mlock(*where) == 0:
            return mapped
        copy = host_memory(size)
        if file.readinto(copy.numpy().data) != size:
            raise OSError(f"{path} became shorter while it was read")
    return copy


def _index_of(path: Path) -> Index | None:
    """None for a file that has none."""
    try:
        with path.open("rb") as file:
            end = file.seek(-_LENGTH.size, os.SEEK_END)
            (length,) = _LENGTH.unpack(file.read())
            file.seek(end - length)
            return msgspec.json.decode(file.read(length), type=Index)
    except (OSError, ValueError, OverflowError, msgspec.MsgspecError):
        return None


def _code() -> str:
    files = sorted(path for pattern in _CODE for path in _PACKAGE.glob(pattern))
    code = [str(torch.__version__).encode(), *(path.read_bytes() for path in files)]
    return hashlib.sha256(b"\0".join(code)).hexdigest()


def _last_use(path: Path) -> Path:
    """An empty file whose time says when `path` was opened last: to change a time of `path` itself would be a change of
    it, and have it read for its sha256."""
    return path.with_suffix(".used")


def _note_use(path: Path) -> None:
    _last_use(path).touch(0o600)
    now = time.time_ns()  # finer than the clock by which the kernel would say it
    os.utime(_last_use(path), ns=(now, now))


def _used_at(path: Path) -> int:
    try:
        return _last_use(path).stat().st_mtime_ns
    except OSError:
        return 0


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _last_use(path).unlink(missing_ok=True)


def _name(parts: Sequence[tuple[str, int]]) -> str:
    return " ".join(name for name, _ in parts)


@contextmanager
def _or_not_kept() -> Iterator[None]:
    """Around what is done to files of the store, and nothing else."""
    try:
        yield
    except OSError as error:
        raise NotKept(str(error)) from error


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """One process packs at a time; another waits, and finds what it made. The kernel frees the lock of a dead one."""
    with _or_not_kept():
        file = (folder / "lock").open("wb")
    with file:
        with _or_not_kept():
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
