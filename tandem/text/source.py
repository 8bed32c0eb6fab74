"""Text that arrives in pieces, read as if it were whole.

A reader is a generator that suspends where it needs a character that has not come. What it reads is therefore the
same however the text was cut, and no state between two pieces has to be written down.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")
Reads: TypeAlias = Generator[None, None, T]  # suspends until more has come, or nothing more will; returns a T

WHITE: Final = " \t\r\n"


class Source:
    """Places count characters from the start of the answer."""

    def __init__(self) -> None:
        self._text = ""
        self._start = 0  # where `_text` begins
        self.settled = 0  # nobody goes back behind this place
        self.at = 0  # the next character to read
        self.is_whole = False  # nothing more comes

    def feed(self, text: str) -> None:
        self._text, self._start = self._text[self.settled - self._start :] + text, self.settled

    def settle(self, held: int = 0) -> None:
        """What was read is done with, but for the last `held` characters."""
        self.settled = self.at - held

    def ends_in(self, word: str) -> bool:
        """Whether the text ends before it could be told that `word` stands next."""
        return self.is_whole and word.startswith(self.rest)

    @property
    def rest(self) -> str:
        """What has come and is not read."""
        return self._text[self.at - self._start :]

    def since(self, place: int) -> str:
        """What was read from there on."""
        return self._text[place - self._start : self.at - self._start]

    def peek(self) -> Reads[str]:
        """The next character; empty at the end."""
        while self.at - self._start >= len(self._text):
            if self.is_whole:
                return ""
            yield
        return self._text[self.at - self._start]

    def run(self, pattern: re.Pattern[str]) -> str:
        """Reads as much as has come of what `pattern` matches here; empty where it matches nothing."""
        found = pattern.match(self._text, self.at - self._start)
        if found is None:
            return ""
        self.at += len(found[0])
        return found[0]

    def skip(self, characters: str = WHITE) -> Reads[None]:
        while True:
            char = yield from self.peek()
            if not char or char not in characters:
                return
            self.at += 1

    def take(self, word: str) -> Reads[bool]:
        """Reads `word` where it stands next, and nothing otherwise."""
        while True:
            start = self.at - self._start
            come = self._text[start : start + len(word)]
            if come == word:
                self.at += len(word)
                return True
            if self.is_whole or not word.startswith(come):
                return False
            yield


def held_back(text: str, marks: Sequence[str]) -> int:
    """Of how many characters the longest end of `text` is that begins one of the marks and is not a whole one."""
    longest = min(max(map(len, marks), default=1) - 1, len(text))
    sizes = range(longest, 0, -1)
    return next((size for size in sizes if any(mark.startswith(text[-size:]) for mark in marks)), 0)
