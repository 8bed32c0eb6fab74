"""A process that writes behind until it is killed. For each line on stdin it forks a child that does, and says its id.

Every child writes the same conversation, whose rows follow from their place alone, so that whoever reads what is left
knows what must be there.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import count
from pathlib import Path

import torch

from tandem.caches.chunk_file import Kind
from tandem.caches.disk import Disk
from tandem.caches.folder import Folder
from tandem.caches.prefix import Grid, Prompt
from tandem.model.saved import host_memory

CHUNK = 256
SIZE = 1 << 20  # bytes of a payload: long enough on its way to be killed there
LIMIT = 100 * SIZE


def conversation(folder: Folder) -> Prompt:
    return Grid(CHUNK, b"model", folder.secret).prompt("one", range(CHUNK * 1000))


def payload(first: int) -> torch.Tensor:
    return host_memory(SIZE).copy_(torch.arange(SIZE, dtype=torch.uint8)).add_(first // CHUNK)


def write_until_killed(path: Path) -> None:
    folder = Folder(path, b"model", LIMIT, 1e9)
    prompt = conversation(folder)
    disk = Disk(folder, 4 * SIZE)
    while True:
        for piece in prompt.pieces(CHUNK * 1000):
            if disk.index.get(piece.key) is None and not disk.is_on_its_way(piece, Kind.ROWS):
                while not disk.has_room(SIZE):
                    pass
                disk.write(piece, Kind.ROWS, payload(piece.first))


def main() -> None:
    torch.set_num_threads(1)
    path = Path(sys.argv[1])
    for _ in count():
        if not sys.stdin.readline():
            return
        child = os.fork()
        if child == 0:
            write_until_killed(path)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status) == signal.SIGKILL, flush=True)


if __name__ == "__main__":
    main()
