"""The file of one model's packed weights: how it is written, and how it is mapped."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from tandem.model.native.blocks import Blocks
from tandem.model.saved import host_memory
from tandem.units import MIB, format_bytes

if TYPE_CHECKING:
    from tandem.model.families.dense import Weights

_ALIGNED: Final = 64  # bytes; where a tensor begins
NAMED: Final = 32  # digits of each hash in a name
_LENGTH: Final = struct.Struct("<Q")  # of the index, the last bytes of a file
_SPARE: Final = 512 * MIB  # of disk, for the ledger and logs


class NotKept(Exception):
    """Packed weights cannot be written, or read, here; `str()` says why. Nothing is wrong with their source."""


@contextmanager
def or_not_kept() -> Iterator[None]:
    """Around what is done to files of the store, and nothing else."""
    try:
        yield
    except OSError as error:
        raise NotKept(str(error)) from error


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
        return hashlib.sha256(msgspec.json.encode(made_of)).hexdigest()[:NAMED]


class Index(Struct, frozen=True):
    origin: Origin
    entries: dict[str, Entry]


class Writer:
    """A file of packed weights, as it grows. It is gone behind the `with`, unless it was renamed there. Everything
    raises `NotKept`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with or_not_kept():
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
        with or_not_kept():
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
        with or_not_kept():
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._hash.hexdigest()

    def _write(self, data: bytes | memoryview) -> None:
        with or_not_kept():
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
        index = index_of(path)
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


def index_of(path: Path) -> Index | None:
    """None for a file that has none."""
    try:
        with path.open("rb") as file:
            end = file.seek(-_LENGTH.size, os.SEEK_END)
            (length,) = _LENGTH.unpack(file.read())
            file.seek(end - length)
            return msgspec.json.decode(file.read(length), type=Index)
    except (OSError, ValueError, OverflowError, msgspec.MsgspecError):
        return None


def _name(parts: Sequence[tuple[str, int]]) -> str:
    return " ".join(name for name, _ in parts)
