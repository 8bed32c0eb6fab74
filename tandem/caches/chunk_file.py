"""One file of the disk tier: a piece's rows, or the state behind them, and everything that proves what it is.

    header    what this is, of which model, which rows, and the payload's size and checksum; then the piece's tokens;
              all of it under a checksum of its own
    payload   as `tandem.model.saved` lays it out

A file appears under its name whole or not at all: it is written beside it, flushed and renamed. Whatever happens to it
afterwards shows in the checksums. Names are keys, from which no token can be told.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

import numpy as np
from torch import Tensor

from tandem.caches.prefix import KEY_SIZE, Key, Piece
from tandem.model.saved import host_memory

VERSION: Final = 1
FILE_MODE: Final = 0o600
UNFINISHED: Final = ".new"  # the end of a name that is being written
DIGEST_SIZE: Final = 16

_MAGIC: Final = b"tandemkv"
_FIXED: Final = struct.Struct(f"<8sHH{DIGEST_SIZE}s{KEY_SIZE}s{KEY_SIZE}sIIQIQ")
_PAD: Final = 64  # bytes; where the payload begins
_AT_ONCE: Final = 1 << 14  # bytes: a header of up to 4,000 tokens in one read


class Kind(IntEnum):
    """What a file holds of a piece."""

    ROWS = 0
    STATE = 1  # the fixed tensors behind its last row


class NotOurs(Exception):
    """Another model's."""


class Corrupt(Exception):
    """It is not what was written."""


@dataclass(frozen=True, slots=True, eq=False)
class Header:
    kind: Kind
    piece: Piece
    payload: int  # bytes
    checksum: tuple[int, int]  # of the payload

    @property
    def size(self) -> int:
        """Of the whole file, in bytes."""
        return header_size(self.piece.rows) + self.payload


def header_size(rows: int) -> int:
    return -(-(_FIXED.size + 4 * rows + DIGEST_SIZE) // _PAD) * _PAD


def file_name(key: Key, kind: Kind) -> str:
    return f"{key.hex()}.{kind.name.lower()}"


def write_file(path: Path, tag: bytes, kind: Kind, piece: Piece, payload: Tensor) -> int:
    """Write a whole file; returns its size. Raises `OSError`, and nothing has appeared then.

    `tag` [DIGEST_SIZE] stands for the model. `payload`: uint8 [bytes], on the host.
    """
    data = payload.numpy().data
    start = _pack(tag, Header(kind, piece, payload.nbytes, _checksum(payload)))
    unfinished = path.with_name(path.name + UNFINISHED)
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            _write_all(file, start)
            _write_all(file, data)
            os.fdatasync(file)  # a name must not outlive a power cut that its bytes did not
        finally:
            os.close(file)
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return len(start) + payload.nbytes


def read_header(path: Path, tag: bytes) -> Header:
    """Raises `NotOurs`, `Corrupt`, or `OSError`."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = _read_header(file, tag)
    finally:
        os.close(file)
    if path.name != file_name(header.piece.key, header.kind):
        raise Corrupt("it has another name than its header says")
    return header


def read_payload(path: Path, tag: bytes, kind: Kind, piece: Piece) -> Tensor:
    """The payload of a file that holds exactly this piece: uint8 [bytes]. Every token is compared, every byte summed.

    Raises `NotOurs`, `Corrupt`, or `OSError`.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = _read_header(file, tag)
        if not _is_same(header, kind, piece):
            raise Corrupt("it holds another piece than its name says")
        payload = host_memory(header.payload)
        _read_all(file, payload.numpy().data, header_size(piece.rows))
    finally:
        os.close(file)
    if _checksum(payload) != header.checksum:
        raise Corrupt("its bytes are not those that were written")
    return payload


def _is_same(header: Header, kind: Kind, piece: Piece) -> bool:
    there = header.piece
    names = (header.kind, there.key, there.parent, there.first) == (kind, piece.key, piece.parent, piece.first)
    return names and np.array_equal(there.tokens, piece.tokens)


# --- the header ---


def _pack(tag: bytes, header: Header) -> bytes:
    piece = header.piece
    fields = (tag, piece.key, piece.parent, piece.first, piece.rows, header.payload, *header.checksum)
    body = _FIXED.pack(_MAGIC, VERSION, header.kind, *fields) + piece.tokens.astype("<i4").tobytes()
    body = body.ljust(header_size(piece.rows) - DIGEST_SIZE, b"\0")
    return body + _digest(body)


def _read_header(file: int, tag: bytes) -> Header:
    size, start = os.fstat(file).st_size, os.pread(file, _AT_ONCE, 0)
    if len(start) < _FIXED.size:
        raise Corrupt("it ends within its header")
    magic, version, kind, theirs, key, parent, first, rows, payload, *checksum = _FIXED.unpack_from(start)
    if (magic, version) != (_MAGIC, VERSION):
        raise Corrupt(f"it does not begin as a file of format {VERSION}")
    if (end := header_size(rows)) + payload != size:
        raise Corrupt("it has another length than its header says")
    if end > len(start):
        start = os.pread(file, end, 0)
    if start[end - DIGEST_SIZE : end] != _digest(start[: end - DIGEST_SIZE]):
        raise Corrupt("its header is not what was written")
    if theirs != tag:
        raise NotOurs
    tokens = np.frombuffer(start, "<i4", rows, _FIXED.size).copy()
    return Header(Kind(kind), Piece(key, parent, first, tokens), payload, (checksum[0], checksum[1]))


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_SIZE).digest()


def _checksum(payload: Tensor) -> tuple[int, int]:
    """Two that have nothing in common, 96 bits together. A digest would take three times as long as the disk."""
    data = payload.numpy()
    return zlib.crc32(data.data), int(data.view("<u8").sum(dtype=np.uint64))


# --- bytes ---


def _write_all(file: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _read_all(file: int, into: memoryview, at: int) -> None:
    while into:
        count = os.preadv(file, [into], at)
        if not count:
            raise Corrupt("it ends within its payload")
        into, at = into[count:], at + count
