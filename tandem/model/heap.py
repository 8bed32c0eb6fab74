"""glibc's heap while weights are read, so that a load leaves nothing behind but weights.

Loading takes hundreds of megabytes for a moment: parts of a matrix before they are stacked, a matrix before it is
brought into another form. In the heap each would leave a hole between weights that stay, and holes never go back: of
526 MB that failed in their last layer 193 MB stayed (measured; 0 to 10 now). With pages of their own they go back when
they are freed. Elsewhere than on glibc this does nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TRIM_THRESHOLD: Final = -1  # `mallopt`'s names for what it sets
_MMAP_THRESHOLD: Final = -3
_LOADING: Final = 1 << 20  # from here on an allocation has pages of its own
_RUNNING: Final = 32 << 20  # where glibc's own adaptation ends: passes take their rows from the heap, over and over


@contextmanager
def pages_of_their_own() -> Iterator[None]:
    """For the time of a load. Afterwards, also after one that failed, the heap's free pages are given back."""
    if not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        yield
        return
    libc.mallopt(_MMAP_THRESHOLD, _LOADING)
    try:
        yield
    finally:
        libc.mallopt(_MMAP_THRESHOLD, _RUNNING)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _RUNNING)  # setting one ends the adaptation of both
        give_back()


def give_back() -> None:
    """Hand free pages back to the system: loading leaves tens of MiB of holes, and glibc has to be asked."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
