"""Guesses in a tree: what several drafters believe comes next, told apart by how sure they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

ROOT: Final = -1  # as a parent: the block's first row, the last written token


class Origin(NamedTuple):
    """Who guessed, and on what evidence: guesses of one origin come true about equally often."""

    source: str  # the drafter's name
    match: int = 0  # tokens that matched before the guess, in the drafter's own classes
    run: int = 0  # guesses in a row that came true just before, in classes


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Nodes in depth-first pre-order: a parent stands before its children, `ROOT` is the parent of the first ones."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]  # index of a node, or ROOT
    scores: tuple[float, ...]  # probability that the text takes the path to this node; never above the parent's
    origins: tuple[Origin, ...]

    @property
    def nodes(self) -> int:
        return len(self.tokens)

    def to_block_parents(self) -> tuple[int, ...]:
        """Parents of the block's rows, for `tandem.model.tree.Tree`: row 0 is the last written token and names itself,
        node i stands in row i + 1."""
        return (0, *(parent + 1 for parent in self.parents))


NO_GUESS: Final = DraftTree((), (), (), ())
