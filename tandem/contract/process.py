"""What every process of the appliance does at birth: die with its parent, say how long what took, log in one form."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_STARTTIME: Final = 19  # field of /proc/self/stat behind the name, which may hold anything


def die_with_parent(sig: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel for `sig` when the parent dies, however it dies, so that no way of dying leaves orphans.

    A parent that died before this call is noticed too. Linux only; elsewhere this does nothing.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), sig)


def set_up_logging(level: int = logging.INFO) -> None:
    """Lines on stderr (supervisord keeps them): time, level, logger, message. Never a user's text, never a key."""
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format="%(asctime)s.%(msecs)03d %(levelname)-7s [%(name)s] %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        force=True,
    )


class Stages:
    """What a start is made of, for its last log line: seconds by stage, the first from the birth of the process."""

    def __init__(self) -> None:
        self._born = _born()
        self._ends: list[tuple[str, float]] = []

    def ended(self, stage: str) -> None:
        self._ends.append((stage, time.monotonic()))

    def __str__(self) -> str:
        """`2.3 s (runtime 1.4, weights 0.6, first token 0.3)`."""
        starts = [self._born, *(end for _, end in self._ends)]
        parts = (f"{stage} {end - start:.1f}" for start, (stage, end) in zip(starts, self._ends, strict=False))
        return f"{starts[-1] - starts[0]:.1f} s ({', '.join(parts)})"


def _born() -> float:
    """When this process was forked, as `time.monotonic()` tells time, to a hundredth. Elsewhere than on Linux: now."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_STARTTIME]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        age = 0.0
    return time.monotonic() - age
