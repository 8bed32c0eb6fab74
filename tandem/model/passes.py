"""How the blocks of one call share runs of the weights.

A run works on the rows of all its blocks stacked; a span says where a block's rows lie in the run and in its own
sequence. Who may share is decided by row counts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tandem.model.interface import Block, SequenceState, Wants
from tandem.model.placement import HOST, moved
from tandem.model.tree import Tree, chain

if TYPE_CHECKING:
    from tandem.model.rounds import RoundTables


@dataclass(frozen=True, slots=True)
class Span:
    """One block's rows."""

    state: SequenceState
    start: int  # first row in the sequence
    first: int  # first row in the run
    rows: int
    tree: Tree  # which row follows which
    settled: bool  # its rows are there to stay; otherwise a path of them will be chosen
    mask: Tensor | None  # [rows, start + rows], added to scores; None for a small block, whose rows attend one by one

    @property
    def place(self) -> slice:
        """Its rows in the run."""
        return slice(self.first, self.first + self.rows)


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of the weights."""

    tokens: Tensor  # int64 [rows], on the host
    positions: Tensor  # int64 [rows], on the model's device, as all that follows
    spans: tuple[Span, ...]
    wanted: Tensor | None  # int64, rows whose logits are wanted; None: all
    tables: RoundTables | None = None  # of a round that runs on kernels; `spans` are not looked at then

    def filled(self, answer: Tensor) -> Tensor:
        """[rows of all spans, ...] -> [rows, ...]: rows the pass was filled up with are what its first row is."""
        missing = self.positions.shape[0] - answer.shape[0]
        return answer if not missing else torch.cat([answer, answer[:1].expand(missing, *answer.shape[1:])])


def passes(
    blocks: Sequence[Block], row_bucket: int, device: torch.device = HOST.device, fill_to: int = 0
) -> list[Pass]:
    """Cut the blocks of one call, in order, into runs: blocks share one while their rows fit `row_bucket`, a longer
    block (a prefill chunk) runs alone, and no block is split. A run of fewer rows than `fill_to` gets copies of its
    first row."""
    assert len({id(block.state) for block in blocks}) == len(blocks), "two blocks of one sequence in a call"
    return [_stack(shared, row_bucket, device, fill_to) for shared in _shares(blocks, row_bucket)]


def _shares(blocks: Sequence[Block], row_bucket: int) -> Iterator[list[Block]]:
    shared: list[Block] = []
    rows = 0
    for block in blocks:
        if shared and rows + block.rows > row_bucket:
            yield shared
            shared, rows = [], 0
        shared.append(block)
        rows += block.rows
    if shared:
        yield shared


def _stack(blocks: Sequence[Block], row_bucket: int, device: torch.device, fill_to: int) -> Pass:
    spans: list[Span] = []
    positions: list[int] = []
    wanted: list[int] = []
    for block in blocks:
        tree, settled = block.tree or chain(block.rows), block.tree is None
        assert tree.rows == block.rows, "a tree of other rows than its block's"
        block.state.begin(block.start, block.rows, settled)
        first, end = len(positions), len(positions) + block.rows
        chunk = settled and block.rows > row_bucket
        mask = causal_mask(block.start, block.rows, block.state.dtype, device) if chunk else None
        spans.append(Span(block.state, block.start, first, block.rows, tree, settled, mask))
        positions += [block.start + depth for depth in tree.depths]
        wanted += range({Wants.ALL: first, Wants.LAST: end - 1, Wants.NONE: end}[block.wants], end)
    tokens, rows = [block.tokens for block in blocks], len(positions)
    if rows < fill_to:
        tokens.append(tokens[0][:1].expand(fill_to - rows))
        positions += positions[:1] * (fill_to - rows)
    return Pass(
        tokens=torch.cat(tokens) if len(tokens) > 1 else tokens[0],
        positions=moved(torch.tensor(positions), device),
        spans=tuple(spans),
        wanted=moved(torch.tensor(wanted, dtype=torch.int64), device) if len(wanted) < len(positions) else None,
    )


def causal_mask(start: int, rows: int, dtype: torch.dtype, device: torch.device = HOST.device) -> Tensor:
    """[rows, start + rows], to be added to scores: a row sees everything up to itself."""
    return torch.full((rows, start + rows), -torch.inf, dtype=dtype, device=device).triu_(start + 1)
