"""Pages against the kernel: what is booked is what `mincore` sees, and a commit that fails leaves nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
import torch
from failing_kernel import FailingKernel
from residency_of import process_rss, resident_bytes

from tandem.errors import CannotStart
from tandem.memory.host_pages import HUGE, Advice, HostPages, Linux, page_for
from tandem.memory.pages import CommitRefused
from tandem.units import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("row", "page"),
    [
        (384, 128 * KIB),  # SmolLM2: 3 heads x 64 x 2 bytes
        (256, 64 * KIB),
        (4, 4 * KIB),
        (1 * KIB, 256 * KIB),
        (2 * KIB, HUGE),  # 8 heads x 128 x 2 bytes: 1,024 rows a page
        (64 * KIB, HUGE),
    ],
)
def test_page_size_follows_the_row(row: int, page: int) -> None:
    assert page_for(row, huge=HUGE) == page


def test_without_huge_pages_a_page_holds_256_rows() -> None:
    assert page_for(2 * KIB, huge=None) == 512 * KIB
    assert page_for(1 * MIB, huge=None) == 2 * MIB
    assert page_for(2 * KIB, huge=512 * MIB) == 512 * KIB  # a kernel of 64 KiB pages


@pytest.mark.parametrize("row", [384, 4 * KIB])
def test_the_book_is_the_kernels(row: int) -> None:
    addresses = HostPages().reserve(8 * MIB, row)
    tensor = addresses.tensor((addresses.size,), torch.uint8)
    page = addresses.page
    assert resident_bytes(tensor) == 0
    for start, stop in ((0, 1), (page * 2, page * 3 + 1), (0, page * 2)):
        addresses.commit([range(start, stop)])
        assert resident_bytes(tensor) == addresses.committed
    addresses.give_back([range(page // 2, page * 3)])
    assert resident_bytes(tensor) == addresses.committed == 2 * page


def test_more_can_be_reserved_than_the_machine_has_and_rss_follows_the_book() -> None:
    before = process_rss()
    ranges = [HostPages().reserve(64 * GIB, 4 * KIB) for _ in range(4)]
    assert process_rss() - before < 2 * MIB
    for addresses in ranges:
        addresses.commit([range(32 * MIB)])
    assert process_rss() - before == pytest.approx(128 * MIB, abs=4 * MIB)
    for addresses in ranges:
        addresses.give_back([range(8 * MIB, addresses.size)])
    assert process_rss() - before == pytest.approx(32 * MIB, abs=4 * MIB)


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("step", range(3))
def test_a_commit_that_fails_anywhere_leaves_nothing(guard: bool, step: int) -> None:
    kernel = FailingKernel()
    addresses = HostPages(guard, kernel).reserve(64 * 64 * KIB, 256)
    tensor, page = addresses.tensor((addresses.size,), torch.uint8), addresses.page
    for held in (1, 4):
        addresses.commit([range(held * page, (held + 1) * page)])
        tensor[held * page] = 5
    kernel.fails_in = step  # the commit has three runs: around and between what is held
    with pytest.raises(CommitRefused, match="Cannot allocate"):
        addresses.commit([range(8 * page)])
    assert resident_bytes(tensor) == addresses.committed == 2 * page
    assert (tensor[page].item(), tensor[4 * page].item()) == (5, 5)
    kernel.fails_in = None
    addresses.commit([range(8 * page)])
    assert resident_bytes(tensor) == addresses.committed == 8 * page
    assert tensor[: 8 * page].count_nonzero().item() == 2


def test_no_addresses_left_is_a_refusal() -> None:
    with pytest.raises(CommitRefused, match="no addresses"):
        HostPages().reserve(1 << 50, 4 * KIB)


def test_an_old_kernel_cannot_start() -> None:
    class Old(Linux):
        def advise(self, address: int, size: int, advice: Advice) -> None:
            if advice is Advice.COMMIT:
                raise OSError(22, "Invalid argument")

    with pytest.raises(CannotStart, match=r"Linux 5\.14"):
        HostPages(kernel=Old())


def test_other_threads_run_during_a_commit() -> None:
    """`mmap.madvise` would hold the interpreter for the whole of it."""
    addresses = HostPages().reserve(256 * MIB, 512)
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks
    addresses.commit([range(addresses.size)])
    during = ticks - before
    done.set()
    thread.join()
    assert during > 100


def run_python(code: str) -> int:
    prelude = "import torch\nfrom tandem.memory.host_pages import HostPages\n"
    return subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, timeout=60).returncode


def test_guarded_rows_without_memory_cannot_be_touched() -> None:
    touch = (
        "pages = HostPages(guard=True).reserve(1 << 20, 256)\n"
        "rows = pages.tensor((1 << 20,), torch.uint8)\n"
        "pages.commit([range(1 << 20)]); rows[-1] = 1; pages.give_back([range(1 << 19, 1 << 20)]); rows[0] = 1\n"
    )
    assert run_python(touch) == 0
    assert run_python(touch + "rows[-1].item()\n") == -signal.SIGSEGV


def test_a_process_may_end_with_tensors_in_use() -> None:
    code = (
        "pages = HostPages().reserve(1 << 24, 256); pages.commit([range(1 << 24)])\n"
        "rows = pages.tensor((1 << 24,), torch.uint8)\n"
        "torch.kept = rows; cycle = [rows]; cycle.append(cycle)\n"
    )
    assert run_python(code) == 0
