"""A real process, killed while it writes behind, again and again: what is found afterwards is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import writes_behind

from tandem.caches.chunk_file import UNFINISHED, Kind
from tandem.caches.folder import Folder

SOON = 30.0  # seconds
MOMENTS: list[tuple[str, Callable[[Path, int], bool]]] = [
    ("a file has been begun", lambda path, before: unfinished(path) >= 0),
    ("half of it is written", lambda path, before: unfinished(path) > writes_behind.SIZE // 2),
    ("all of it is", lambda path, before: unfinished(path) > writes_behind.SIZE),
    ("it has its name", lambda path, before: finished(path) > before),
    ("the next is begun", lambda path, before: finished(path) > before and unfinished(path) >= 0),
    ("several have come", lambda path, before: finished(path) > before + 3),
]


def unfinished(path: Path) -> int:
    """Bytes of the file that is being written; -1 when none is."""
    try:
        return max((each.stat().st_size for each in path.glob(f"*{UNFINISHED}")), default=-1)
    except FileNotFoundError:
        return -1


def finished(path: Path) -> int:
    return len(list(path.glob("*.rows")))


@pytest.mark.wire
def test_no_torn_chunk_is_ever_served(tmp_path: Path) -> None:
    seen_unfinished = 0
    command = [sys.executable, writes_behind.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin and writer.stdout
        for _, moment in MOMENTS:
            before = finished(tmp_path)
            print(file=writer.stdin, flush=True)
            pid = int(writer.stdout.readline())
            deadline = time.monotonic() + SOON
            try:
                while not moment(tmp_path, before):
                    assert time.monotonic() < deadline, "it never came to that"
            finally:
                os.kill(pid, signal.SIGKILL)
            assert writer.stdout.readline() == "True\n"
            seen_unfinished += unfinished(tmp_path) >= 0
            assert read_back(tmp_path) == finished(tmp_path)
        writer.stdin.close()
    assert seen_unfinished, "not once was it killed within a file"


def read_back(path: Path) -> int:
    """Chunks that can be read, each of which has all its bytes; nothing unfinished is left."""
    folder = Folder(path, b"model", writes_behind.LIMIT, 1e9)
    folder.scan()
    assert unfinished(path) < 0 and folder.stats.corrupt == 0
    for chunk in folder.index:
        data = folder.read(chunk, Kind.ROWS)
        assert data is not None and torch.equal(data, writes_behind.payload(chunk.piece.first))
    folder.check_integrity()
    folder.close()
    return folder.stats.chunks
