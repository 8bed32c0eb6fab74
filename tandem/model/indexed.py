"""Indexed attention: a row attends to the blocks of its past that a small index finds, not to all of it.

Beside its KV row a token leaves an index key. Every `ratio` tokens in a line make a block; its key is the mean of
theirs. A row scores the complete blocks of its path, takes the best within the budget, and attends to their tokens
and to those after the last complete block. The cost of a decoded row stops growing once the budget is full.

A block belongs to the row that completes it. Before the pass that is a place in the sequence; within a draft tree
it is a row, and rows of other branches cannot see it. Among equal scores the earlier block is taken, so that a
choice depends on nothing but the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tandem.model.config import IndexConfig
from tandem.model.placement import moved
from tandem.model.state import Allocate, allocate_at_once
from tandem.model.tree import Tree

ROWS_AT_ONCE: Final = 16
"""Rows whose selected KV is gathered together: a prompt's chunk would take gigabytes at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Which KV rows each row of a block attends to, in the order of their positions; padding stands last."""

    rows: Tensor  # int64 [rows, width]
    valid: Tensor  # bool [rows, width]
    widths: tuple[int, ...]  # how many of a row's are valid: known on the host, so that nobody waits for the device


Finish = Callable[[Tensor, Tensor], Tensor]
"""(means [blocks, dim], positions of their first tokens [blocks]) -> keys [blocks, dim]: norm and rope."""


class BlockIndex:
    """The index of one layer over one sequence; a part of its state.

    `keys` [window, dim] are kept a token, like KV rows. The blocks' keys follow from them and are made when they are
    first looked at.
    """

    def __init__(
        self,
        config: IndexConfig,
        window: int,
        dtype: torch.dtype,
        finish: Finish,
        allocate: Allocate = allocate_at_once,
    ) -> None:
        self.config = config
        self.keys = allocate((window, config.dim), dtype, 0, "index")
        self._finish = finish
        self._blocks = torch.empty(window // config.ratio, config.dim, dtype=dtype, device=self.keys.device)
        self._made = 0  # blocks whose keys are up to date

    def by_row(self) -> Sequence[Tensor]:
        return (self.keys,)

    def fixed(self) -> Sequence[Tensor]:
        return ()

    def begin(self, start: int) -> None:
        self._made = min(self._made, start // self.config.ratio)

    def settle(self, path: Sequence[int]) -> None:
        pass

    def select(self, queries: Tensor, start: int, tree: Tree) -> Selection:
        """For rows whose keys stand at `start ..` in the shape of `tree`. `queries` [rows, heads, dim], roped."""
        ratio, before = self.config.ratio, start // self.config.ratio
        self._make(before)
        device = self.keys.device
        line = start - (ratio - 1) + tree.look_back(ratio - 1, device).flip(1)  # [rows, ratio]: each path's last tokens
        seen = [start + depth + 1 for depth in tree.depths]  # tokens on each row's path; counted here, never asked for
        ends = moved(torch.tensor([count % ratio for count in seen]), device)  # [rows]: after the last complete block
        complete = [row for row, count in enumerate(seen) if count % ratio == 0]
        completing = moved(torch.tensor(complete, dtype=torch.int64), device)

        fresh = self.keys[line[completing]].float().mean(dim=1).to(self.keys.dtype)
        if complete:
            firsts = moved(torch.tensor([seen[row] - ratio for row in complete]), device)
            fresh = self._finish(fresh, firsts)
        candidates = torch.cat([self._blocks[:before], fresh])
        tokens = torch.cat([torch.arange(before * ratio, device=device).reshape(before, ratio), line[completing]])
        known = torch.ones(tree.rows, before, dtype=torch.bool, device=device)
        visible = torch.cat([known, tree.ancestors_on(device)[:, completing]], dim=1)

        chosen, taken = self._best(queries, candidates, visible)
        tail = torch.arange(ratio, device=device) >= ratio - ends[:, None]
        rows = torch.cat([tokens[chosen].flatten(1), line], dim=1)
        valid = torch.cat([taken.repeat_interleave(ratio, dim=1), tail], dim=1)
        widths = [min(self.config.most_blocks, count // ratio) * ratio + count % ratio for count in seen]
        return _packed(rows, valid, max(widths), widths)

    def _make(self, blocks: int) -> None:
        """Bring the keys of the first `blocks` blocks, whose rows are final, up to date."""
        ratio, made = self.config.ratio, self._made
        if made < blocks:
            means = self.keys[made * ratio : blocks * ratio].reshape(-1, ratio, self.config.dim).float().mean(dim=1)
            firsts = torch.arange(made, blocks, device=self.keys.device) * ratio
            self._blocks[made:blocks] = self._finish(means.to(self.keys.dtype), firsts)
            self._made = blocks

    def _best(self, queries: Tensor, candidates: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """The best visible candidates of each row, in their order of position, and which of them are real."""
        count = min(self.config.most_blocks, candidates.shape[0])
        agreement = (queries.float() @ candidates.float().T).relu().sum(dim=1) / math.sqrt(self.config.dim)
        scores = agreement.masked_fill(~visible, float("-inf"))
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values
        return best, visible.gather(1, best)


def _packed(rows: Tensor, valid: Tensor, most: int, widths: Sequence[int]) -> Selection:
    """Real places first, their order kept; width cut to what any row needs."""
    order = (~valid).int().sort(dim=1, stable=True).indices[:, :most]
    valid = valid.gather(1, order)
    return Selection(rows.gather(1, order).where(valid, 0), valid, tuple(widths))


def attend_selected(
    queries: Tensor, keys: Tensor, values: Tensor, selection: Selection, scale: float, at_once: int = ROWS_AT_ONCE
) -> Tensor:
    """Attention of each row over its own selection: [rows, heads, dim].

    `queries` [rows, heads, dim]; `keys` and `values` [window, kv_heads, dim], of which only selected rows are read.
    With one row `at_once` a row's bits are its own; more share one padded width.
    """
    kv_heads, dim = keys.shape[1], keys.shape[2]
    outputs = []
    for start in range(0, queries.shape[0], at_once):
        part = slice(start, start + at_once)
        width = max(selection.widths[part])
        chosen, valid = selection.rows[part, :width], selection.valid[part, :width]
        query = queries[part].reshape(chosen.shape[0], kv_heads, -1, dim)  # [some, kv_heads, group, dim]
        scores = (query @ keys[chosen].permute(0, 2, 3, 1)).float() * scale  # [some, kv_heads, group, width]
        weights = scores.masked_fill(~valid[:, None, None], float("-inf")).softmax(dim=-1).to(values.dtype)
        outputs.append((weights @ values[chosen].transpose(1, 2)).flatten(1, 2))
    return torch.cat(outputs)
