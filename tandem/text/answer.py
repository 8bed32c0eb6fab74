"""One sequence's way from ids to what its reader sees: bytes, characters, stop strings, in this order.

The end goes through the same stages as every piece, so that nothing held back slips past a stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tandem.text.detokenize import Detokenizer
from tandem.text.stop import StopFinder
from tandem.text.tokenizer import Tokenizer


class AnswerText:
    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopFinder(stops)
        self.num_tokens = 0  # read, up to and with the one that completed a stop string
        self.starts: list[int] = []
        """Of each token whose text has been shown, the character it begins at: the first ones of those read.

        A token that only begins a character has been shown when that character has; one that a stop string cuts,
        when any of its text has; one without text (it steers the model), when all before it has.
        """
        self._unshown = deque[tuple[int, int]]()  # first and past-last character of each token that is held back
        self._unfinished: list[int] = []  # first characters of tokens whose last character is not whole yet
        self._decoded = 0  # characters
        self._shown = 0

    @property
    def is_stopped(self) -> bool:
        return self.stop is not None

    @property
    def stop(self) -> str | None:
        """The stop string that was found."""
        return self._stops.found

    def push(self, tokens: Sequence[int]) -> str:
        """The text these tokens make visible. Tokens after a stop string are not read."""
        text = ""
        for token in tokens:
            if self.is_stopped:
                break
            self.num_tokens += 1
            piece = self._stops.push(self._read(token))
            self._show(piece)
            text += piece
        return text

    def finish(self) -> str:
        rest = self._stops.finish()
        self._show(rest)
        return rest

    def _read(self, token: int) -> str:
        self._unfinished.append(self._decoded)
        characters = self._detokenizer.push(token)
        self._decoded += len(characters)
        if characters or not self._detokenizer.is_inside_character:
            self._unshown.extend((start, self._decoded) for start in self._unfinished)
            self._unfinished.clear()
        return characters

    def _show(self, piece: str) -> None:
        self._shown += len(piece)
        while self._unshown:
            start, end = self._unshown[0]
            if not (start < self._shown if self.is_stopped else end <= self._shown):
                break
            self.starts.append(start)
            self._unshown.popleft()
