"""Before any test imports torch: its threads sleep while they wait, as the plan has it for the engine; and kernels
run in Triton's interpreter, which needs no device (`tests/gpu/conftest.py` takes that back where there is one).

And what tests of several folders need."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from limited_box import Hog, LimitedBox, make_limited_box

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For thousands of small tensor operations: threads that wait for each other on a busy machine only slow them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def limited_box(request: pytest.FixtureRequest) -> Iterator[LimitedBox]:
    """A box that can be full, of the memory that the test's module calls `LIMIT`."""
    box = make_limited_box(request.module.LIMIT)
    yield box
    box.remove()


@pytest.fixture
def hog(limited_box: LimitedBox) -> Iterator[Hog]:
    hog = Hog(limited_box)
    yield hog
    hog.end()
