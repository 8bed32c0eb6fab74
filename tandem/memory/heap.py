"""What allocators of this process keep for themselves, handed back to the system.

glibc keeps what was freed in a thread's arena: each freed block that had a mapping of its own raises the size from
which blocks get one (up to 32 MiB), and from then on a chunk's temporaries are cut from the arena, whose middle is
never returned by itself. After one prompt of 8,000 tokens that was up to 20 MB; it is bounded by what one chunk takes.
"""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Final

import torch

from tandem.units import KIB

_STATM: Final = Path("/proc/self/statm")
_STATUS: Final = Path("/proc/self/status")


def anonymous_bytes() -> int:
    """Resident memory of this process that is its alone: page cache it has mapped is not counted."""
    _, resident, shared, *_ = _STATM.read_text().split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE


def locked_bytes() -> int:
    """Pages of files that this process holds in memory: to the kernel they are available to nobody, as its own are."""
    lines = _STATUS.read_text().splitlines()
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith("VmLck:")), 0)


def trim_heap() -> int:
    """Hand back what the heap and the CUDA allocator hold free; returns the bytes. Costs milliseconds."""
    before = anonymous_bytes()
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # glibc has it, others need not
        trim(0)
    freed = max(0, before - anonymous_bytes())
    if torch.cuda.is_available():
        reserved = torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        freed += max(0, reserved - torch.cuda.memory_reserved())
    return freed
