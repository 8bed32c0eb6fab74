"""One sequence's way from ids to what its reader is given: bytes, characters, parts, in this order.

The end goes through the same stages as every piece, so that nothing held back slips past a stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tandem.text.detokenize import Detokenizer
from tandem.text.parts import EVERYTHING_IS_TEXT, AnswerParts, Reading, joined
from tandem.text.pieces import AnswerPart
from tandem.text.tokenizer import Tokenizer


class Answer:
    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), reading: Reading = EVERYTHING_IS_TEXT) -> None:
        self._detokenizer = Detokenizer(tokenizer, reading.marks)
        self._parts = AnswerParts(reading, stops)
        self.num_tokens = 0  # read, up to and with the one that completed a stop string
        self.starts: list[int] = []
        """Of each token that was given out, the character it begins at: the first ones of those read. Without thinking
        and calls these are characters of the answer.

        A token that only begins a character is given out when that character is; one that a stop string cuts, when any
        of its text is; one without text (it steers the model), when all before it is.
        """
        self._held = deque[tuple[int, int]]()  # first and past-last character of each token that is held back
        self._unfinished: list[int] = []  # first characters of tokens whose last character is not whole yet
        self._decoded = 0  # characters

    @property
    def is_stopped(self) -> bool:
        """By a stop string, or behind the last call that is wanted."""
        return self._parts.is_over

    @property
    def stop(self) -> str | None:
        """The stop string that was found."""
        return self._parts.stop

    def push(self, tokens: Sequence[int]) -> list[AnswerPart]:
        """What these tokens add. Tokens behind a stop are not read."""
        parts: list[AnswerPart] = []
        for token in tokens:
            if self.is_stopped:
                break
            self.num_tokens += 1
            parts += self._parts.push(self._read(token))
            self._give_out()
        return joined(parts)

    def finish(self) -> list[AnswerPart]:
        rest = self._parts.finish()
        self._give_out()
        return rest

    def _read(self, token: int) -> str:
        self._unfinished.append(self._decoded)
        characters = self._detokenizer.push(token)
        self._decoded += len(characters)
        if characters or not self._detokenizer.is_inside_character:
            self._held.extend((start, self._decoded) for start in self._unfinished)
            self._unfinished.clear()
        return characters

    def _give_out(self) -> None:
        settled = self._parts.num_settled
        while self._held:
            start, end = self._held[0]
            if not (start < settled if self.is_stopped else end <= settled):
                break
            self.starts.append(start)
            self._held.popleft()
