"""Where a model thinks: the blocks between its opening and closing tokens, followed as tokens are written."""

from __future__ import annotations

from collections.abc import Iterable

from tandem.contract.messages import Reasoning


class Blocks:
    """Follows one answer. `num_thinking` are the tokens inside blocks; a block's own marks are none of them.

    While a block's end is half written, its tokens still count as thinking: they may turn out to be.
    """

    def __init__(self, reasoning: Reasoning) -> None:
        """Raises `ValueError` when nothing ends a block."""
        if not reasoning.close:
            raise ValueError("thinking that no token ends would never end")
        self._open, self._close = _Mark(reasoning.open), _Mark(reasoning.close)
        self.is_inside = reasoning.begun or not reasoning.open
        self.num_read = 0
        self.num_thinking = 0
        self.answer_start: int | None = None if self.is_inside else 0
        """Tokens written up to the end of the last block, None inside one."""

    def follow(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.num_read += 1
            if self.is_inside:
                self.num_thinking += 1
                if self._close.completes(token):
                    self.num_thinking -= len(self._close.tokens)
                    self.is_inside, self.answer_start = False, self.num_read
            elif self._open.completes(token):
                self.is_inside, self.answer_start = True, None

    @property
    def closing(self) -> tuple[int, ...]:
        """What is still to be written for the block to end; nothing outside one."""
        return self._close.missing if self.is_inside else ()


class _Mark:
    """Finds a run of tokens in what follows one by one (Knuth, Morris, Pratt); finds of it never overlap."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = tokens
        self._fallback = [0] * (len(tokens) + 1)  # [n]: of the first n, the longest end that is also a beginning
        self._matched = 0
        for n in range(1, len(tokens)):
            self._fallback[n + 1] = self._longer(self._fallback[n], tokens[n])

    @property
    def missing(self) -> tuple[int, ...]:
        return self.tokens[self._matched :]

    def completes(self, token: int) -> bool:
        """Whether the run ends with this token."""
        if not self.tokens:
            return False
        self._matched = self._longer(self._matched, token)
        if is_whole := self._matched == len(self.tokens):
            self._matched = 0
        return is_whole

    def _longer(self, matched: int, token: int) -> int:
        """How much is matched once `token` comes behind `matched` tokens that are."""
        while self.tokens[matched] != token:
            if matched == 0:
                return 0
            matched = self._fallback[matched]
        return matched + 1
