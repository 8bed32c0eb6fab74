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

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import torch

from tandem.contract.content import recalled_sha256, remember, remembered_sha256
from tandem.model.native.packed_file import NAMED, Kept, NotKept, Origin, Packing, Writer, index_of, or_not_kept
from tandem.units import format_bytes

if TYPE_CHECKING:
    from tandem.model.families.dense import Weights

log = logging.getLogger("tandem.engine")

Wrap = Callable[["Weights"], "Weights"]
Made = TypeVar("Made")

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
    "native/packed_file.py",
    "native/store.py",
    "weights/*.py",
)
"""What packing runs through: a change to any of these may change what a file should hold, and a change to the rest of
the package is no reason to pack gigabytes again."""


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
            with or_not_kept():
                self._folder.mkdir(mode=0o700, exist_ok=True)
            with _only_one(self._folder):
                path = self._find(origin.key) or self._make(origin, pack)
        with or_not_kept():
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
        with or_not_kept():
            for path in self._folder.glob(f"{key}-*.packed"):
                if remembered_sha256(path, self._state)[:NAMED] == path.stem.rpartition("-")[2]:
                    return path
                log.info("packed weights in %s are damaged: they are packed anew", path)
                _remove(path)
        return None

    def _make(self, origin: Origin, pack: Callable[[Wrap], object]) -> Path:
        with or_not_kept():
            for part in self._folder.glob("*.part"):  # of a process that was killed: whoever writes one holds the lock
                part.unlink(missing_ok=True)
        with Writer(self._folder / f"{origin.key}.part") as writer:
            pack(lambda weights: Packing(weights, writer))
            sha256 = writer.finish(origin)
            path = self._folder / f"{origin.key}-{sha256[:NAMED]}.packed"
            with or_not_kept():
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
            index = index_of(other)
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


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """One process packs at a time; another waits, and finds what it made. The kernel frees the lock of a dead one."""
    with or_not_kept():
        file = (folder / "lock").open("wb")
    with file:
        with or_not_kept():
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
