"""What every process of the appliance does at birth: die with its parent, say who it is, log in one form."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


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
