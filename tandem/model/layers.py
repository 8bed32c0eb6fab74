"""The small parts between projections. Each treats a row without looking at its neighbours."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


class RmsNorm:
    """Root mean square norm of the float32 residual stream, answered in the activations' dtype."""

    def __init__(self, weight: Tensor, epsilon: float, dtype: torch.dtype) -> None:
        self.weight = weight  # float32 [hidden]
        self._epsilon = epsilon
        self._dtype = dtype

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, hidden]"""
        return functional.rms_norm(rows, self.weight.shape, self.weight, self._epsilon).to(self._dtype)


def gated_silu(gate_up: Tensor) -> Tensor:
    """[rows, 2 x feed_forward], the gate's half first -> silu(gate) * up, [rows, feed_forward]"""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
