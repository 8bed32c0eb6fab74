"""A mixture of experts: each row is sent through the few experts its router chooses, and through one they all share.

A joint pass reads each chosen expert once, however many rows and sequences chose it. What a row gets is added up in
the order of its own choices, so its bits do not depend on what its neighbours chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.model.layers import gated_silu
from tandem.model.weights.quant import Projection


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    experts: int
    chosen: int  # experts a row
    width: int  # feed-forward width of one
    shared_width: int


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The dense form, and one expert."""

    gate_up: Projection  # gate and up stacked
    down: Projection

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, hidden]"""
        return self.down(gated_silu(self.gate_up(rows)))


@dataclass(frozen=True, slots=True)
class Experts:
    router: Projection  # [experts, hidden]
    experts: Sequence[FeedForward]
    chosen: int
    shared: FeedForward
    shared_gate: Projection  # [1, hidden]

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, hidden]"""
        shares, choices = self.route(rows)
        answers = rows.new_empty(*choices.shape, rows.shape[1])
        for number in torch.unique(choices).tolist():
            row, rank = (choices == number).nonzero(as_tuple=True)
            answers[row, rank] = self.experts[number](rows[row])
        total = answers[:, 0] * shares[:, :1]
        for rank in range(1, self.chosen):
            total = total + answers[:, rank] * shares[:, rank, None]
        return total + self.shared_gate(rows).sigmoid() * self.shared(rows)

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's experts, best first, and their shares, which add up to 1: two [rows, chosen]."""
        shares, choices = self.router(rows).float().softmax(dim=-1).topk(self.chosen, dim=-1)
        return (shares / shares.sum(dim=-1, keepdim=True)).to(rows.dtype), choices
