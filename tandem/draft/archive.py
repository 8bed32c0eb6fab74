"""The lookup store's files and their index: what is kept, whose it is, and what is forgotten.

Each scope has a shelf of volumes (`<hash of the scope>-<number>.tokens`); no search ever sees two shelves. Nothing but
the volumes is kept: the index is built when a scope is first asked for. One thread uses an archive (`store` has it);
the views it gives may be read by any.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from tandem.draft.grams import LONGEST, GramIndex, View, Words
from tandem.draft.volume import (
    FILE_MODE,
    ForeignVolume,
    append_to,
    check_header,
    document,
    num_words_of,
    read_header,
    read_volume,
)
from tandem.errors import CannotStart

log = logging.getLogger("tandem.draft")

SIZES: Final = (4, 8)  # in much text of many kinds fewer than four tokens in a row say nothing
BYTES_A_TOKEN: Final = 16  # of memory: 5 a size of n-grams, 4 to 5 for itself; on disk it is 4 more
VOLUMES: Final = 16  # of a full store: forgetting half is deleting files, and nothing is written anew
_LEAST_NEW: Final = 16  # tokens; a shorter text is not worth a document
_MOST_COMPARED: Final = 16  # places at which a text may have been seen before

_NAME: Final = re.compile(r"([0-9a-f]{32})-(\d{8})\.tokens")
_LOCK: Final = "lock"


@dataclass(slots=True)
class _Volume:
    path: Path
    num_words: int


@dataclass(slots=True)
class _Shelf:
    volumes: list[_Volume] = field(default_factory=list)  # oldest first
    index: GramIndex | None = None  # None until its scope is asked for

    @property
    def num_words(self) -> int:
        return sum(volume.num_words for volume in self.volumes)


class Archive:
    def __init__(self, directory: Path, size: int, tokenizer: bytes, readonly: bool = False) -> None:
        """`size`: bytes of memory the tokens and their index may take, all scopes together. `tokenizer`: its SHA-256.

        Volumes of another tokenizer are deleted; a read-only archive passes over them. A directory that another
        process writes is read only. Raises `CannotStart` when the directory cannot be made or looked into.
        """
        self.most_words = size // BYTES_A_TOKEN
        self.readonly = readonly
        self._directory = directory
        self._tokenizer = tokenizer
        self._shelves: dict[str, _Shelf] = {}
        self._lock = -1
        try:
            if not readonly:
                _make_private(directory)
                self.readonly = not self._is_locked()
            self._find_volumes()
        except OSError as error:
            fix = "name another directory, or set `scope: request`"
            raise CannotStart(f"the lookup store in {directory} cannot be used: {error}", fix) from error

    @property
    def num_words(self) -> int:
        return sum(shelf.num_words for shelf in self._shelves.values())

    @property
    def index_bytes(self) -> int:
        """Memory that tokens and indexes take now."""
        return sum(shelf.index.num_bytes for shelf in self._shelves.values() if shelf.index)

    def view(self, scope: str) -> View:
        """What this scope's requests may find. Reads its volumes the first time. Raises `OSError`."""
        return self._index(self._shelf(scope)).view

    def add(self, scope: str, tokens: Words) -> None:
        """Keep what is new of a text. Raises `OSError` when it cannot be written; then nothing was.

        Of a text that would take more than a quarter of the archive, its end.
        """
        assert not self.readonly
        shelf = self._shelf(scope)
        known = _known(self._index(shelf).view, tokens)
        if len(tokens) - known < _LEAST_NEW:
            return
        words = document(tokens[max(0, known - LONGEST) :][-self.most_words // 4 :])
        self._make_room(len(words))
        self._write(scope, shelf, words)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def check_integrity(self) -> None:
        assert self.num_words <= self.most_words, "the cap"
        for shelf in self._shelves.values():
            assert shelf.index is None or shelf.index.num_words == shelf.num_words, "an index and its volumes"

    # --- shelves ---

    def _shelf(self, scope: str) -> _Shelf:
        return self._shelves.setdefault(_digest_of(scope), _Shelf())

    def _index(self, shelf: _Shelf) -> GramIndex:
        if shelf.index is None:
            index = GramIndex(SIZES)
            for volume in shelf.volumes:
                index.seal()
                words = read_volume(volume.path, self._tokenizer)
                index.append(words)
                volume.num_words = len(words)
            shelf.index = index
        return shelf.index

    def _write(self, scope: str, shelf: _Shelf, words: Words) -> None:
        index = self._index(shelf)
        if not shelf.volumes or shelf.volumes[-1].num_words >= self.most_words // VOLUMES:
            number = 1 + (int(shelf.volumes[-1].path.stem.partition("-")[2]) if shelf.volumes else 0)
            shelf.volumes.append(_Volume(self._directory / f"{_digest_of(scope)}-{number:08}.tokens", 0))
            index.seal()
        volume = shelf.volumes[-1]
        append_to(volume.path, volume.num_words, words, self._tokenizer)
        volume.num_words += len(words)
        index.append(words)

    def _make_room(self, num_words: int) -> None:
        """Whoever keeps most forgets first: a scope that writes much does not push the others out."""
        while self.num_words and self.num_words + num_words > self.most_words:
            self._forget_half(max(self._shelves.values(), key=lambda shelf: shelf.num_words))

    def _forget_half(self, shelf: _Shelf) -> None:
        """The oldest volumes, which end where a document ends."""
        held, dropped = shelf.num_words, 0
        while shelf.volumes and 2 * dropped < held:
            shelf.volumes[0].path.unlink(missing_ok=True)
            dropped += shelf.volumes.pop(0).num_words
        if shelf.index:
            if not shelf.volumes:
                shelf.index.seal()
            shelf.index.forget(dropped)
        log.info("lookup store: full, forgot %d of %d tokens of one scope", dropped, held)

    # --- the directory ---

    def _is_locked(self) -> bool:
        """Whether this process may write here."""
        self._lock = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("lookup store: another process writes %s; this one only reads", self._directory)
            self.close()
            return False
        return True

    def _find_volumes(self) -> None:
        num_foreign = 0
        for digest, path in self._paths():
            try:
                check_header(read_header(path), self._tokenizer)
            except ForeignVolume:
                num_foreign += 1
                if not self.readonly:
                    path.unlink()
            else:
                shelf = self._shelves.setdefault(digest, _Shelf())
                shelf.volumes.append(_Volume(path, num_words_of(path)))
        if num_foreign:
            verb = "are passed over" if self.readonly else "were deleted: starting over"
            log.warning("lookup store: %d volumes of another tokenizer %s", num_foreign, verb)
        if not self.readonly:
            self._make_room(0)  # the cap may have been lowered

    def _paths(self) -> Iterator[tuple[str, Path]]:
        """Volumes with their scope's digest, oldest first."""
        if self._directory.is_dir():
            for path in sorted(self._directory.iterdir()):
                if name := _NAME.fullmatch(path.name):
                    yield name[1], path


def _make_private(directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)


def _digest_of(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:32]


def _known(view: View, tokens: Words) -> int:
    """How many of a text's first tokens are on the shelf, in one document or one after the other.

    A chat's every turn brings all turns before it: they are kept once, each where it was new.
    """
    known = 0
    while len(tokens) - known > LONGEST:
        start = tokens[known : known + LONGEST].tolist()
        places = view.find(start)
        seen = places.positions[places.lengths == LONGEST][:_MOST_COMPARED]
        if not len(seen):
            break
        rest = tokens[known + LONGEST :]
        known += LONGEST + max(_same(view, place, rest) for place in seen.tolist())
    return known


def _same(view: View, place: int, tokens: Words) -> int:
    """How many of `tokens` stand at `place`."""
    there = view.words[place : min(place + len(tokens), view.end)]
    differs = np.flatnonzero(there != tokens[: len(there)])
    return int(differs[0]) if len(differs) else len(there)
