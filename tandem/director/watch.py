"""Sees edits of the documents: the only place that uses watchfiles.

Folders are watched, not files, so that an editor that saves by renaming is seen. A single file mounted into a
container gives its folder no events, and network file systems give none at all: every document's size and times are
therefore also looked at a few times a second. Only content counts; a touch is no edit.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping
from pathlib import Path
from typing import Final

from watchfiles import Change, awatch

POLL: Final = 0.4  # seconds between looks where no events come
SETTLE: Final = 0.05  # an editor that truncates and then writes is done within this
MISSING: Final = 1.0  # seconds a document may be gone between an editor's delete and its create

_log = logging.getLogger("director")

Contents = Mapping[str, str]  # path -> hash of what is in it; "" while it is not there


async def edits(documents: Iterable[Path], judged: Contents | None) -> AsyncGenerator[Contents]:
    """The documents' contents, each time they differ from what was judged last.

    `judged` is what the last plan was made from; None yields what is there at once. Never ends by itself.
    """
    documents = tuple(documents)
    looks: dict[Path, object] = {}
    first = True
    async for stirred in _stirs(documents):
        if not _moved(documents, looks) and not stirred and not first:
            continue
        first = False
        contents = await _settled(documents)
        if contents != judged:
            judged = contents
            yield contents


def read_contents(documents: Iterable[Path]) -> Contents:
    return {str(document): _hash(document) for document in documents}


async def _stirs(documents: tuple[Path, ...]) -> AsyncGenerator[bool]:
    """True when something happened beside a document, False when it is time to look anyway."""
    yield False
    watched = [folder for folder in {document.parent for document in documents} if folder.is_dir()]
    names = {str(document) for document in documents}

    def is_ours(change: Change, path: str) -> bool:
        return path in names

    if watched:
        try:
            events = awatch(
                *watched,
                watch_filter=is_ours,
                recursive=False,
                step=int(SETTLE * 1000),
                rust_timeout=int(POLL * 1000),
                yield_on_timeout=True,
                ignore_permission_denied=True,
            )
            async for changes in events:
                yield bool(changes)
        except (OSError, RuntimeError) as error:  # the limit of inotify watches is small and shared
            _log.warning("the kernel tells of no edits (%s): looking every %g s instead", error, POLL)
    while True:
        await asyncio.sleep(POLL)
        yield False


def _moved(documents: Iterable[Path], looks: dict[Path, object]) -> bool:
    """Whether any document looks different from the last time; `looks` is brought up to date."""
    moved = False
    for document in documents:
        try:
            stat = document.stat()
            look: object = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except OSError:
            look = None
        moved |= document in looks and looks[document] != look
        looks[document] = look
    return moved


async def _settled(documents: tuple[Path, ...]) -> Contents:
    """What is in the documents once nobody is in the middle of writing them."""
    before = read_contents(documents)
    waited = 0.0
    while True:
        await asyncio.sleep(SETTLE)
        waited += SETTLE
        after = read_contents(documents)
        missing = "" in after.values() and waited < MISSING
        if after == before and not missing:
            return after
        before = after


def _hash(document: Path) -> str:
    try:
        return hashlib.sha256(document.read_bytes()).hexdigest()
    except OSError:
        return ""
