"""Prints and follows the log files of an appliance."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tandem.errors import CannotStart

POLL: Final = 0.2  # seconds between looks at the files
_TAIL: Final = 1 << 16  # bytes from the end in which the last lines are looked for


def print_logs(folder: Path, program: str | None, lines: int, follow: bool) -> None:
    """The last `lines` of each program's log, in the order of their names, then with `follow` what comes.

    Raises `CannotStart` when `program` has no log.
    """
    names = sorted(path.stem for path in folder.glob("*.log"))
    if not names and not follow:
        raise CannotStart(f"there are no logs in {folder}", "`tandem up` writes them, below the document's `state`")
    if program is not None and program not in names:
        known = f"there are {', '.join(names)}" if names else f"there are none in {folder}"
        raise CannotStart(f"`{program}` has no log", known)
    tails: dict[str, Tail] = {}
    while True:
        for name in [program] if program else sorted(path.stem for path in folder.glob("*.log")):
            if name in tails:
                found = tails[name].more()
            else:
                tails[name] = Tail(folder / f"{name}.log")
                found = tails[name].last(lines)
            for line in found:
                sys.stdout.write(f"{line}\n" if program else f"{name:<12} | {line}\n")
        sys.stdout.flush()
        if not follow:
            return
        time.sleep(POLL)


@dataclass
class Tail:
    """One file, followed across rotation: a new inode or a smaller size begins anew. Only whole lines come out."""

    path: Path
    file: IO[bytes] | None = None
    part: bytes = b""

    def last(self, lines: int) -> list[str]:
        self.file = self._open()
        if self.file is None:
            return []
        self.file.seek(max(0, os.fstat(self.file.fileno()).st_size - _TAIL))
        found = self._lines()
        return found[-lines:] if lines else []

    def more(self) -> list[str]:
        found = self._lines()
        if self._was_rotated():
            self.file, self.part = self._open(), b""
            found += self._lines()
        return found

    def _open(self) -> IO[bytes] | None:
        try:
            return self.path.open("rb")
        except FileNotFoundError:
            return None

    def _was_rotated(self) -> bool:
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False
        if self.file is None:
            return True
        return os.fstat(self.file.fileno()).st_ino != now.st_ino or now.st_size < self.file.tell()

    def _lines(self) -> list[str]:
        if self.file is None:
            return []
        *whole, self.part = (self.part + self.file.read()).split(b"\n")
        return [line.decode("utf-8", "replace") for line in whole]
