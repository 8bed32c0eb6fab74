"""What people are told about a request until its answer begins: at most one line a second, and one that it is over.

Pure: the time is an argument. A line carries a mark, by which it is known again when a client sends it back as part of
an answer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

MARK: Final = "⋯ "
GAP: Final = 1.0  # seconds between two lines; front ends keep every one of them
QUIET: Final = 0.5  # seconds of reading that are not worth a line
OVER: Final = "Answering"


class Doing(StrEnum):
    QUEUED = "queued"
    WAITING_MEMORY = "waiting for memory"
    READING = "reading"
    THINKING = "thinking"
    CALLING = "writing a tool call"


class Line(Struct, frozen=True):
    sentence: str
    done: bool = False


class StatusLines:
    """Of one request. `shown` is the sentence that is seen now; None: none."""

    def __init__(self, is_on: bool) -> None:
        self.doing: Doing | None = None
        self.sentence = ""  # our own about what is done, shown or not
        self.shown: str | None = None
        self._is_on = is_on
        self._held: str | None = None  # came too soon after the one before
        self._next = 0.0  # no line before

    def tell(self, doing: Doing, sentence: str, now: float) -> Line | None:
        """What is done now, in our own words."""
        if doing is not self.doing:
            self.doing = doing
            if doing is Doing.READING:
                self._next = max(self._next, now + QUIET)
        self.sentence = sentence
        return self._show(sentence, now)

    def narrate(self, line: str, now: float) -> Line | None:
        """The narrator's words for it. They come late, and only stand where something is still done."""
        return self._show(line, now) if self.doing is not None else None

    def pending(self, now: float) -> Line | None:
        """What was held back, once it may be shown."""
        return self._show(self._held, now) if self._held is not None else None

    def end(self, sentence: str = OVER) -> Line | None:
        """The answer begins, or there will be none. Told where there was a line that it ends."""
        was_shown, self.doing, self.shown, self._held = self.shown is not None, None, None, None
        return Line(MARK + sentence, done=True) if was_shown else None

    def _show(self, sentence: str, now: float) -> Line | None:
        if not self._is_on or sentence == self.shown:
            self._held = None
            return None
        if now < self._next:
            self._held = sentence
            return None
        self.shown, self._held, self._next = sentence, None, now + GAP
        return Line(MARK + sentence)


def without_lines(text: str) -> str:
    """An answer as it was written: whole lines of ours at its beginning are left out, and an empty one behind them."""
    rest = text
    while rest.startswith(MARK):
        rest = rest.partition("\n")[2]
    return rest.removeprefix("\n") if rest is not text else text
