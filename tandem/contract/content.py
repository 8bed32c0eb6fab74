"""What a file holds, by its sha256: read once, then remembered while nothing about the file changes.

Large files are proved at every start, and what is made of them is filed under their content; reading gigabytes for
it each time would be most of a start. What is remembered stands in one document of the state folder, beside what the
kernel says of each file: size, inode, and when its bytes and anything else about it last changed. Nobody can set the
last of these times, so whatever was written to a file, by whatever way, it is read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

Report = Callable[[int, int], None]  # bytes read, bytes in all

_PIECE: Final = 1 << 20
_SETTLED: Final = 2_000_000_000  # ns; the coarsest clock of a file system: two changes within it may look like one


class Look(Struct, frozen=True):
    """What the kernel says of a file. Times are ns."""

    size: int
    inode: int
    modified: int
    changed: int


class Content(Struct, frozen=True):
    look: Look
    sha256: str


def sha256_of(path: Path, report: Report = lambda done, total: None) -> str:
    """Reads the whole file. Raises `OSError`."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            done += len(piece)
            report(done, total)
    return digest.hexdigest()


def remembered_sha256(path: Path, state: Path, report: Report = lambda done, total: None) -> str:
    """The file is read, and `report` hears of it, only where it is not what it was. Raises `OSError`."""
    if (known := recalled_sha256(path, state)) is not None:
        return known
    look = _look(path)
    sha256 = sha256_of(path, report)
    if _look(path) == look and time.time_ns() - max(look.modified, look.changed) > _SETTLED:
        remember(path, state, sha256)
    return sha256


def recalled_sha256(path: Path, state: Path) -> str | None:
    """Without reading the file: None where it is not what it was. Raises `OSError`."""
    known = _recall(state).get(str(path))
    return known.sha256 if known is not None and known.look == _look(path) else None


def remember(path: Path, state: Path, sha256: str) -> None:
    """What who wrote the file knows of it. Where nothing can be kept, it is read next time."""
    with contextlib.suppress(OSError):
        known = {name: content for name, content in _recall(state).items() if Path(name).exists()}
        known[str(path)] = Content(_look(path), sha256)
        document = _document(state)
        part = document.with_name(f".{document.name}.{os.getpid()}")
        part.write_bytes(msgspec.json.encode(known))
        part.replace(document)


def _recall(state: Path) -> dict[str, Content]:
    try:
        return msgspec.json.decode(_document(state).read_bytes(), type=dict[str, Content])
    except (OSError, msgspec.MsgspecError):
        return {}


def _document(state: Path) -> Path:
    return state / "contents.json"


def _look(path: Path) -> Look:
    seen = path.stat()
    return Look(seen.st_size, seen.st_ino, seen.st_mtime_ns, seen.st_ctime_ns)
