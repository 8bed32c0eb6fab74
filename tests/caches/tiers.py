"""Caches of memory and disk, as a plan opens them, and what tests ask of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from sequences import CHUNK, Books, hybrid_state, kv_state, read, reading, same_rows, same_state

from tandem.caches.caches import Caches
from tandem.caches.chunk_file import Kind
from tandem.caches.opening import DiskTier, open_caches
from tandem.model.state import SequenceState, Snapshot

A = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
LOTS = 1 << 30
SOON = 20.0  # seconds a disk may take


@contextmanager
def opened(
    folder: Path | None = None,
    memory: int = LOTS,
    new: Callable[[], SequenceState] = kv_state,
    any_row: bool = True,
    waiting: int = LOTS,
    disk: int = LOTS,
    books: Books | None = None,
) -> Iterator[Caches]:
    tier = DiskTier(folder, disk, 1e9, waiting) if folder else None
    holdings = (books or Books()).holdings
    caches = open_caches(CHUNK, b"model", new(), holdings, memory, tier, any_row=any_row)
    if tier:
        until(lambda: (stats := caches.stats.disk) is not None and stats.is_scanned)
    try:
        yield caches
        caches.check_integrity()
    finally:
        caches.close(SOON)


def until(holds: Callable[[], bool]) -> None:
    """Wait for the disk's thread. It ends as soon as it holds; only a failure takes its time."""
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, "the disk never came to it"
        time.sleep(0.001)


def written(caches: Caches) -> None:
    until(lambda: (stats := caches.stats.disk) is not None and stats.waiting == 0)


def park(caches: Caches, tokens: list[int], scope: str = "one") -> bool:
    return caches.park(caches.prompt(scope, tokens), len(tokens), reading(kv_state, tokens))


def found(caches: Caches, tokens: list[int], scope: str = "one") -> tuple[int, str]:
    there = caches.find(caches.prompt(scope, tokens))
    return (there.rows, there.source) if there else (0, "none")


def load(caches: Caches, tokens: list[int], new: Callable[[], SequenceState] = kv_state) -> int:
    """Rows loaded into a state full of something else, bit for bit as they were read."""
    prompt = caches.prompt("one", tokens)
    there = caches.find(prompt)
    if there is None:
        return 0
    state = reading(new, [99] * 20)
    rows = caches.load(prompt, there, state)
    cold = reading(new, tokens[:rows])
    assert same_rows(state, cold, rows)
    assert rows == 0 or state.resumable(rows) == rows
    assert state.can_rewind or rows == 0 or same_state(state, cold, rows)
    return rows


def path_of(folder: Path, caches: Caches, tokens: list[int], kind: Kind = Kind.ROWS) -> Path:
    return folder / f"{caches.prompt('one', tokens).key(len(tokens)).hex()}.{kind.name.lower()}"


def conversation(*ends: int) -> tuple[SequenceState, list[Snapshot]]:
    """A, read up to these places, with an anchor at each."""
    state, anchors = hybrid_state(), []
    for start, end in pairwise([0, *ends]):
        read(state, A[:end], start)
        anchors.append(state.snapshot())
    return state, anchors
