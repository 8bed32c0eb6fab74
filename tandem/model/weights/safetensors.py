"""safetensors: what stands in a checkpoint, from headers alone, and its bytes without keeping them cached.

A shard is an 8-byte length, a JSON header and the tensors' bytes. Headers are read and checked in full before any
tensor is: a truncated shard or a file that is not one is named at once, whatever its size. Knows bytes, not torch.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from tandem.errors import CannotStart

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
HEADER_LIMIT: Final = 100_000_000  # the format's own
PIECE: Final = 8 << 20
"""Bytes copied before their pages are given back: what loading takes beside the weights themselves."""

_MAP_NORESERVE: Final = 0x4000
"""Linux's. A mapping nothing is written to needs no promise of memory; `mmap` names the flag from Python 3.13 on."""

DTYPE_BYTES: Final = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


class WrongWeights(CannotStart):
    """A weights file is not what it should be. The sentence names the file; `help` says what to do."""


class Entry(Struct, frozen=True, gc=False):
    """Where one tensor lies. A struct because checkpoints of many experts hold some 300,000 of them."""

    file: Path
    name: str
    dtype: str  # as the format spells it: BF16, F8_E4M3
    shape: tuple[int, ...]
    start: int  # byte in the file
    stop: int

    @property
    def bytes(self) -> int:
        return self.stop - self.start


def read_directory(directory: Path) -> dict[str, Entry]:
    """Every tensor of a checkpoint directory: the shards its index names, or all its safetensors files."""
    index = directory / INDEX
    if not index.exists():
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise WrongWeights(f"{directory} holds no safetensors file", "point at a directory with the weights in it")
        return {name: entry for file in files for name, entry in read_header(file).items()}

    places: dict[str, str] = _json(index).get("weight_map", {})
    shards = {name: directory / name for name in sorted(set(places.values()))}
    absent = [name for name, file in shards.items() if not file.exists()]
    if absent:
        raise WrongWeights(f"{index} names {', '.join(absent)}, which is not there", "fetch the missing shards")
    entries = {name: entry for file in shards.values() for name, entry in read_header(file).items()}
    for name, shard in places.items():
        if name not in entries:
            raise WrongWeights(f"{index} places `{name}` in {shard}, which does not hold it", _FETCH_AGAIN)
    return entries


def read_header(file: Path) -> dict[str, Entry]:
    """The tensors of one shard. Raises `WrongWeights` for a file that is absent, truncated or something else."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            text = stream.read(length) if 0 < length <= HEADER_LIMIT else b""
    except OSError as error:
        raise WrongWeights(f"{file} cannot be read: {error.strerror}") from None
    if not text:
        raise WrongWeights(f"{file} is not a safetensors file: its first 8 bytes are no header length", _FETCH_AGAIN)
    if len(text) < length:
        raise WrongWeights(f"{file} is truncated: its header alone is {length:,} bytes, it has {size:,}", _FETCH_AGAIN)
    try:
        header = _HEADER.decode(text)
        header.pop("__metadata__", None)
        if not all(spec.dtype for spec in header.values()):
            raise ValueError("a tensor of no type")
    except (msgspec.DecodeError, ValueError):
        raise WrongWeights(f"{file} is not a safetensors file: its header does not read as one", _FETCH_AGAIN) from None
    entries = {name: _entry(file, name, spec, 8 + length) for name, spec in header.items()}
    needed = max((entry.stop for entry in entries.values()), default=8 + length)
    if size < needed:
        raise WrongWeights(f"{file} is truncated: it should have {needed:,} bytes and has {size:,}", _FETCH_AGAIN)
    return entries


class _Spec(Struct, gc=False):
    """A tensor as a header has it. Everything may be absent because `__metadata__` stands among them."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    data_offsets: tuple[int, int] = (0, 0)


_HEADER: Final = msgspec.json.Decoder(dict[str, _Spec])


def _entry(file: Path, name: str, spec: _Spec, base: int) -> Entry:
    (start, stop), size = spec.data_offsets, DTYPE_BYTES.get(spec.dtype)
    if size is None:
        raise WrongWeights(f"{file}: `{name}` is stored as {spec.dtype}, which is not supported")
    if stop - start != prod(spec.shape) * size or start < 0:
        raise WrongWeights(
            f"{file}: `{name}` is {list(spec.shape)} of {spec.dtype} but takes {stop - start:,} bytes", _FETCH_AGAIN
        )
    return Entry(file, name, spec.dtype, spec.shape, base + start, base + stop)


_FETCH_AGAIN: Final = "fetch this file again"


def read_config(directory: Path) -> dict[str, Any]:
    """`config.json` of a checkpoint directory."""
    return _json(directory / CONFIG)


def _json(file: Path) -> dict[str, Any]:
    try:
        read = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise WrongWeights(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise WrongWeights(f"{file} is not JSON: {error}", _FETCH_AGAIN) from None
    if not isinstance(read, dict):
        raise WrongWeights(f"{file} holds no JSON object", _FETCH_AGAIN)
    return read


class Mapping:
    """One shard mapped into memory. Read pages are given back, to the process's size and to the page cache."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_RDONLY)
        try:
            # Private and writable only because torch wants a writable buffer; nothing writes to it.
            self.memory = mmap.mmap(
                self._descriptor, 0, mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            )
        except BaseException:
            os.close(self._descriptor)
            raise

    def pieces(self, entry: Entry, align: int) -> Iterator[tuple[int, int]]:
        """(start, stop) bytes of `entry` in steps of about `PIECE`, whole multiples of `align`; a piece's pages are
        given back when the next one is asked for."""
        step = max(align, PIECE // align * align)
        for start in range(entry.start, entry.stop, step):
            stop = min(start + step, entry.stop)
            yield start, stop
            self.give_back(start, stop)

    def give_back(self, start: int, stop: int) -> None:
        self.forget(start, stop)
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        os.posix_fadvise(self._descriptor, first, stop - first, os.POSIX_FADV_DONTNEED)

    def announce(self, start: int, count: int) -> None:
        """Bytes that will be read soon, one by one all over the file: the kernel fetches them meanwhile."""
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        self.memory.madvise(mmap.MADV_WILLNEED, first, start + count - first)

    def forget(self, start: int, stop: int) -> None:
        """Take pages out of the process's size, but leave them to the page cache."""
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        self.memory.madvise(mmap.MADV_DONTNEED, first, stop - first)

    def close(self) -> None:
        """The kernel reads ahead of what is asked for: that goes back here, with whatever no piece held whole."""
        self.memory.close()
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._descriptor)
