"""What others take of the processors: waited out before a run, told of a run that they met all the same."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.turns import progress

QUIET: Final = 0.15  # processors that others may use
_LOOK: Final = 0.4  # seconds of one look
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Ticks:
    """The machine's processors together since it started."""

    busy: int
    at: float  # seconds

    def processors(self, since: Ticks, ours: float = 0.0) -> float:
        """How many were busy on average since then, less `ours`: seconds of work that are not others'."""
        return max(0.0, (self.busy - since.busy) / _TICKS - ours) / max(self.at - since.at, 1e-9)


def read(stat: str, at: float) -> Ticks:
    """`stat` is the text of `/proc/stat`. What a hypervisor gave to others counts as busy."""
    user, nice, system, _idle, _wait, interrupts, soft, stolen = (int(word) for word in stat.split()[1:9])
    return Ticks(user + nice + system + interrupts + soft + stolen, at)


def now() -> Ticks:
    return read(Path("/proc/stat").read_text(), time.monotonic())


@dataclass(slots=True)
class Patience:
    """Waits for a quiet moment, and gives up for good when that took too long in all."""

    seconds: float  # left

    async def wait(self) -> None:
        """For when no server is asked."""
        told = False
        while True:
            before = now()
            await asyncio.sleep(_LOOK)
            busy = now().processors(before)
            if busy <= QUIET or self.seconds <= 0:
                return
            self.seconds -= _LOOK
            if not told:
                progress(f"others use {busy:.2f} processors: waiting, {self.seconds:.0f} s at most")
                told = True
            if self.seconds <= 0:
                progress("no quiet moment came: measuring on, beside the others")
