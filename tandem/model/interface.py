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

from torch import Tensor

from tandem.model.config import ModelConfig
from tandem.model.state import Allocate, SequenceState, allocate_at_once
from tandem.model.tree import Tree

__all__ = ["Allocate", "Block", "Model", "SequenceState", "Wants", "allocate_at_once"]


class Wants(Enum):
    """Which rows of a block need logits: none while a prompt is read, the last to write on, all to verify guesses."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The rows one sequence brings to a pass."""

    tokens: Tensor  # int64 [rows], at least one
    start: int  # position of the first row in its sequence; start + rows <= state.window
    state: SequenceState
    wants: Wants = Wants.LAST
    tree: Tree | None = None  # rows that branch: none of them stays before `state.commit` names a path

    @property
    def rows(self) -> int:
        return self.tokens.shape[0]


class GuessingHead(Protocol):
    """Guesses what the model will write, from what the model carries in a state. It reads along with `forward`."""

    def guess(
        self, states: Sequence[SequenceState], tokens: Sequence[int], ahead: int = 0, carried: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What may follow `tokens`, one a state: float32 logits [states, vocab], and what the next call carries on.

        First the tokens are those written last, at `state.position`, whose rows are still missing; then, one step
        ahead, a guess for each, with what the call before returned for the same states; and so on. Each state has
        read a row and settled its tree. The head's rows lie behind the state's position, up to
        `state.position + ahead` included, where memory must be; the next pass writes over them.
        """
        ...


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

    @property
    def is_row_invariant(self) -> bool:
        """Whether a row has the same bits whatever pass made it, a chunk of a prompt or a round of an answer. Then a
        sequence may go on behind any row that is there; otherwise only behind whole chunks of a prompt's grid."""
        ...

    @property
    def mtp(self) -> GuessingHead | None:
        """When it was loaded."""
        ...

    def new_state(self, window: int, allocate: Allocate | None = None) -> SequenceState:
        """An empty state for `window` rows, which lie where `allocate` puts them, or else on the model's device."""
        ...

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        """One joint pass: brings each block's state forward and returns float32 logits [wanted rows, vocab].

        A block starts where its state can go on (`state.resumable`). One with a tree leaves its state to be settled:
        `state.commit(path)` before the next block.

        Wanted rows come in the order of the blocks, and within a block in the order of its tokens. At most one
        block a state; one thread at a time. The tensor is the caller's to change, under `torch.inference_mode`.
        """
        ...
