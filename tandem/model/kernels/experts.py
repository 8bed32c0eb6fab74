"""A layer's experts in two packed matrices: a pass of few rows reads each expert that any row chose once.

Which experts those are is known on the device only, so there is a program for as many as there could be; those that
find none leave at once. An expert's tile goes over all rows, and a row keeps what comes from an expert of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from tandem.model.config import ExpertsConfig
from tandem.model.kernels.products import OUTPUTS, constants, dot_stretch, given, widen
from tandem.model.kernels.running import DOT, ROWS, launch
from tandem.model.layers import gated_silu
from tandem.model.weights.packed import Packed


class PackedExperts:
    """Implements `moe.Together`."""

    def __init__(self, gate_up: Packed, down: Packed, config: ExpertsConfig) -> None:
        """`gate_up` [experts x 2 width, hidden] and `down` [experts x hidden, width], an expert behind the other."""
        self.gate_up = gate_up
        self.down = down
        self._experts = config.experts

    def __call__(self, rows: Tensor, choices: Tensor) -> Tensor:
        """[rows, hidden] and int64 [rows, chosen] -> float32 [rows, chosen, hidden]"""
        return (self._few if rows.shape[0] <= ROWS else self._many)(rows.bfloat16(), choices)

    def _few(self, rows: Tensor, choices: Tensor) -> Tensor:
        count, chosen = choices.shape
        if count < ROWS:  # by copies of the first row, which choose nothing new
            rows = torch.cat([rows, rows[:1].expand(ROWS - count, -1)])
            choices = torch.cat([choices, choices[:1].expand(ROWS - count, -1)])
        rows, choices = rows.contiguous(), choices.contiguous()
        union = chosen_by_any(choices, min(self._experts, ROWS * chosen))
        wide = _multiply(rows, self.gate_up, choices, union, self._experts, shared_rows=True)
        narrow = _multiply(gated_silu(wide).contiguous(), self.down, choices, union, self._experts, shared_rows=False)
        return narrow.view(ROWS, chosen, -1)[:count].float()

    def _many(self, rows: Tensor, choices: Tensor) -> Tensor:
        """A prompt's chunk. It waits for the device to say which experts were chosen."""
        wide, hidden = self.gate_up.shape[0] // self._experts, rows.shape[1]
        answers = torch.empty(*choices.shape, hidden, device=rows.device)
        for number in torch.unique(choices).tolist():
            row, rank = (choices == number).nonzero(as_tuple=True)
            gate_up = _expert(self.gate_up, number, wide)
            down = _expert(self.down, number, hidden)
            answers[row, rank] = functional.linear(gated_silu(functional.linear(rows[row], gate_up)), down).float()
        return answers


def _expert(weight: Packed, number: int, outputs: int) -> Tensor:
    return widen(weight, slice(number * outputs, (number + 1) * outputs))


def chosen_by_any(choices: Tensor, most: int) -> Tensor:
    """int64 [most]: every expert that occurs, once, then -1. The host need not know how many."""
    flat = choices.flatten().sort().values
    fresh = torch.ones_like(flat, dtype=torch.bool)
    fresh[1:] = flat[1:] != flat[:-1]
    return torch.full((most,), -1, device=choices.device).scatter_(0, fresh.cumsum(0) - 1, flat)


def _multiply(
    rows: Tensor, weight: Packed, choices: Tensor, union: Tensor, experts: int, *, shared_rows: bool
) -> Tensor:
    """bfloat16 [16 x chosen, out]. `rows` are the pass's own, or one for every choice."""
    out, width, chosen = weight.shape[0] // experts, weight.shape[1], choices.shape[1]
    answer = torch.empty(ROWS * chosen, out, dtype=torch.bfloat16, device=rows.device)
    launch(
        _multiply_chosen,
        (triton.cdiv(out, OUTPUTS), union.shape[0]),
        rows, weight.values, given(weight.scales), given(weight.factor), choices, union, answer, out, width,
        **constants(weight),
        FACTOR=weight.factor is not None,
        CHOSEN=chosen,
        CHOICES=triton.next_power_of_2(chosen),
        SHARED=shared_rows,
        ROWS=ROWS,
        DOT=DOT,
        num_warps=4,
        num_stages=4,
    )  # fmt: skip
    return answer


@triton.jit
def _multiply_chosen(
    rows,
    values,
    scales,
    factor,
    choices,
    union,
    answer,
    out,
    width,
    ELEMENT: tl.constexpr,
    SCALE: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    FACTOR: tl.constexpr,
    CHOSEN: tl.constexpr,
    CHOICES: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    DOT: tl.constexpr,
):
    expert = tl.load(union + tl.program_id(1))
    if expert >= 0:
        inner = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
        inside = inner < out
        output = expert * out + inner
        row, rank = tl.arange(0, ROWS), tl.arange(0, CHOICES)
        known = (rank < CHOSEN)[None, :] & (row >= 0)[:, None]
        mine = tl.load(choices + row[:, None] * CHOSEN + rank[None, :], mask=known, other=-1) == expert
        has = tl.sum(mine.to(tl.int32), axis=1) > 0
        place = row * CHOSEN + tl.sum(tl.where(mine, rank[None, :], 0), axis=1)
        source = row if SHARED else place
        total = dot_stretch(
            rows + source[:, None] * width, values, scales, output, inside, width, 0,
            ELEMENT, SCALE, SCALE_ROWS, SCALE_INPUTS, OUTPUTS, INPUTS, 1, ROWS, DOT,
        )  # fmt: skip
        if FACTOR:
            total = total * tl.load(factor + output, mask=inside, other=0.0)[None, :]
        kept = has[:, None] & inside[None, :]
        tl.store(answer + place[:, None] * out + inner[None, :], total.to(tl.bfloat16), mask=kept)
