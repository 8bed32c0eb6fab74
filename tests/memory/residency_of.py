"""What the kernel itself says about a piece of this process's memory."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

from torch import Tensor

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def resident_bytes(tensor: Tensor) -> int:
    """Bytes of the tensor's pages that are in memory (`mincore`). The tensor starts on a page."""
    address, size = tensor.data_ptr(), tensor.nbytes
    assert address % mmap.PAGESIZE == 0
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    assert _libc.mincore(address, size, ctypes.byref(pages)) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def process_rss() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def is_mapped(address: int) -> bool:
    spans = (line.split(" ", 1)[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(end, 16) for start, end in spans)
