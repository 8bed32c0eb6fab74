"""Rotary positions.

GGUF files of the Llama family store query and key outputs so that the two numbers that turn together lie side by
side; each pair is one complex number and a turn is one complex product. The files' order is kept: queries and keys
share it, and a dot product does not mind the order of its terms.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Rope:
    """Turns for every position of a window, made once."""

    def __init__(
        self, head_dim: int, base: float, window: int, factors: Tensor | None = None, device: torch.device | None = None
    ) -> None:
        """`factors` [head_dim / 2] divide the frequencies (long-context models carry them)."""
        frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        if factors is not None:
            frequencies = frequencies / factors.double()
        angles = torch.outer(torch.arange(window, dtype=torch.float64), frequencies)
        turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
        self._turns = turns.to(device)  # [window, head_dim / 2]

    @property
    def device(self) -> torch.device:
        return self._turns.device

    def at(self, positions: Tensor) -> Tensor:
        """int64 [rows] -> complex64 [rows, 1, head_dim / 2], for every layer of one pass."""
        return self._turns.index_select(0, positions).unsqueeze(1)


def turn_(heads: Tensor, turns: Tensor) -> None:
    """Rotate [rows, heads, head_dim] in place. Computed in float32 whatever the rows' dtype."""
    pairs = torch.view_as_complex(heads.float().view(*heads.shape[:-1], -1, 2))
    heads.copy_(torch.view_as_real(pairs * turns).flatten(-2))
