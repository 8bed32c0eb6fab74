"""Pages of this machine's memory: an anonymous mapping the kernel backs when told to, and empties when told to.

MADV_POPULATE_WRITE commits and MADV_DONTNEED gives back at once (MADV_FREE would keep the pages until there is
pressure, which is too late on a box that must not get there). Both are called through ctypes, which lets other
threads run meanwhile; `mmap.madvise` does not.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol

import torch

from tandem.errors import CannotStart
from tandem.memory.pages import AddressRange, CommitRefused
from tandem.units import MIB, format_bytes

HUGE: Final = 2 * MIB
ROWS_A_HUGE_PAGE: Final = 1024  # more rows in one page would round a short conversation up too far
ROWS_A_PAGE: Final = 256  # fewer would make a commit of every few rounds: 40 us a tensor, whatever its size
_NO_RESERVE: Final = 0x4000  # MAP_NORESERVE: addresses are no promise of memory


class Advice(IntEnum):
    """What `madvise` is told; the numbers are the kernel's."""

    GIVE_BACK = 4  # MADV_DONTNEED
    HUGE_PAGES = 14
    SMALL_PAGES = 15
    KEEP_FROM_CORE = 16  # MADV_DONTDUMP
    COMMIT = 23  # MADV_POPULATE_WRITE, Linux 5.14


class Kernel(Protocol):
    """The calls that change what lies behind addresses. Each raises `OSError`."""

    def map(self, size: int, access: bool) -> int: ...
    def unmap(self, address: int, size: int) -> None: ...
    def advise(self, address: int, size: int, advice: Advice) -> None: ...
    def protect(self, address: int, size: int, access: bool) -> None: ...


class Linux:
    """The kernel itself."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._mmap, self._munmap, self._madvise, self._mprotect = libc.mmap, libc.munmap, libc.madvise, libc.mprotect
        self._mmap.restype = address
        self._mmap.argtypes = [address, size, number, number, number, ctypes.c_long]
        self._munmap.argtypes = [address, size]
        self._madvise.argtypes = [address, size, number]
        self._mprotect.argtypes = [address, size, number]

    def map(self, size: int, access: bool) -> int:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        address: int | None = self._mmap(None, size, _protection(access), flags, -1, 0)
        if address is None or address == ctypes.c_void_p(-1).value:
            raise _last_error()
        return address

    def unmap(self, address: int, size: int) -> None:
        _check(self._munmap(address, size))

    def advise(self, address: int, size: int, advice: Advice) -> None:
        _check(self._madvise(address, size, advice))

    def protect(self, address: int, size: int, access: bool) -> None:
        _check(self._mprotect(address, size, _protection(access)))


def page_for(row_bytes: int, huge: int | None) -> int:
    """Bytes of one page for rows of `row_bytes`; `huge` is the kernel's huge page, None where it has none.

    A huge page commits four times as fast a byte and is used where it holds few enough rows. Otherwise a page is
    the smallest power of two that holds `ROWS_A_PAGE` rows.
    """
    if huge == HUGE and row_bytes * ROWS_A_HUGE_PAGE >= HUGE:
        return HUGE
    wanted = min(HUGE, row_bytes * ROWS_A_PAGE)
    return max(mmap.PAGESIZE, 1 << (wanted - 1).bit_length())


class HostPages:
    """The page backend of `device: cpu`. Nothing is kept spare: a page given back is the kernel's at once."""

    spare = 0

    def __init__(self, guard: bool = False, kernel: Kernel | None = None) -> None:
        """`guard`: a touch of rows without memory kills the process instead of reading zeros. For tests.

        Raises `CannotStart` on a kernel that cannot commit.
        """
        self._guard = guard
        self._kernel = Linux() if kernel is None else kernel
        self._huge = _huge_page_size()
        try:
            self._kernel.advise(0, 0, Advice.COMMIT)
        except OSError as error:
            raise CannotStart(
                f"the kernel cannot commit pages ({error.strerror}); the KV pool needs Linux 5.14 or newer",
                help="set memory.kv_pool to off",
            ) from error

    def reserve(self, size: int, row_bytes: int) -> AddressRange:
        page = page_for(row_bytes, self._huge)
        return HostRange(-(-size // page), page, huge=page == self._huge, guard=self._guard, kernel=self._kernel)

    def trim(self) -> int:
        return 0


class HostRange(AddressRange):
    def __init__(self, num_pages: int, page: int, huge: bool, guard: bool, kernel: Kernel) -> None:
        """Raises `CommitRefused` when the kernel has not even addresses left (`vm.overcommit_memory=2`)."""
        size, mapped = num_pages * page, (num_pages + 1) * page  # one page more, to start on a page boundary
        try:
            raw = kernel.map(mapped, access=not guard)
        except OSError as error:
            raise CommitRefused(f"no addresses for {format_bytes(size)} ({error.strerror})") from error
        release = weakref.finalize(self, kernel.unmap, raw, mapped)
        release.atexit = False  # at exit the kernel does it, and a thread may still be computing
        super().__init__(-(-raw // page) * page, num_pages, page, torch.device("cpu"))
        self._guard = guard
        self._kernel = kernel
        kernel.advise(self._base, size, Advice.HUGE_PAGES if huge else Advice.SMALL_PAGES)
        kernel.advise(self._base, size, Advice.KEEP_FROM_CORE)

    def _back(self, runs: list[range]) -> None:
        for done, run in enumerate(runs, start=1):
            address, size = self._bytes_of(run)
            try:
                if self._guard:
                    self._kernel.protect(address, size, access=True)
                self._kernel.advise(address, size, Advice.COMMIT)
            except OSError as error:
                self._drop(runs[:done])  # the failed run too: the kernel leaves what it got to
                raise CommitRefused(f"no memory for {format_bytes(size)} ({error.strerror})") from error

    def _drop(self, runs: list[range]) -> None:
        for address, size in map(self._bytes_of, runs):
            self._kernel.advise(address, size, Advice.GIVE_BACK)
            if self._guard:
                self._kernel.protect(address, size, access=False)

    def _bytes_of(self, run: range) -> tuple[int, int]:
        return self._base + run.start * self.page, len(run) * self.page


def _huge_page_size() -> int | None:
    try:
        return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
    except OSError:
        return None


def _protection(access: bool) -> int:
    return mmap.PROT_READ | mmap.PROT_WRITE if access else 0


def _check(status: int) -> None:
    if status != 0:
        raise _last_error()


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
