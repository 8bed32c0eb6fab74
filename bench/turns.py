"""What the benches have in common: how many clients, in which order, and a line on stderr while they run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final, TypeVar

LEVELS: Final = (1, 2, 4)  # clients at once
WARM_UP: Final = 16  # tokens before each run, not timed
Thing = TypeVar("Thing")


def in_turns(things: Sequence[Thing], number: int) -> Sequence[Thing]:
    """As they stand at even numbers, backwards at odd ones."""
    return things if number % 2 == 0 else things[::-1]


def progress(line: str) -> None:
    end = "\r" if sys.stderr.isatty() else "\n"
    sys.stderr.write(f"\x1b[K{line}{end}" if end == "\r" else line + end)
    sys.stderr.flush()
