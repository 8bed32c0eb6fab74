"""The KV pool on a real CUDA device: the same bits as ordinary tensors, memory that comes and goes, and what it costs.

One run of half a minute: `python -m pytest -m gpu -s tests/gpu`. The rules of the driver calls are tested without a
device in tests/memory.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tandem.memory.kvpool import KVPool
from tandem.memory.pages import CommitRefused
from tandem.units import GIB, MIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

HEADS, DIM, WINDOW, MARGIN, LAYERS = 4, 256, 32_768, 256, 4
SHAPE = (2, 1, HEADS, WINDOW, DIM)
LENGTHS = (300, 8_192, 30_000)


@pytest.fixture
def pages() -> Iterator[object]:
    from tandem.memory.cuda_pages import CudaPages

    device = torch.device("cuda", 0)
    torch.zeros(1, device=device)  # torch makes the context
    backend = CudaPages(device)
    yield backend
    gc.collect()
    backend.trim()


@pytest.fixture
def pool(pages: object) -> KVPool:
    return KVPool(pages, MARGIN)  # type: ignore[arg-type]


def allocate(pool: KVPool, layers: int = LAYERS) -> list[Tensor]:
    slot = pool.slot()
    return [slot.allocate(SHAPE, torch.bfloat16, row_axis=3) for _ in range(layers)]


def free_memory() -> int:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def decode(tensors: list[Tensor], rows: int, steps: int) -> Tensor:
    """Attention over `rows` rows, whose output makes the next row: any wrong bit spreads."""
    generator = torch.Generator("cuda").manual_seed(rows)
    for kv in tensors:
        kv[:, :, :, :rows] = torch.randn(2, 1, HEADS, rows, DIM, device="cuda", dtype=kv.dtype, generator=generator)
    query = torch.randn(1, HEADS, 1, DIM, device="cuda", dtype=torch.bfloat16, generator=generator)
    for step in range(steps):
        for kv in tensors:
            keys, values = kv.narrow(3, 0, rows + step).unbind(0)
            query = functional.scaled_dot_product_attention(query, keys, values) + query
            kv[:, :, :, rows + step] = query[:, :, 0]
    return query


@pytest.mark.parametrize("rows", LENGTHS)
def test_bits_are_those_of_ordinary_tensors(pool: KVPool, rows: int) -> None:
    plain = [torch.zeros(SHAPE, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]
    paged = allocate(pool)
    assert all(a.stride() == b.stride() and a.dtype == b.dtype for a, b in zip(plain, paged, strict=True))
    pool.slots[0].commit(rows + 32)
    assert torch.equal(decode(plain, rows, 32), decode(paged, rows, 32))
    for a, b in zip(plain, paged, strict=True):
        assert torch.equal(a[:, :, :, : rows + 32], b[:, :, :, : rows + 32])


def test_a_captured_graph_reads_rows_that_were_committed_later(pool: KVPool) -> None:
    """Addresses stay, so a graph does; it is captured on committed rows and replayed after others came and went."""
    [kv] = allocate(pool, layers=1)
    pool.slots[0].commit(1024)
    query = torch.ones(1, HEADS, 1, DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(query)

    def attend() -> None:
        keys, values = kv.narrow(3, 0, 1024).unbind(0)
        out.copy_(functional.scaled_dot_product_attention(query, keys, values))

    attend()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend()
    pool.slots[0].give_back(0)
    pool.slots[0].commit(1024)
    kv[:, :, :, :1024] = 2
    graph.replay()
    assert (out == 2).all()


def test_memory_follows_the_rows(pool: KVPool) -> None:
    before = free_memory()
    tensors = allocate(pool)
    assert before - free_memory() < 4 * MIB
    pool.slots[0].commit(16_000)
    assert before - free_memory() == pytest.approx(pool.committed, abs=8 * MIB)
    for kv in tensors:
        assert kv[:, :, :, :16_000].count_nonzero() == 0
        kv[:, :, :, :16_000] = 1
    pool.slots[0].give_back(300)
    assert all((kv[:, :, :, :300] == 1).all() for kv in tensors)
    assert before - free_memory() == pytest.approx(pool.committed + pool.spare, abs=8 * MIB)
    pool.slots[0].commit(16_000)
    fresh = pool.slots[0].rows // 2
    assert all(kv[:, :, :, fresh:16_000].count_nonzero() == 0 for kv in tensors)
    del tensors, kv


def test_a_commit_the_device_cannot_hold_leaves_nothing(pool: KVPool) -> None:
    free = free_memory()
    rows = free // (2 * HEADS * DIM * 2) + GIB // 1024
    tensor = pool.slot().allocate((2, 1, HEADS, rows, DIM), torch.bfloat16, row_axis=3)
    pool.slots[0].commit(100)
    tensor[:, :, :, :100] = 3
    committed = pool.committed
    with pytest.raises(CommitRefused, match="OUT_OF_MEMORY"):
        pool.slots[0].commit(rows)
    pool.check_integrity()
    assert pool.committed == committed
    assert (tensor[:, :, :, :100] == 3).all()
    assert free - free_memory() < committed + pool.spare + 64 * MIB


def test_cost_of_commits(pool: KVPool, capsys: pytest.CaptureFixture[str]) -> None:
    allocate(pool, layers=16)
    fresh, again = [], []
    for times in (fresh, again):
        for rows in range(256, WINDOW, 256):
            began = time.perf_counter()
            taken = pool.slots[0].commit(rows)
            torch.cuda.synchronize()
            if taken:
                times.append((time.perf_counter() - began) / (taken / (2 * MIB)))
        began = time.perf_counter()
        freed = pool.slots[0].give_back(0)
        back = (time.perf_counter() - began) / (freed / (2 * MIB))
    with capsys.disabled():
        print(f"\n{torch.cuda.get_device_name()}: microseconds a page of 2 MiB")
        for name, times in (("first commit", fresh), ("after giving back", again)):
            times.sort()
            print(f"  {name}: p50 {times[len(times) // 2] * 1e6:.0f}, p99 {times[int(len(times) * 0.99)] * 1e6:.0f}")
        print(f"  give back: {back * 1e6:.0f}")
    assert pool.committed == 0
