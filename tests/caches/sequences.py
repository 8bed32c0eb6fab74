"""Sequences for caches: states of any shape filled with what their tokens say, and the books around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tandem.caches.holdings import Holdings
from tandem.caches.prefix import Grid, Prompt
from tandem.memory.budget import Budget
from tandem.model.state import KvRows, Recurrent, SequenceState, Tail

CHUNK = 4
WINDOW = 64
SECRET = bytes(range(32))
GRID = Grid(CHUNK, b"model", SECRET)


def kv_state(window: int = WINDOW) -> SequenceState:
    return SequenceState(window, torch.float32, [[KvRows(window, 2, 3, torch.float32)] for _ in range(2)])


def hybrid_state(window: int = WINDOW) -> SequenceState:
    recurrent = [Recurrent(2, 3, 4), Tail((3, 5), torch.bfloat16)]
    return SequenceState(window, torch.bfloat16, [recurrent, [KvRows(window, 2, 3, torch.bfloat16)]])


def read(state: SequenceState, tokens: Sequence[int], start: int = 0) -> None:
    """What a model would do: each row says its own token and all before it, each fixed tensor all of them."""
    state.begin(start, len(tokens) - start, settled=True)
    for row in range(start, len(tokens)):
        said = torch.Generator().manual_seed(hash(tuple(tokens[: row + 1])) % (1 << 31))
        for tensor in (*state.keys, *state.values):
            tensor[row] = torch.randn(tensor.shape[1:], generator=said).to(tensor.dtype)
        for tensor in state._fixed:
            tensor.copy_(torch.randn(tensor.shape, generator=said))


def reading(new: Callable[[], SequenceState], tokens: Sequence[int]) -> SequenceState:
    state = new()
    read(state, tokens)
    return state


def same_rows(one: SequenceState, other: SequenceState, rows: int, first: int = 0) -> bool:
    pairs = zip([*one.keys, *one.values], [*other.keys, *other.values], strict=True)
    return all(torch.equal(mine[first:rows], theirs[first:rows]) for mine, theirs in pairs)


def same_state(one: SequenceState, other: SequenceState, rows: int) -> bool:
    """Bit for bit, where both stand at the same row."""
    fixed = zip(one.snapshot().tensors, other.snapshot().tensors, strict=True)
    return same_rows(one, other, rows) and all(torch.equal(mine, theirs) for mine, theirs in fixed)


def prompt(tokens: Sequence[int], scope: str = "one") -> Prompt:
    return GRID.prompt(scope, tokens)


class Books:
    """A budget, and an engine that holds nothing but caches."""

    def __init__(self, ceiling: int = 1 << 40) -> None:
        self.budget = Budget(ceiling, ceiling)
        self.holdings = Holdings(self.budget, lambda: self.budget.cached)
