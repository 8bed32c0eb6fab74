"""A CUDA driver made of this machine's memory: handles are anonymous files, mapping is `mmap` over a reservation.

It keeps the real driver's rules and breaks when they are broken: addresses without access cannot be touched, a
mapping is unmapped whole and only when the stream is idle, a handle is released once, and reused memory is stale.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

PAGE = 64 << 10
_FIXED, _NO_RESERVE = 0x10, 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
ctypes.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_SUPPORTED = 801


GOOD = CUresult.CUDA_SUCCESS


class FakeStream:
    """Work queued on it is "running" until someone waits."""

    cuda_stream = 7

    def __init__(self) -> None:
        self.busy = False
        self.waits = 0

    def launch(self) -> None:
        self.busy = True

    def synchronize(self) -> None:
        self.busy = False
        self.waits += 1


class FakeDriver:
    CUresult = CUresult
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED=102)
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)

    def __init__(self, stream: FakeStream, num_pages: int = 1 << 20, supported: bool = True) -> None:
        self.stream = stream
        self.num_pages = num_pages  # physical pages of the device
        self.supported = supported
        self.fails_in: int | None = None  # calls that can run out of something, until one does
        self.calls: list[str] = []
        self.live: set[int] = set()  # handles: file descriptors
        self.mapped: dict[int, int] = {}  # address -> handle
        self.open: set[int] = set()  # addresses with access
        self.reserved: dict[int, int] = {}

    def CUmemAllocationProp(self) -> Any:
        return SimpleNamespace(type=0, location=SimpleNamespace(type=0, id=0))

    def CUmemAccessDesc(self) -> Any:
        return SimpleNamespace(flags=0, location=SimpleNamespace(type=0, id=0))

    def _fails(self, name: str) -> bool:
        self.calls.append(name)
        if self.fails_in is None:
            return False
        self.fails_in -= 1
        if self.fails_in >= 0:
            return False
        self.fails_in = None
        return True

    def cuInit(self, flags: int) -> tuple[CUresult]:
        return (GOOD,)

    def cuDeviceGet(self, index: int) -> tuple[CUresult, int]:
        return GOOD, index

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[CUresult, int]:
        return GOOD, int(self.supported)

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[CUresult, str]:
        return GOOD, "context"

    def cuCtxSetCurrent(self, context: str) -> tuple[CUresult]:
        assert context == "context"
        return (GOOD,)

    def cuMemGetAllocationGranularity(self, kind: Any, option: int) -> tuple[CUresult, int]:
        return GOOD, PAGE

    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> tuple[CUresult, int]:
        if self._fails("reserve"):
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        base = _mmap(None, size, 0, -1)
        assert base % mmap.PAGESIZE == 0 and alignment == PAGE
        self.reserved[base] = size
        return GOOD, base

    def cuMemAddressFree(self, address: int, size: int) -> tuple[CUresult]:
        assert self.reserved.pop(address) == size
        assert not any(address <= page < address + size for page in self.mapped), "free what is unmapped"
        _libc.munmap(address, size)
        return (GOOD,)

    def cuMemCreate(self, size: int, kind: Any, flags: int) -> tuple[CUresult, int]:
        assert size == PAGE and kind.type == 1
        if self._fails("create") or len(self.live) >= self.num_pages:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        handle = os.memfd_create("page")
        os.ftruncate(handle, size)
        os.pwrite(handle, b"\xff" * size, 0)  # the driver promises nothing about new memory
        self.live.add(handle)
        return GOOD, handle

    def cuMemRelease(self, handle: int) -> tuple[CUresult]:
        assert handle not in self.mapped.values(), "release what is unmapped"
        self.live.remove(handle)
        os.close(handle)
        return (GOOD,)

    def cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> tuple[CUresult]:
        assert address not in self.mapped and handle in self.live and (size, offset) == (PAGE, 0)
        assert any(base <= address < base + total for base, total in self.reserved.items())
        if self._fails("map"):
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)
        _mmap(address, size, 0, handle)
        self.mapped[address] = handle
        return (GOOD,)

    def cuMemSetAccess(self, address: int, size: int, access: list[Any], count: int) -> tuple[CUresult]:
        pages = range(address, address + size, PAGE)
        assert all(page in self.mapped for page in pages) and count == len(access)
        if self._fails("access"):
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)
        assert _libc.mprotect(address, size, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        self.open.update(pages)
        return (GOOD,)

    def cuMemUnmap(self, address: int, size: int) -> tuple[CUresult]:
        assert not self.stream.busy, "a kernel may still use these rows"
        assert size == PAGE
        del self.mapped[address]
        self.open.discard(address)
        _mmap(address, size, 0, -1)
        return (GOOD,)

    def cuMemsetD8Async(self, address: int, value: int, size: int, stream: int) -> tuple[CUresult]:
        assert stream == self.stream.cuda_stream
        assert all(page in self.open for page in range(address, address + size, PAGE))
        if self._fails("zero"):
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)
        ctypes.memset(address, value, size)
        self.stream.launch()
        return (GOOD,)


def _mmap(address: int | None, size: int, protection: int, file: int) -> int:
    flags = mmap.MAP_SHARED if file >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    result = _libc.mmap(address, size, protection, flags | (_FIXED if address else 0), file, 0)
    assert result != ctypes.c_void_p(-1).value
    return int(result)
