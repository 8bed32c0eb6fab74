"""What the engine asks of a model: states and joint passes.

A pass is a list of blocks, one a sequence. The model runs the weights once over all rows of a pass and everything
that looks back (rope positions, KV writes, attention) once a sequence. It promises that a row's bits do not depend
on which other blocks share the call (`docs/exactness.md` says how that is kept and measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from tandem.model.config import ModelConfig


class Wants(Enum):
    """Which rows of a block need logits: none while a prompt is read, the last to write on, all to verify guesses."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


class SequenceState:
    """What the model remembers of one sequence: its KV rows. It owns neither tokens nor a length.

    `keys[layer]` and `values[layer]` are [window, kv_heads, head_dim]. Row r holds position r: a pass writes rows
    `start .. start + rows` of its block and reads rows below, so rewinding a sequence is starting lower. The
    tensors are not initialised, so on a CPU the kernel gives memory to a row only when it is first written.

    In memory heads lie outside rows (`kv[layer]` is [2, 1, kv_heads, window, head_dim], keys first): attention reads
    one head's rows in sequence, 1.6 times faster at 1,500 rows than over rows of all heads.
    """

    def __init__(self, config: ModelConfig, window: int, dtype: torch.dtype) -> None:
        shape = (2, 1, config.kv_heads, window, config.head_dim)
        self.window = window
        self.dtype = dtype
        self.kv = [torch.empty(shape, dtype=dtype) for _ in range(config.layers)]
        self.keys = [kv[0, 0].transpose(0, 1) for kv in self.kv]
        self.values = [kv[1, 0].transpose(0, 1) for kv in self.kv]

    @property
    def bytes_a_token(self) -> int:
        """Bytes one row takes, over all layers, keys and values."""
        return sum(kv.nbytes for kv in self.kv) // self.window


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The rows one sequence brings to a pass."""

    tokens: Tensor  # int64 [rows], at least one
    start: int  # position of the first row in its sequence; start + rows <= state.window
    state: SequenceState
    wants: Wants = Wants.LAST

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]


class Model(Protocol):
    @property
    def config(self) -> ModelConfig: ...

    @property
    def row_bucket(self) -> int:
        """Most rows that one product of this device computes without their bits depending on each other.

        Measured at load. A block of at most this many rows gets, row for row, the bits of its rows decoded one at
        a time. A longer block (a prefill chunk) is a pass of its own: its bits depend on its own rows and length
        only, so a prompt read on the same grid is read to the same bits.
        """
        ...

    def new_state(self, window: int) -> SequenceState:
        """An empty state for `window` rows."""
        ...

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        """One joint pass: writes each block's KV rows and returns float32 logits [wanted rows, vocab].

        Wanted rows come in the order of the blocks, and within a block in the order of its tokens. At most one
        block a state; one thread at a time. The tensor is the caller's to change, under `torch.inference_mode`.
        """
        ...
