"""What every page backend promises, held against the host's and, with a driver made of host memory, the CUDA one."""

from __future__ import annotations

import gc

import pytest
import torch
from fake_driver import FakeDriver, FakeStream
from residency_of import is_mapped

from tandem.memory.cuda_pages import CudaPages
from tandem.memory.host_pages import HostPages
from tandem.memory.pages import AddressRange, PageBackend

ROW = 512  # bytes
ROWS = 4096


@pytest.fixture(params=["host", "host, guarded", "cuda"])
def backend(request: pytest.FixtureRequest) -> PageBackend:
    if request.param == "cuda":
        stream = FakeStream()
        return CudaPages(torch.device("cpu"), FakeDriver(stream), lambda: stream, spare_pages=2)
    return HostPages(guard="guarded" in request.param)


@pytest.fixture
def addresses(backend: PageBackend) -> AddressRange:
    return backend.reserve(ROWS * ROW, ROW)


def test_reserved_addresses_hold_no_memory(addresses: AddressRange) -> None:
    assert addresses.size >= ROWS * ROW
    assert addresses.committed == 0


def test_a_commit_takes_whole_pages_once(addresses: AddressRange) -> None:
    page = addresses.page
    assert addresses.commit([range(page - 1, page + 1)]) == [range(2 * page)]
    assert addresses.commit([range(2 * page)]) == []
    assert addresses.commit([range(4 * page)]) == [range(2 * page, 4 * page)]
    assert addresses.committed == 4 * page
    assert addresses.commit([range(page, page)]) == []


def test_giving_back_keeps_every_page_that_is_partly_outside(addresses: AddressRange) -> None:
    page = addresses.page
    addresses.commit([range(4 * page)])
    assert addresses.give_back([range(page + 1, 3 * page - 1)]) == []
    assert addresses.give_back([range(page - 1, 3 * page + 1)]) == [range(page, 3 * page)]
    assert addresses.give_back([range(page, 3 * page)]) == []
    assert addresses.committed == 2 * page


def test_spans_that_share_a_page_take_it_once(addresses: AddressRange) -> None:
    page = addresses.page
    spans = [range(1, page + 1), range(page + 2, 2 * page), range(3 * page, 3 * page + 1)]
    assert addresses.commit(spans) == [range(2 * page), range(3 * page, 4 * page)]
    assert addresses.committed == 3 * page
    addresses.check_integrity()
    assert addresses.give_back([range(page), range(page + 1, 4 * page)]) == [range(page), range(3 * page, 4 * page)]
    addresses.check_integrity()


def test_the_tensor_is_an_ordinary_one(addresses: AddressRange) -> None:
    tensor = addresses.tensor((ROWS, 4, 64), torch.bfloat16)
    static = torch.empty((ROWS, 4, 64), dtype=torch.bfloat16)
    assert (tensor.shape, tensor.stride(), tensor.dtype, tensor.device) == (
        (static.shape, static.stride(), static.dtype, static.device)
    )
    assert tensor.is_contiguous()
    addresses.commit([range(100 * ROW)])
    tensor[:100] = 1.5
    assert tensor[99].float().sum().item() == 1.5 * 4 * 64


def test_rows_keep_their_values_and_new_memory_is_zero(addresses: AddressRange) -> None:
    page, rows = addresses.page, addresses.page // ROW
    tensor = addresses.tensor((ROWS, ROW // 4), torch.int32)
    addresses.commit([range(4 * page)])
    assert tensor[: 4 * rows].count_nonzero() == 0
    tensor[: 4 * rows] = 7
    addresses.give_back([range(page, 3 * page)])
    addresses.commit([range(page, 3 * page)])
    assert tensor[rows : 3 * rows].count_nonzero() == 0
    assert (tensor[:rows] == 7).all()
    assert (tensor[3 * rows : 4 * rows] == 7).all()


def test_the_addresses_live_as_long_as_the_last_view(backend: PageBackend) -> None:
    addresses = backend.reserve(ROWS * ROW, ROW)
    tensor = addresses.tensor((ROWS, ROW), torch.uint8)
    start = tensor.data_ptr()
    addresses.commit([range(addresses.size)])
    tensor[:] = 3
    view = tensor[10:20]
    del addresses, tensor
    gc.collect()
    assert view.sum().item() == 3 * 10 * ROW
    del view
    gc.collect()
    assert not is_mapped(start)


def test_a_tensor_larger_than_its_addresses_is_our_bug(addresses: AddressRange) -> None:
    with pytest.raises(AssertionError, match="do not fit"):
        addresses.tensor((addresses.size + 1,), torch.uint8)
