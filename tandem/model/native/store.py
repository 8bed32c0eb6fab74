"""Packed weights on disk: packed once, and only mapped at every start after that.

A file of the state folder holds everything `dense.read` asks for, one tensor behind the other and an index last. Its
name says what it was made of (the content of the weights, and the code that packed them) and what it holds (its own
sha256), so a file that is old, torn or not ours is never taken for another. It is written aside and renamed when it
is whole; where it cannot be written, weights are packed at every start.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from tandem.contract.content import remember, remembered_sha256
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
_PACKAGE: Final = Path(__file__).parents[1]


class Entry(Struct, frozen=True):
    """One tensor: bytes from `start`. A matrix has its size and bits, a norm none."""

    start: int
    shape: tuple[int, ...]
    outputs: int = 0
    inputs: int = 0
    bits: int = 0


class Index(Struct, frozen=True):
    source: str  # the weights' path
    compute: str
    entries: dict[str, Entry]


def read(
    state: Path | None, source: Path, compute: str, pack: Callable[[Wrap], Made], take: Callable[[Weights], Made]
) -> Made:
    """What `take` makes of the file that was kept of `source` at an earlier time; the first time, of one that is made
    now. `pack` reads `source`, asking for the same as `take` does, of what it is given for its `Weights`.

    Without `state`, and where nothing can be kept, `pack` alone.
    """
    if state is not None:
        try:
            kept = Store(state).open(source, compute, pack)
        except OSError as error:
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
        """Raises `OSError`."""
        key = _key(source, compute, self._state)
        if (path := self._find(key)) is None:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with _only_one(self._folder):
                path = self._find(key) or self._make(key, source, compute, pack)
        return Kept(path)

    def _find(self, key: str) -> Path | None:
        """The whole file of that key. One that is not what its name says is removed."""
        for path in self._folder.glob(f"{key}-*.packed"):
            if remembered_sha256(path, self._state)[:_NAMED] == path.stem.rpartition("-")[2]:
                return path
            log.info("packed weights in %s are damaged: they are packed anew", path)
            path.unlink()
        return None

    def _make(self, key: str, source: Path, compute: str, pack: Callable[[Wrap], object]) -> Path:
        part = self._folder / f"{key}.part"
        try:
            with part.open("wb") as file:
                writer = Writer(file)
                pack(lambda weights: Packing(weights, writer))
                sha256 = writer.finish(str(source), compute)
                file.flush()
                os.fsync(file.fileno())
            path = part.with_name(f"{key}-{sha256[:_NAMED]}.packed")
            part.replace(path)
            _sync(self._folder)
        finally:
            part.unlink(missing_ok=True)
        remember(path, self._state, sha256)
        self._remove_old(path, str(source), compute)
        log.info("weights are packed, and kept for the next start: %s in %s", format_bytes(path.stat().st_size), path)
        return path

    def _remove_old(self, path: Path, source: str, compute: str) -> None:
        """What an earlier content, or code, left of the same weights; what belongs to weights that are gone; and what
        nobody can read. Who has mapped one goes on with it."""
        for other in self._folder.glob("*.packed"):
            index = None if other == path else _index_of(other)
            is_same = index is not None and (index.source, index.compute) == (source, compute)
            if other != path and (index is None or is_same or not Path(index.source).exists()):
                other.unlink(missing_ok=True)
        for part in self._folder.glob("*.part"):  # of a process that was killed: whoever writes one holds the lock
            part.unlink(missing_ok=True)


class Writer:
    """A file of packed weights, as it grows."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0
        self._hash = hashlib.sha256()
        self._entries: dict[str, Entry] = {}

    def put(self, name: str, tensor: Tensor, **matrix: int) -> None:
        """Raises `OSError` before the disk is full: that helps nobody."""
        disk = os.fstatvfs(self._file.fileno())
        if (free := disk.f_bavail * disk.f_frsize) < tensor.nbytes + _SPARE:
            raise OSError(f"the disk has {format_bytes(free)} free, and {format_bytes(_SPARE)} are left alone")
        self._write(bytes(-self._at % _ALIGNED))
        self._entries[name] = Entry(self._at, tuple(tensor.shape), **matrix)
        self._write(tensor.contiguous().view(torch.uint8).numpy().data)

    def finish(self, source: str, compute: str) -> str:
        """Writes the index; returns the sha256 of the whole file."""
        index = msgspec.json.encode(Index(source, compute, self._entries))
        self._write(index)
        self._write(_LENGTH.pack(len(index)))
        return self._hash.hexdigest()

    def _write(self, data: bytes | memoryview) -> None:
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


def _key(source: Path, compute: str, state: Path) -> str:
    """What packed weights are made of: the numbers, how they are to be held, and the code that packs them."""
    files = [*sorted(source.glob("*.safetensors")), source / "config.json"] if source.is_dir() else [source]
    contents = [remembered_sha256(file, state) for file in files]
    code = hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(_PACKAGE.rglob("*.py")))).hexdigest()
    made_of = [contents, compute, code, str(torch.__version__)]
    return hashlib.sha256(msgspec.json.encode(made_of)).hexdigest()[:_NAMED]


def _name(parts: Sequence[tuple[str, int]]) -> str:
    return " ".join(name for name, _ in parts)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """One process packs at a time; another waits, and finds what it made. The kernel frees the lock of a dead one."""
    with (folder / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
