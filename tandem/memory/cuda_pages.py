"""Pages of a CUDA device: reserved addresses, and one handle of physical memory a page, mapped and unmapped singly.

The driver unmaps whole mappings only, hence a handle a page. It does not order unmapping behind kernels, hence the
fence before it. It says nothing about what a new handle holds and a reused one holds old rows, hence the zeroing.
The only file that imports cuda-python. Never commit while a graph is being captured.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Protocol

import torch

from tandem.errors import CannotStart
from tandem.memory.pages import AddressRange, CommitRefused
from tandem.units import format_bytes

SPARE_PAGES = 16  # creating a handle is three quarters of the cost of a page


class DriverError(RuntimeError):
    """A call of the driver failed; `str()` names the call and the driver's word for it."""


class Stream(Protocol):
    """The part of `torch.cuda.Stream` that is needed here."""

    @property
    def cuda_stream(self) -> int: ...
    def synchronize(self) -> None: ...


class CudaPages:
    """The page backend of `device: cuda`. Its ranges share the spare handles; one thread uses them all."""

    def __init__(
        self,
        device: torch.device,
        driver: Any = None,
        stream: Callable[[], Stream] | None = None,
        spare_pages: int = SPARE_PAGES,
    ) -> None:
        """`stream` answers the stream on which the device's work stands in line; by default torch's current one.

        Raises `CannotStart` without a driver, or for a device that cannot map memory to addresses.
        """
        self.device = device
        self._driver = load_driver() if driver is None else driver
        self._stream = stream or (lambda: torch.cuda.current_stream(device))
        self._spare_pages = spare_pages
        self._spare: list[Any] = []
        try:
            self._connect(device.index or 0)
        except DriverError as error:
            raise CannotStart(f"the CUDA driver does not serve {device}: {error}") from error

    def _connect(self, index: int) -> None:
        driver = self._driver
        self.call("cuInit", 0)
        number = self.call("cuDeviceGet", index)
        attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        if not self.call("cuDeviceGetAttribute", attribute, number):
            raise CannotStart(f"{self.device} cannot map memory to addresses", help="set memory.kv_pool to off")
        self._context = self.call("cuDevicePrimaryCtxRetain", number)  # torch's own
        place = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._kind = driver.CUmemAllocationProp()
        self._kind.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._kind.location.type, self._kind.location.id = place, index
        self._access = driver.CUmemAccessDesc()
        self._access.location.type, self._access.location.id = place, index
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        smallest = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.page = int(self.call("cuMemGetAllocationGranularity", self._kind, smallest))

    def reserve(self, size: int, row_bytes: int) -> AddressRange:
        """The device has one page size, whatever the rows."""
        num_pages = -(-size // self.page)
        try:
            base = int(self.call("cuMemAddressReserve", num_pages * self.page, self.page, 0, 0))
        except DriverError as error:
            raise CommitRefused(f"no addresses for {format_bytes(size)} ({error})") from error
        return CudaRange(self, base, num_pages)

    @property
    def spare(self) -> int:
        return len(self._spare) * self.page

    def trim(self) -> int:
        freed = self.spare
        while self._spare:
            self.call("cuMemRelease", self._spare.pop())
        return freed

    # --- for the ranges ---

    def call(self, name: str, *arguments: Any) -> Any:
        """One call of the driver: its answer, or `DriverError`."""
        status, *answer = getattr(self._driver, name)(*arguments)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise DriverError(f"{name}: {status.name}")
        return answer[0] if answer else None

    def enter(self) -> None:
        """Make this thread one that talks to the device."""
        self.call("cuCtxSetCurrent", self._context)

    def map(self, address: int) -> Any:
        """Put a handle, spare or new, behind one page without access yet; returns the handle."""
        handle = self._spare.pop() if self._spare else self.call("cuMemCreate", self.page, self._kind, 0)
        try:
            self.call("cuMemMap", address, self.page, 0, handle, 0)
        except DriverError:
            self._retire(handle)
            raise
        return handle

    def open(self, address: int, size: int) -> None:
        """Give access to mapped pages and zero them before whatever the stream does next."""
        self.call("cuMemSetAccess", address, size, [self._access], 1)
        self.call("cuMemsetD8Async", address, 0, size, self._stream().cuda_stream)

    def unmap(self, pages: Iterable[tuple[int, Any]]) -> None:
        """Take (address, handle) pages away once everything queued on the stream is done."""
        self._stream().synchronize()
        for address, handle in pages:
            self.call("cuMemUnmap", address, self.page)
            self._retire(handle)

    def _retire(self, handle: Any) -> None:
        if len(self._spare) < self._spare_pages:
            self._spare.append(handle)
        else:
            self.call("cuMemRelease", handle)


class CudaRange(AddressRange):
    def __init__(self, pages: CudaPages, base: int, num_pages: int) -> None:
        super().__init__(base, num_pages, pages.page, pages.device)
        self._pages = pages
        self._handles: dict[int, Any] = {}  # address of a page -> its memory
        release = weakref.finalize(self, _release, pages, base, num_pages * pages.page, self._handles)
        release.atexit = False  # the driver itself ends with the process

    def _back(self, runs: list[range]) -> None:
        self._pages.enter()
        mapped: dict[int, Any] = {}
        try:
            for number in chain.from_iterable(runs):
                address = self._base + number * self.page
                mapped[address] = self._pages.map(address)
            for run in runs:  # access only when every page is there: this is the costly call, one a run
                self._pages.open(self._base + run.start * self.page, len(run) * self.page)
        except DriverError as error:
            self._pages.unmap(mapped.items())
            asked = sum(map(len, runs)) * self.page
            raise CommitRefused(f"no device memory for {format_bytes(asked)} ({error})") from error
        self._handles.update(mapped)

    def _drop(self, runs: list[range]) -> None:
        self._pages.enter()
        addresses = [self._base + number * self.page for number in chain.from_iterable(runs)]
        self._pages.unmap([(address, self._handles.pop(address)) for address in addresses])


def _release(pages: CudaPages, base: int, size: int, handles: dict[int, Any]) -> None:
    """The last tensor over the range has gone."""
    pages.enter()
    pages.unmap(handles.items())
    handles.clear()
    pages.call("cuMemAddressFree", base, size)


def load_driver() -> Any:
    """cuda-python's driver module. Raises `CannotStart` when the package or the driver itself is missing."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise CannotStart(
            "device memory needs cuda-python, which is not installed", help="pip install 'tandem-appliance[cuda]'"
        ) from error
    try:
        driver.cuInit(0)
    except RuntimeError as error:
        raise CannotStart("there is no NVIDIA driver on this machine", help="set engine.device to cpu") from error
    return driver
