"""Experts: each one read once a pass, and a row's answer its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tandem.model.moe import Experts, FeedForward

HIDDEN, WIDTH, EXPERTS, CHOSEN = 12, 6, 10, 3


class Counted:
    """A product that remembers how many rows each call brought, and computes row by row."""

    def __init__(self, *shape: int) -> None:
        self.weight = torch.randn(*shape, generator=GENERATOR) * 0.4
        self.calls: list[int] = []

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        self.calls.append(rows.shape[0])
        return torch.stack([self.weight @ row for row in rows])


GENERATOR = torch.Generator().manual_seed(0)


def feed_forward() -> FeedForward:
    return FeedForward(Counted(2 * WIDTH, HIDDEN), Counted(HIDDEN, WIDTH))


@pytest.fixture
def experts() -> Experts:
    GENERATOR.manual_seed(0)
    return Experts(
        router=Counted(EXPERTS, HIDDEN),
        experts=[feed_forward() for _ in range(EXPERTS)],
        chosen=CHOSEN,
        shared=feed_forward(),
        shared_gate=Counted(1, HIDDEN),
    )


def rows(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def by_definition(experts: Experts, row: Tensor) -> Tensor:
    """One row, every expert run, those not chosen weighed with nothing."""

    def answer(part: FeedForward) -> Tensor:
        gate, up = (part.gate_up.weight @ row).chunk(2)  # type: ignore[attr-defined]
        return part.down.weight @ (functional.silu(gate) * up)  # type: ignore[attr-defined]

    shares = (experts.router.weight @ row).softmax(0)  # type: ignore[attr-defined]
    kept = torch.where(shares >= shares.sort(descending=True).values[CHOSEN - 1], shares, 0)
    kept = kept / kept.sum()
    routed = sum(share * answer(part) for share, part in zip(kept, experts.experts, strict=True))
    return routed + torch.sigmoid(experts.shared_gate.weight @ row) * answer(experts.shared)  # type: ignore[attr-defined]


def test_a_row_is_the_sum_of_its_experts_and_the_shared_one(experts: Experts) -> None:
    brought = rows(9)
    torch.testing.assert_close(experts(brought), torch.stack([by_definition(experts, row) for row in brought]))


def test_a_pass_reads_the_union_of_the_chosen_experts_once(experts: Experts) -> None:
    brought = rows(7)
    _, choices = experts.route(brought)
    for each in (experts.router, experts.shared_gate):
        each.calls.clear()  # type: ignore[attr-defined]
    experts(brought)
    for number, expert in enumerate(experts.experts):
        count = int((choices == number).sum())
        for product in expert.products():
            assert product.calls == ([count] if count else [])  # type: ignore[attr-defined]
    for product in experts.shared.products():
        assert product.calls == [7]  # type: ignore[attr-defined]
    assert choices.unique().numel() < EXPERTS, "a test in which every expert is chosen shows nothing"


def test_a_rows_bits_do_not_depend_on_its_neighbours(experts: Experts) -> None:
    brought = rows(12)
    together = experts(brought)
    for row in range(12):
        assert torch.equal(experts(brought[row : row + 1])[0], together[row])
    assert torch.equal(experts(brought.flip(0)).flip(0), together)


def test_shares_add_up_to_one_best_first(experts: Experts) -> None:
    shares, choices = experts.route(rows(20))
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(20))
    assert bool((shares.diff(dim=1) <= 0).all())
    assert all(len(set(chosen)) == CHOSEN for chosen in choices.tolist())
