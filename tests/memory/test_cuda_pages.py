"""The CUDA backend's dealings with its driver: nothing leaks, nothing is unmapped under a kernel, nothing is stale."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest
import torch
from fake_driver import PAGE, FakeDriver, FakeStream

from tandem.errors import CannotStart
from tandem.memory.cuda_pages import CudaPages, load_driver
from tandem.memory.pages import CommitRefused

ROW = 512


def build(spare_pages: int = 0, num_pages: int = 1 << 20) -> tuple[FakeDriver, CudaPages]:
    stream = FakeStream()
    driver = FakeDriver(stream, num_pages)
    return driver, CudaPages(torch.device("cpu"), driver, lambda: stream, spare_pages)


def test_the_page_is_the_drivers() -> None:
    _, pages = build()
    assert pages.page == PAGE
    addresses = pages.reserve(PAGE + 1, ROW)
    assert (addresses.page, addresses.size) == (PAGE, 2 * PAGE)


def test_access_is_given_once_a_run() -> None:
    driver, pages = build()
    pages.reserve(8 * PAGE, ROW).commit([range(8 * PAGE)])
    assert driver.calls == ["reserve", *["create", "map"] * 8, "access", "zero"]
    assert driver.open == set(driver.mapped)


def test_access_is_given_when_every_run_is_mapped() -> None:
    driver, pages = build()
    pages.reserve(8 * PAGE, ROW).commit([range(2 * PAGE), range(4 * PAGE, 6 * PAGE)])
    assert driver.calls == ["reserve", *["create", "map"] * 4, *["access", "zero"] * 2]


def test_a_kernel_in_flight_is_waited_for_before_its_rows_go() -> None:
    driver, pages = build()
    addresses = pages.reserve(8 * PAGE, ROW)
    addresses.commit([range(8 * PAGE)])
    driver.stream.launch()
    waits = driver.stream.waits
    addresses.give_back([range(8 * PAGE)])  # the driver asserts that the stream is idle
    assert driver.stream.waits == waits + 1
    assert (len(driver.live), len(driver.mapped)) == (0, 0)


def test_spare_handles_are_reused_and_zeroed() -> None:
    driver, pages = build(spare_pages=2)
    addresses = pages.reserve(8 * PAGE, ROW)
    rows = addresses.tensor((8 * PAGE,), torch.uint8)
    addresses.commit([range(4 * PAGE)])
    rows[: 4 * PAGE] = 9
    addresses.give_back([range(4 * PAGE)])
    assert (pages.spare, len(driver.live)) == (2 * PAGE, 2)
    driver.calls.clear()
    addresses.commit([range(4 * PAGE, 7 * PAGE)])
    assert driver.calls.count("create") == 1
    assert rows[4 * PAGE : 7 * PAGE].count_nonzero() == 0
    assert pages.spare == 0


def test_trim_gives_the_spare_handles_back() -> None:
    driver, pages = build(spare_pages=2)
    addresses = pages.reserve(8 * PAGE, ROW)
    addresses.commit([range(4 * PAGE)])
    addresses.give_back([range(4 * PAGE)])
    assert pages.trim() == 2 * PAGE
    assert pages.trim() == 0
    assert driver.live == set()


@pytest.mark.parametrize("spare_pages", [0, 3])
def test_a_failure_at_any_call_of_a_commit_leaves_nothing(spare_pages: int) -> None:
    """Create, map, access, zero: each of the calls in turn, until a commit goes through."""
    driver, pages = build(spare_pages)
    addresses = pages.reserve(8 * PAGE, ROW)
    rows = addresses.tensor((8 * PAGE,), torch.uint8)
    addresses.commit([range(2 * PAGE, 3 * PAGE)])
    rows[2 * PAGE : 3 * PAGE] = 5
    failures = 0
    while True:
        driver.fails_in = failures
        try:
            addresses.commit([range(6 * PAGE)])
        except CommitRefused:
            failures += 1
        else:
            break
        assert addresses.committed == PAGE
        assert len(driver.mapped) == len(driver.open) == 1
        assert len(driver.live) * PAGE == PAGE + pages.spare
        assert (rows[2 * PAGE : 3 * PAGE] == 5).all()
    driver.fails_in = None
    # Spare handles save creations, and the failures themselves leave some.
    assert failures >= 5 + 2 + 2
    assert addresses.committed == 6 * PAGE
    assert rows[: 6 * PAGE].count_nonzero() == PAGE


def test_out_of_device_memory_names_the_call() -> None:
    driver, pages = build(num_pages=3)
    addresses = pages.reserve(8 * PAGE, ROW)
    with pytest.raises(CommitRefused, match=r"256\.0 KiB.*cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"):
        addresses.commit([range(4 * PAGE)])
    assert driver.live == set()
    assert addresses.commit([range(3 * PAGE)]) == [range(3 * PAGE)]


def test_the_last_tensor_takes_everything_with_it() -> None:
    driver, pages = build()
    addresses = pages.reserve(8 * PAGE, ROW)
    rows = addresses.tensor((8 * PAGE,), torch.uint8)
    addresses.commit([range(8 * PAGE)])
    driver.stream.launch()
    del addresses
    gc.collect()
    assert len(driver.mapped) == 8
    del rows
    gc.collect()
    assert (driver.mapped, driver.live, driver.reserved) == ({}, set(), {})


def test_no_addresses_left_is_a_refusal() -> None:
    driver, pages = build()
    driver.fails_in = 0
    with pytest.raises(CommitRefused, match="no addresses"):
        pages.reserve(8 * PAGE, ROW)


def test_a_device_without_mapped_memory_cannot_start() -> None:
    stream = FakeStream()
    with pytest.raises(CannotStart, match="cannot map memory"):
        CudaPages(torch.device("cpu"), FakeDriver(stream, supported=False), lambda: stream)


def test_a_machine_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CannotStart, match="cuda-python") as caught:
        load_driver()
    assert caught.value.help is not None
    assert "tandem-appliance[cuda]" in caught.value.help


def test_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(flags: int) -> None:
        raise RuntimeError("the NVIDIA driver library can only be found via system search")

    bindings = SimpleNamespace(driver=SimpleNamespace(cuInit=fail))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    with pytest.raises(CannotStart, match="no NVIDIA driver"):
        load_driver()
