"""A limit on thinking: once a model has thought for long enough, it writes the end of its block and nothing else.

The closing tokens are chosen like any other: they have rows of their own at their real positions, so what the model
reads afterwards is what it would read had it stopped by itself.
"""

from __future__ import annotations

import numpy as np

from tandem.conductor.blocks import Blocks
from tandem.contract.messages import Reasoning
from tandem.engine.sample import Row, Written


class Thinking:
    """Of one request. Everything catches up on `written` by itself; `limit` is a `sample.Change`.

    A model that opens another block when its thinking is used up closes it at once. A stop token ends the answer
    wherever it is chosen; while the block is being closed, it is not.
    """

    def __init__(self, reasoning: Reasoning) -> None:
        self._blocks = Blocks(reasoning)
        self._max_tokens = reasoning.max_tokens

    def limit(self, row: Row, written: Written) -> Row:
        """The row as it is or, once no thinking is left, only the next closing token."""
        closing = self.forced(written)
        if not closing:
            return row
        only = np.full_like(row, -np.inf)
        only[closing[0]] = row[closing[0]]
        return only

    def forced(self, written: Written) -> tuple[int, ...]:
        """The tokens that must come next, whatever the model would choose: guesses that cannot be wrong."""
        blocks = self._caught_up(written)
        is_used_up = self._max_tokens is not None and blocks.num_thinking >= self._max_tokens
        return blocks.closing if is_used_up else ()

    def answer_start(self, written: Written) -> int | None:
        """Where in `written` the answer begins, which a grammar reads from there; None while the model thinks."""
        return self._caught_up(written).answer_start

    def num_tokens(self, written: Written) -> int:
        """Tokens of thinking, without the marks around them."""
        return self._caught_up(written).num_thinking

    def _caught_up(self, written: Written) -> Blocks:
        self._blocks.follow(written[self._blocks.num_read :])
        return self._blocks
