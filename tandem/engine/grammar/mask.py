"""What a grammar does to a request's rows: tokens that cannot come next are not chosen.

A mask goes with one request and belongs to the device thread. It catches up on the written tokens by itself, which
are final however many of them a round brought.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tandem.engine.grammar.library import Allowed, Position
from tandem.engine.sample import Row, Written

Start = Callable[[Written], int | None]  # where in `written` the answer begins; None while the model thinks

SLOW: Final = 0.1  # seconds of the processor for one token, a thousand times the usual


class GrammarStuck(Exception):
    """No token can follow what was written. The sentence holds nothing that a user wrote."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar that requests may follow, each from a copy of its beginning."""

    beginning: Position
    ends: tuple[int, ...]  # the tokens by which the vocabulary says that an answer is over

    def mask(self, stop_tokens: Sequence[int], start: Start, opening: Sequence[int] = ()) -> Mask:
        """For one request. An answer of this grammar ends by one of `stop_tokens`; it may begin with `opening`, which
        begins thinking, where the prompt has not."""
        return Mask(self.beginning.copy(), self.ends, stop_tokens, start, opening)


class Mask:
    """`mask(row, written)` is the row with -inf for every token that may not come; see `sample.Change`."""

    def __init__(
        self, position: Position, ends: Sequence[int], stop_tokens: Sequence[int], start: Start, opening: Sequence[int]
    ) -> None:
        self._position = position
        self._ends = list(ends)
        self._stop_tokens = list(stop_tokens)
        self._find_start = start
        self._opening = tuple(opening)
        self._start: int | None = None  # once it is known it stays: what an answer holds is no thinking
        self._read = 0  # written tokens that the grammar has taken

    def __call__(self, row: Row, written: Written) -> Row:
        """Raises `GrammarStuck` when nothing may come."""
        if self._may_open(written):
            allowed = self._opening_allowed(written)
        elif self._is_bound(written):
            self._catch_up(written)
            allowed = self._allowed()
        else:
            return row
        masked = np.full_like(row, -np.inf)
        np.copyto(masked[: len(allowed)], row[: len(allowed)], where=allowed)  # a head may be wider than its words
        return masked

    def forced(self, written: Written) -> tuple[int, ...]:
        """The tokens that must come next: a text that is certain is cut as the tokenizer cuts it, and no row lets
        another token through there."""
        if self._may_open(written) or not self._is_bound(written):
            return ()
        self._catch_up(written)
        return tuple(self._position.forced())

    def _is_bound(self, written: Written) -> bool:
        """Whether what comes next is part of the answer."""
        if self._start is None:
            self._start = self._find_start(written)
        return self._start is not None

    def _may_open(self, written: Written) -> bool:
        """Whether thinking may begin here, or its beginning is half written."""
        so_far = len(written)
        return self._start is None and so_far < len(self._opening) and tuple(written) == self._opening[:so_far]

    def _opening_allowed(self, written: Written) -> Allowed:
        allowed = self._allowed() if not written else np.zeros(max(self._opening) + 1, dtype=np.bool_)
        allowed[self._opening[len(written)]] = True
        return allowed

    def _catch_up(self, written: Written) -> None:
        assert self._start is not None
        fresh = written[self._start + self._read :]
        if fresh and self._position.read(fresh) < len(fresh):
            raise GrammarStuck(f"the answer left its grammar{self._because()}")
        self._read += len(fresh)

    def _allowed(self) -> Allowed:
        began = time.thread_time()
        allowed = self._position.allowed()
        if time.thread_time() - began > SLOW:
            raise GrammarStuck("the grammar takes too long to say what may come next")
        may_end = bool(allowed[self._ends[0]])
        allowed[self._ends] = False
        if may_end and not self._position.fault:
            allowed[self._stop_tokens] = True
        if not allowed.any():
            raise GrammarStuck(f"the grammar allows nothing behind what was written{self._because()}")
        return allowed

    def _because(self) -> str:
        """Only the library's name for it: its sentences quote the grammar."""
        fault = self._position.fault
        return " (it is too complex)" if any(word in fault for word in ("max is", "too many", "fuel", "limit")) else ""
