"""One sequence's way from ids to what its reader sees: bytes, characters, stop strings, in this order.

The end goes through the same stages as every piece, so that nothing held back slips past a stage.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.text.detokenize import Detokenizer
from tandem.text.stop import StopFinder
from tandem.text.tokenizer import Tokenizer


class AnswerText:
    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopFinder(stops)
        self.num_tokens = 0  # read, up to and with the one that completed a stop string

    @property
    def is_stopped(self) -> bool:
        return self._stops.found is not None

    def push(self, tokens: Sequence[int]) -> str:
        """The text these tokens make visible. Tokens after a stop string are not read."""
        text = ""
        for token in tokens:
            if self.is_stopped:
                break
            self.num_tokens += 1
            text += self._stops.push(self._detokenizer.push(token))
        return text

    def finish(self) -> str:
        return self._stops.finish()
