"""A pass of few rows as numbers on the device: everything kernels must know, and nothing else changes between rounds.

Sixteen rows, always: a pass of fewer is filled up with copies of its first row, which no sequence remembers. So every
round has one shape, whoever takes part, and one captured graph replays them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tandem.model.delta import Corrections
from tandem.model.passes import Pass, Span
from tandem.model.state import Recurrent, SequenceState, Tail

ROWS: Final = 16
NOBODY: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What a DeltaNet layer's rows would change, for those of trees: rows first, in tensors the next round reuses."""

    fresh: Tensor  # [16, channels]: for the convolution's tail
    keys: Tensor  # [16, value_heads, key_dim]
    corrections: Tensor  # [16, value_heads, value_dim]
    faded: Tensor  # [16, value_heads]

    def of(self, place: slice, copied: bool) -> tuple[Tensor, Corrections]:
        fresh = self.fresh[place]
        parts = [each[place].transpose(0, 1) for each in (self.keys, self.corrections, self.faded)]
        if copied:
            fresh, parts = fresh.clone(), [part.clone() for part in parts]
        return fresh, Corrections(*parts)


class RoundTables:
    """Views of one int64 tensor, so that a round is told to the device in one copy."""

    def __init__(self, numbers: Tensor, layers: Sequence[int]) -> None:
        """`numbers` [`size(layers)`]; `layers` is how many parts each layer has in a state."""
        self.numbers = numbers
        self._first_column = [sum(layers[:layer]) for layer in range(len(layers))]
        self.columns = sum(layers)
        self.held: dict[int, Held] = {}  # by layer
        cuts = [ROWS] * 5 + [ROWS * ROWS] + [ROWS] * 5 + [ROWS * self.columns]
        parts = torch.split(numbers, cuts)
        # a row
        self.tokens, self.positions, self.sequences, self.depths, self.sources = parts[:5]
        self.path = parts[5]  # [rows, depths]: the row of the round that stands so deep on the row's path
        # a sequence of the round
        self.starts, self.firsts, self.counts, self.settled, self.windows = parts[6:11]
        self.addresses = parts[11]  # [sequences, columns]: of the parts of its state

    @staticmethod
    def size(layers: Sequence[int]) -> int:
        return 10 * ROWS + ROWS * ROWS + ROWS * sum(layers)

    def column(self, layer: int) -> int:
        """Where the addresses of a layer's parts begin."""
        return self._first_column[layer]

    def filled(self, answer: Tensor) -> Tensor:
        """[16, ...] in which rows that nobody sent are what the first row is."""
        return answer.index_select(0, self.sources)

    def give_held(self, span: Span, copied: bool) -> None:
        """What the round made of a tree goes to its state, which will settle it."""
        for layer, held in self.held.items():
            memory, tail = span.state.layers[layer][:2]
            assert isinstance(memory, Recurrent) and isinstance(tail, Tail)
            fresh, corrections = held.of(span.place, copied)
            memory.hold(corrections)
            tail.take(fresh, settled=False)

    def clear(self) -> None:
        """A round of nobody: it runs, and touches no state."""
        self.numbers.zero_()
        self.sequences.fill_(NOBODY)

    def tell(self, run: Pass) -> None:
        """Write a pass of at most 16 rows down; on the host."""
        self.clear()
        count = run.tokens.shape[0]
        self.tokens.fill_(run.tokens[0])[:count] = run.tokens
        self.positions.fill_(run.spans[0].start)
        self.sources[:count] = torch.arange(count)
        path = self.path.view(ROWS, ROWS)
        addresses = self.addresses.view(ROWS, self.columns)
        for number, span in enumerate(run.spans):
            self.sequences[span.place] = number
            self.depths[span.place] = torch.tensor(list(span.tree.depths))
            self.positions[span.place] = self.depths[span.place] + span.start
            path[span.place, : span.rows] = span.tree.paths + span.first
            for table, value in (
                (self.starts, span.start),
                (self.firsts, span.first),
                (self.counts, span.rows),
                (self.settled, int(span.settled)),
                (self.windows, span.state.window),
            ):
                table[number] = value
            addresses[number] = span.state.addresses


def shape_of(state: SequenceState) -> tuple[int, ...]:
    """Parts a layer."""
    return tuple(len(parts) for parts in state.layers)
