"""Watches a generation: does it repeat itself without end, does it think for nearly all of its room?

Only sees and says so. Ending what loops is the request's or the profile's wish, and its executor is the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from tandem.contract.messages import Loop

LONGEST_PERIOD: Final = 200  # tokens: a paragraph
FEWEST_REPEATS: Final = 6
FEWEST_TOKENS: Final = 512  # rulers, rows of zeros and tables of equal lines are shorter
RUNAWAY_SHARE: Final = 0.75  # of an answer's room

_ROOM: Final = 4096  # tokens between two moves of the window


class LoopWatch:
    """Finds a stretch, ending with the newest token, that is one run of tokens over and over.

    A stretch of period p is a loop when it has at least `FEWEST_REPEATS` whole runs and `FEWEST_TOKENS` tokens; p is
    at most `LONGEST_PERIOD`. What repeats with a difference (a numbered list, a table, code) has no period. The
    demand never falls with the period, so that a loop is found under its shortest one and not under a multiple.
    """

    def __init__(self) -> None:
        periods = np.arange(1, LONGEST_PERIOD + 1, dtype=np.int64)
        self._needed = np.maximum(FEWEST_TOKENS, FEWEST_REPEATS * periods) - periods
        # For each period, how many tokens in a row, up to the newest, equal the one that many tokens before.
        self._equal = np.zeros(LONGEST_PERIOD, dtype=np.int64)
        self._same = np.empty(LONGEST_PERIOD, dtype=np.bool_)
        self._is_loop = np.empty(LONGEST_PERIOD, dtype=np.bool_)
        # Newest first from `_newest` on: what stands before the newest token is a slice that is never copied.
        self._tokens = np.full(_ROOM + LONGEST_PERIOD, -1, dtype=np.int64)
        self._newest = _ROOM
        self._period: int | None = None  # of the loop that goes on
        self.seen: Loop | None = None
        """The last loop, with its repeats so far, whether it still goes on or not."""

    def follow(self, tokens: Iterable[int]) -> Loop | None:
        """The loop that these tokens brought to light; a loop that goes on is told once."""
        found = None
        for token in tokens:
            self._take(token)
            if self._period is not None and self._equal[self._period - 1] == 0:
                self._period = None
            if self._period is None and np.greater_equal(self._equal, self._needed, out=self._is_loop).any():
                self._period = int(self._is_loop.argmax()) + 1
                found = self._note(self._period)
        if self._period is not None:
            self._note(self._period)
        return found

    def _take(self, token: int) -> None:
        """Cost: four passes over 200 numbers, a few microseconds."""
        before = self._tokens[self._newest : self._newest + LONGEST_PERIOD]
        np.equal(before, token, out=self._same)
        self._equal += 1
        self._equal *= self._same
        if self._newest == 0:
            self._tokens[_ROOM:] = before
            self._newest = _ROOM
        self._newest -= 1
        self._tokens[self._newest] = token

    def _note(self, period: int) -> Loop:
        self.seen = Loop(period, (int(self._equal[period - 1]) + period) // period)
        return self.seen


def is_runaway(num_thinking: int, max_tokens: int) -> bool:
    """Whether a model that still thinks has used up what should have been its answer's room."""
    return num_thinking >= RUNAWAY_SHARE * max_tokens
