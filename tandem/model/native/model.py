"""A model all of whose passes run in the native step, prompts and answers alike.

Whatever pass makes a row, it has the same bits: a row that an answer left is as good as one read from a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from tandem.model.config import ModelConfig
from tandem.model.interface import Allocate, Block, Wants, allocate_at_once
from tandem.model.native.blocks import Blocks, Rows
from tandem.model.native.step import MOST_ROWS, NativeStep
from tandem.model.passes import Pass, passes
from tandem.model.rope import Rope
from tandem.model.state import KvRows, SequenceState

ROWS_A_PASS: Final = 32  # more do not read a prompt faster, and what they work in no longer lies in the nearest cache


class NativeModel:
    """Implements `interface.Model`."""

    row_bucket = ROWS_A_PASS  # by construction: the step computes each row by itself
    is_row_invariant = True
    mtp = None

    def __init__(self, config: ModelConfig, step: NativeStep, embedding: Blocks, rope: Rope) -> None:
        self.config = config
        self._step = step
        self._embedding = Rows(embedding)
        self._rope = rope

    def new_state(self, window: int, allocate: Allocate | None = None) -> SequenceState:
        config = self.config
        if not 0 < window <= config.window:
            raise ValueError(f"a window of {window} rows; the model has 1 to {config.window}")

        def rows() -> KvRows:
            return KvRows(window, config.kv_heads, config.head_dim, torch.bfloat16, allocate or allocate_at_once)

        return SequenceState(window, torch.bfloat16, [[rows()] for _ in range(config.layers)])

    @torch.inference_mode()
    def forward(self, blocks: Sequence[Block]) -> Tensor:
        logits = [self._run(run) for some in _in_turn(blocks) for run in passes(some, ROWS_A_PASS)]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _run(self, run: Pass) -> Tensor:
        turns = torch.view_as_real(self._rope.at(run.positions)).flatten(1)
        return self._step(run, self._embedding.lookup(run.tokens), turns)


def _in_turn(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Short blocks together; a long one piece after piece, because each reads what the one before it left."""
    short: list[Block] = []
    for block in blocks:
        if block.rows <= (ROWS_A_PASS if block.tree is None else MOST_ROWS):
            short.append(block)
            continue
        if short:
            yield short
            short = []
        for first in range(0, block.rows, ROWS_A_PASS):
            tokens = block.tokens[first : first + ROWS_A_PASS]
            is_last = first + ROWS_A_PASS >= block.rows
            wants = Wants.NONE if block.wants is Wants.LAST and not is_last else block.wants
            yield [Block(tokens, block.start + first, block.state, wants)]
    if short:
        yield short
