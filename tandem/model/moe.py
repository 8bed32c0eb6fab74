"""A mixture of experts: each row is sent through the few experts its router chooses, and through one they all share.

A joint pass reads each chosen expert once, however many rows and sequences chose it. What a row gets is added up in
the order of its own choices, so its bits do not depend on what its neighbours chose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem.model import exact
from tandem.model.layers import gated_silu
from tandem.model.weights.quant import Projection


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The dense form, and one expert."""

    gate_up: Projection  # gate and up stacked
    down: Projection

    def products(self) -> Iterator[Projection]:
        yield from (self.gate_up, self.down)

    def gated_widths(self) -> Iterator[int]:
        yield self.down.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, hidden]"""
        return self.down(gated_silu(self.gate_up(rows)))


class Together(Protocol):
    """All experts of a layer as one thing."""

    def __call__(self, rows: Tensor, choices: Tensor) -> Tensor:
        """[rows, hidden] and int64 [rows, chosen] -> float32 [rows, chosen, hidden]"""
        ...


@dataclass(frozen=True, slots=True)
class Experts:
    router: Projection  # [experts, hidden]
    experts: Sequence[FeedForward]
    chosen: int
    shared: FeedForward
    shared_gate: Projection  # [1, hidden]
    together: Together | None = None  # the experts again, where kernels run them: `experts` is empty then

    def products(self) -> Iterator[Projection]:
        yield from (self.router, self.shared_gate)
        yield from self.shared.products()
        for expert in self.experts:
            yield from expert.products()

    def gated_widths(self) -> Iterator[int]:
        for each in (self.shared, *self.experts):
            yield from each.gated_widths()

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, hidden] -> float32 [rows, hidden]"""
        shares, choices = self.route(rows)
        answers = self.together(rows, choices) if self.together else self._one_by_one(rows, choices)
        total = answers[:, 0] * shares[:, :1]
        for rank in range(1, self.chosen):
            total = total + answers[:, rank] * shares[:, rank, None]
        return total + exact.sigmoid(self.shared_gate(rows)) * self.shared(rows).float()

    def _one_by_one(self, rows: Tensor, choices: Tensor) -> Tensor:
        answers = torch.empty(*choices.shape, rows.shape[1], device=rows.device)
        for number in torch.unique(choices).tolist():
            row, rank = (choices == number).nonzero(as_tuple=True)
            answers[row, rank] = self.experts[number](rows[row]).float()
        return answers

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's shares, which add up to 1, and their experts, best first: float32 and int64 [rows, chosen]."""
        shares, choices = self.router(rows).float().softmax(dim=-1).topk(self.chosen, dim=-1)
        return shares / shares.sum(dim=-1, keepdim=True), choices
