"""A model whose short passes run natively and whose prompt chunks run as matrix products.

Which of the two makes a row depends on the length of its block alone, never on who else is served: prompts are read
in chunks on their grid, answers are written in short blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import torch
from torch import Tensor

from tandem.model.config import ModelConfig
from tandem.model.interface import Allocate, Block, GuessingHead, Model
from tandem.model.native.step import NativeStep
from tandem.model.passes import Pass, passes
from tandem.model.rope import Rope
from tandem.model.state import SequenceState
from tandem.model.weights.quant import Matrix

ROWS_A_PASS: Final = 32  # above it a chunk's products are faster


class SteppedModel:
    """Implements `interface.Model`."""

    row_bucket = ROWS_A_PASS  # by construction: the step computes each row by itself

    def __init__(self, chunks: Model, step: NativeStep, embedding: Matrix, rope: Rope) -> None:
        """`chunks` is the same model for longer blocks, and makes the states."""
        self._chunks = chunks
        self._step = step
        self._embedding = embedding
        self._rope = rope

    @property
    def config(self) -> ModelConfig:
        return self._chunks.config

    @property
    def mtp(self) -> GuessingHead | None:
        return self._chunks.mtp

    def new_state(self, window: int, allocate: Allocate | None = None) -> SequenceState:
        return self._chunks.new_state(window) if allocate is None else self._chunks.new_state(window, allocate)

    @torch.inference_mode()
    def forward(self, blocks: Sequence[Block]) -> Tensor:
        logits: list[Tensor] = []
        for is_chunk, some in groupby(blocks, key=lambda block: block.rows > ROWS_A_PASS):
            if is_chunk:
                logits.append(self._chunks.forward(list(some)))
            else:
                logits += map(self._run, passes(list(some), ROWS_A_PASS))
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _run(self, run: Pass) -> Tensor:
        turns = torch.view_as_real(self._rope.at(run.positions)).flatten(1)
        return self._step(run, self._embedding.lookup(run.tokens), turns)
