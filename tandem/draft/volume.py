"""One file of the lookup store: token ids as they were read and written, document behind document.

    64 bytes    what this is, and whose tokens: a mark and the tokenizer's SHA-256
    documents   each in 32-bit little-endian words: count, CRC-32 of count and tokens, BOUNDARY, tokens, BOUNDARY

It only grows. A document counts when its checksum is right; a process that dies while it writes leaves a tail that
does not count. The words are searched as they lie here, headers among them: no token equals a boundary, and between
two boundaries stand two words, fewer than any match that is found.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Final

import numpy as np

from tandem.draft.grams import BOUNDARY, Words

FILE_MODE: Final = 0o600
DOCUMENT_WORDS: Final = 4  # beside the tokens

_MARK: Final = b"tandem tokens 1\n"
_DIGEST: Final = 32
_HEADER: Final = 64


class ForeignVolume(Exception):
    """It was written with another tokenizer, or by something else: its numbers mean other words."""


def document(tokens: Words) -> Words:
    """As it lies in a volume."""
    body = tokens.astype("<u4")
    ends = (np.array([word], "<u4") for word in (len(body), _checksum(body), BOUNDARY))
    return np.concatenate([*ends, body, np.array([BOUNDARY], "<u4")])


def read_volume(path: Path, tokenizer: bytes) -> Words:
    """All whole documents, in order, as one array with their boundaries.

    Raises `ForeignVolume`, and `OSError` when the file cannot be read.
    """
    data = path.read_bytes()
    check_header(data[:_HEADER], tokenizer)
    usable = max(0, len(data) - _HEADER) // 4
    words = np.frombuffer(data, "<u4", usable, min(_HEADER, len(data)))
    return words[: _whole(words)].astype(np.uint32)


def check_header(start: bytes, tokenizer: bytes) -> None:
    """Raises `ForeignVolume`. A header that was cut short belongs to whoever began it: nothing stands behind it."""
    header = _header(tokenizer)
    if not header.startswith(start[:_HEADER]):
        raise ForeignVolume


def append_to(path: Path, num_words: int, words: Words, tokenizer: bytes) -> None:
    """Write behind the first `num_words` words of the volume, which is made when it is not there.

    Raises `OSError`; the volume then ends where it did.
    """
    end = _HEADER + 4 * num_words
    data = words.astype("<u4").tobytes()
    if not num_words:
        data, end = _header(tokenizer) + data, 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        os.ftruncate(file, end)  # a tail that does not count
        try:
            _write_at(file, data, end)
        except OSError:
            os.ftruncate(file, end)
            raise
    finally:
        os.close(file)


def num_words_of(path: Path) -> int:
    """At most; a tail that does not count is among them. Raises `OSError`."""
    return max(0, path.stat().st_size - _HEADER) // 4


def read_header(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEADER)


def _write_at(file: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def _header(tokenizer: bytes) -> bytes:
    assert len(tokenizer) == _DIGEST
    return (_MARK + tokenizer).ljust(_HEADER, b"\0")


def _checksum(tokens: Words) -> int:
    return zlib.crc32(tokens.tobytes(), zlib.crc32(len(tokens).to_bytes(4, "little")))


def _whole(words: Words) -> int:
    """Words of the documents from the start on up to the first that is not whole."""
    at = 0
    while at + DOCUMENT_WORDS <= len(words):
        count, checksum, boundary = words[at : at + 3].tolist()
        end = at + DOCUMENT_WORDS + count
        if boundary != BOUNDARY or end > len(words) or words[end - 1] != BOUNDARY:
            break
        if _checksum(words[at + 3 : end - 1]) != checksum:
            break
        at = end
    return at
