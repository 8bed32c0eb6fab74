"""The shape of a block whose rows branch: which row follows which.

A draft tree stands in a block in depth-first pre-order, a parent before its children. A plain block is the tree
without branches. Everything a layer asks of a shape is here: how deep a row is, which rows it may look at, and which
row lies so many steps back on its own path.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from tandem.model.placement import HOST, moved


class Tree:
    """Rows 0 .. n-1; `parents[row]` stands before `row`, and the root, row 0, names itself."""

    def __init__(self, parents: Sequence[int]) -> None:
        if not parents or parents[0] != 0 or any(not 0 <= parent < row for row, parent in enumerate(parents) if row):
            raise ValueError(f"a tree starts with its root and names a parent before its children, not {list(parents)}")
        self.parents = tuple(parents)
        self._placed: dict[tuple[int | None, torch.device], Tensor] = {}

    @property
    def rows(self) -> int:
        return len(self.parents)

    @cached_property
    def depths(self) -> Sequence[int]:
        """Steps from the root, which is at 0. A row's position is its block's start plus this."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return depths

    @cached_property
    def ancestors(self) -> Tensor:
        """bool [rows, rows]: `[row, other]` is true where `other` lies on the path from the root to `row`."""
        seen = torch.eye(self.rows, dtype=torch.bool)
        for row, parent in enumerate(self.parents[1:], start=1):
            seen[row] |= seen[parent]
        return seen

    @cached_property
    def paths(self) -> Tensor:
        """int64 [rows, rows]: `[row, depth]` is the row so deep on the path to `row`; 0 behind its end."""
        paths = torch.zeros(self.rows, self.rows, dtype=torch.int64)
        for row in range(self.rows):
            path = self.path_to(row)
            paths[row, : len(path)] = torch.tensor(path)
        return paths

    def is_straight(self, row: int) -> bool:
        """Whether the path to `row` is all the rows up to it."""
        return self.depths[row] == row

    def path_to(self, row: int) -> list[int]:
        """The rows from the root to `row`, both included."""
        path = [row]
        while path[-1]:
            path.append(self.parents[path[-1]])
        return path[::-1]

    def is_path(self, rows: Sequence[int]) -> bool:
        """Whether `rows` starts at the root and each row is the parent of the next."""
        return list(rows) == self.path_to(rows[-1]) if rows else False

    def ancestors_on(self, device: torch.device) -> Tensor:
        """`ancestors`, where a layer wants them."""
        if (None, device) not in self._placed:
            self._placed[None, device] = moved(self.ancestors, device)
        return self._placed[None, device]

    def look_back(self, reach: int, device: torch.device = HOST.device) -> Tensor:
        """int64 [rows, reach + 1]: where the row `0 .. reach` steps back lies in `cat([tail, block])`.

        The tail is the `reach` rows before the block, so a path that runs out of the block goes on into it.
        Made, and moved, once for all layers.
        """
        if (reach, device) not in self._placed:
            self._placed[reach, device] = moved(self._look_back(reach), device)
        return self._placed[reach, device]

    def _look_back(self, reach: int) -> Tensor:
        table = torch.empty(self.rows, reach + 1, dtype=torch.int64)
        table[0] = torch.arange(reach, -1, -1)
        for row, parent in enumerate(self.parents[1:], start=1):
            table[row, 0] = reach + row
            table[row, 1:] = table[parent, :-1]
        return table


@lru_cache(maxsize=64)
def chain(rows: int) -> Tree:
    """The tree without branches."""
    return Chain(rows)


class Chain(Tree):
    """A plain block. Its tables are written down at once instead of row by row: prompts are chains of hundreds."""

    def __init__(self, rows: int) -> None:
        if rows < 1:
            raise ValueError("a block has at least one row")
        self.parents = (0, *range(rows - 1))
        self._placed = {}

    @cached_property
    def depths(self) -> Sequence[int]:
        return range(self.rows)

    def is_straight(self, row: int) -> bool:
        return True

    @cached_property
    def ancestors(self) -> Tensor:
        return torch.ones(self.rows, self.rows, dtype=torch.bool).tril()

    def _look_back(self, reach: int) -> Tensor:
        return torch.arange(reach, reach + self.rows)[:, None] - torch.arange(reach + 1)
