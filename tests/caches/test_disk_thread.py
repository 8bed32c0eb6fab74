"""The disk's thread, driven by hand: what comes first, how far ahead it reads, and what a failure costs."""

from __future__ import annotations

import time
from pathlib import Path
from queue import SimpleQueue

import pytest
from sequences import prompt

from tandem.caches import disk_thread
from tandem.caches.chunk_file import Kind
from tandem.caches.disk_thread import PAUSE, DiskThread, Fetch, Job, Stop, Touch, Write
from tandem.caches.folder import Chunk, Folder
from tandem.caches.prefix import Piece
from tandem.model.saved import host_memory

SIZE = 128


@pytest.fixture
def thread(tmp_path: Path) -> DiskThread:
    thread = DiskThread(Folder(tmp_path, b"model", 1 << 30, 1e9), SimpleQueue())
    thread.scan()
    return thread


def pieces(count: int, token: int = 1) -> list[Piece]:
    return list(prompt([token] * 4 * count).pieces(4 * count))


def do(thread: DiskThread, *jobs: Job) -> None:
    for job in jobs:
        thread._inbox.put(job)
    thread.receive()
    thread.step()


def chunks(thread: DiskThread, count: int) -> list[tuple[Chunk, Kind]]:
    """Written, and to be fetched."""
    for piece in pieces(count):
        do(thread, Write(piece, Kind.ROWS, host_memory(SIZE).fill_(piece.first)))
    found = [thread.folder.index.get(piece.key) for piece in pieces(count)]
    return [(chunk, Kind.ROWS) for chunk in found if chunk]


def test_reading_comes_before_writing(thread: DiskThread) -> None:
    files = chunks(thread, 2)
    late = [Write(piece, Kind.ROWS, host_memory(SIZE)) for piece in pieces(2, token=2)]
    fetch = Fetch(files, thread._inbox)
    do(thread, *late, fetch)
    assert (fetch.num_read, late[0].is_done) == (1, False)
    thread.step()
    assert (fetch.num_read, late[0].is_done) == (2, False)
    thread.step()
    assert (late[0].is_done, late[1].is_done) == (True, False)
    taken = [fetch.take(), fetch.take(), fetch.take()]
    assert [data is not None and data.unique().tolist() for data in taken] == [[0], [4], False]


def test_reading_ahead_is_bounded(thread: DiskThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_thread, "READ_AHEAD", 2 * SIZE)
    fetch = Fetch(chunks(thread, 5), thread._inbox)
    do(thread, fetch)
    write = Write(pieces(1, token=2)[0], Kind.ROWS, host_memory(SIZE))
    do(thread, write)
    assert (fetch.num_read, write.is_done) == (2, False)
    thread.step()
    assert (fetch.num_read, write.is_done) == (2, True)  # enough lies ready: others get their turn
    for taken in range(5):
        assert fetch.take() is not None
        thread.receive()
        thread.step()
        assert fetch.num_read == min(5, taken + 3)
    assert fetch.take() is None and not fetch.has_failed


def test_a_cancelled_fetch_reads_no_more(thread: DiskThread) -> None:
    fetch = Fetch(chunks(thread, 3), thread._inbox)
    do(thread, fetch)
    fetch.cancel()
    thread.step()
    assert fetch.num_read == 1 and not thread._fetches


def test_a_file_that_cannot_be_had_ends_a_fetch_in_its_turn(thread: DiskThread, tmp_path: Path) -> None:
    files = chunks(thread, 3)
    (tmp_path / f"{files[1][0].piece.key.hex()}.rows").unlink()
    fetch = Fetch(files, thread._inbox)
    do(thread, fetch)
    thread.step()
    assert fetch.take() is not None and not fetch.has_failed
    assert fetch.take() is None and fetch.has_failed and fetch.num_read == 3


def test_a_bug_ends_the_fetch_it_hit_and_nothing_else(thread: DiskThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it is told, or would wait for good."""
    fetch = Fetch(chunks(thread, 1), thread._inbox)

    def stumble(*args: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(thread.folder, "read", stumble)
    with pytest.raises(ValueError):
        do(thread, fetch)
    assert fetch.take() is None and fetch.has_failed


def test_a_write_that_a_bug_hit_waits_no_longer(thread: DiskThread, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*args: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(thread.folder, "write", stumble)
    write = Write(pieces(1)[0], Kind.ROWS, host_memory(SIZE))
    with pytest.raises(ValueError):
        do(thread, write)
    assert write.is_done


def test_after_a_refusal_nothing_is_written_for_a_while(thread: DiskThread, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [1000.0], list[Piece]()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(thread.folder, "write", lambda piece, *rest: asked.append(piece))  # None: not kept
    writes = [Write(piece, Kind.ROWS, host_memory(SIZE)) for piece in pieces(3)]
    do(thread, Write(writes[0].piece, Kind.STATE, host_memory(SIZE)))  # whose rows are not there: no sign of anything
    assert thread.paused_until == 0.0
    do(thread, writes[0])
    assert thread.paused_until == 1000.0 + PAUSE
    do(thread, writes[1])
    assert len(asked) == 2 and writes[1].is_done
    now[0] += PAUSE
    do(thread, writes[2])
    assert len(asked) == 3


def test_it_stops_when_all_is_written_or_time_is_up(thread: DiskThread) -> None:
    writes = [Write(piece, Kind.ROWS, host_memory(SIZE)) for piece in pieces(2)]
    do(thread, *writes, Stop(time.monotonic() + 60))
    assert not thread.is_over
    thread.step()
    assert thread.is_over and all(write.is_done for write in writes)
    do(thread, *[Write(piece, Kind.ROWS, host_memory(SIZE)) for piece in pieces(2, token=2)], Stop(0.0))
    assert thread.is_over


def test_what_is_used_is_told_to_the_folder(thread: DiskThread) -> None:
    ((chunk, _),) = chunks(thread, 1)
    chunk.used = 0.0
    do(thread, Touch([chunk.piece.key]))
    assert chunk.used > 0.0


def test_what_is_too_old_goes_without_being_asked(thread: DiskThread) -> None:
    ((chunk, _),) = chunks(thread, 1)
    chunk.used = -1e9
    thread.step()
    assert len(thread.folder.index) == 1
    thread._tidy_at = 0.0
    thread.step()
    assert len(thread.folder.index) == 0 and thread._tidy_at > 0
