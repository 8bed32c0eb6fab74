"""A cgroup with a memory limit, and a process in it that takes memory when told to: a box that can really be full.

Both versions of the kernel's interface. The group lies below this process's own where that is allowed, else below the
closest group above it that gives its members limits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tandem.memory.reading import CgroupReading, find_cgroup, parse_reclaimable

HOG = """
import mmap, sys
held = []
print("here", flush=True)
for line in sys.stdin:
    if line.startswith("release"):
        held.clear()
    else:
        taken = mmap.mmap(-1, int(line), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, len(taken), mmap.PAGESIZE):
            taken[at] = 1
        held.append(taken)
    print("done", flush=True)
"""


class LimitedBox:
    """A cgroup of `limit` bytes without swap."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._is_new = (folder / "memory.max").exists()
        self._write("memory.max" if self._is_new else "memory.limit_in_bytes", limit)
        swap = "memory.swap.max" if self._is_new else "memory.memsw.limit_in_bytes"
        if (folder / swap).exists():
            self._write(swap, 0 if self._is_new else limit)

    @property
    def starter(self) -> str:
        """Python that enters the group and becomes the command in its arguments."""
        procs = str(self.folder / "cgroup.procs")
        return f"import os, sys; open({procs!r}, 'w').write('0'); os.execv(sys.argv[1], sys.argv[1:])"

    @property
    def room(self) -> int:
        """Bytes until the limit, counted as the appliance does."""
        usage = self._read("memory.current" if self._is_new else "memory.usage_in_bytes")
        return CgroupReading(self.limit, int(usage), parse_reclaimable(self._read("memory.stat"))).room

    @property
    def kills(self) -> int:
        """By the kernel, for want of memory."""
        text = self._read("memory.events" if self._is_new else "memory.oom_control")
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(b"oom_kill "))

    def remove(self) -> None:
        """Once its processes have ended."""
        deadline = time.monotonic() + 10
        while True:
            try:
                return self.folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def _write(self, name: str, value: int) -> None:
        (self.folder / name).write_text(str(value))


def make_limited_box(limit: int) -> LimitedBox:
    """Skips the test where no group with a limit can be made."""
    found = find_cgroup("memory", Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    if found is None:
        pytest.skip("this machine has no cgroup that limits memory")
    mount, own = found
    reasons = []
    for level in [own, *(above for above in own.parents if above.is_relative_to(mount))]:
        folder = level / f"tandem-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError as error:
            reasons.append(f"{level}: {error.strerror}")
            continue
        try:
            if not any((folder / name).exists() for name in ("memory.max", "memory.limit_in_bytes")):
                (level / "cgroup.subtree_control").write_text("+memory")  # version 2: who has members gives them none
            return LimitedBox(folder, limit)
        except OSError as error:
            folder.rmdir()
            reasons.append(f"{level}: {error.strerror}")
    pytest.skip(f"no group with a memory limit can be made here ({'; '.join(reasons)})")


class Hog:
    """A process in the box that holds what it was told to take."""

    def __init__(self, box: LimitedBox) -> None:
        self._box = box
        self._process = subprocess.Popen(
            [sys.executable, "-c", box.starter, sys.executable, "-c", HOG],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._said() == "here"

    def leave(self, room: int) -> None:
        """Take so much that `room` bytes are left in the box at this moment."""
        size = self._box.room - room
        assert size > 0, f"the box has less than {room} bytes of room already"
        self._tell(str(size))

    def release(self) -> None:
        self._tell("release")

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        assert self._said() == "done"

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()
