"""A model's text as what an answer consists of: thinking, text, calls of tools.

One reader sees the whole text in order, and its end; nothing is ever held back by one stage and lost to the next.
Stop strings end the answer's text only: neither thinking nor a call is cut by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from tandem.text.pieces import AnswerPart, CallArguments, Text, Thought
from tandem.text.reasoning import Thinking, read_thinking
from tandem.text.source import Reads, Source
from tandem.text.stop import StopFinder
from tandem.text.toolcalls.formats import JSON, CallFormat
from tandem.text.toolcalls.reader import CallReader
from tandem.text.tools import Tool


class Reading(Struct, frozen=True):
    """How the answer to one prompt is read."""

    thinking: Thinking | None = None  # None: all is answer
    tools: tuple[Tool, ...] = ()  # none: marks of calls are text
    format: CallFormat = JSON
    most_calls: int | None = None  # the answer ends behind so many

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts of tokens that show nothing otherwise, and that are read here."""
        tags = (self.thinking.tags.open, self.thinking.tags.close) if self.thinking is not None else ()
        return tags + self.format.marks if self.tools else tags


EVERYTHING_IS_TEXT: Final = Reading()


class AnswerParts:
    """Of one answer. Joined, the parts are the same however the text was cut."""

    def __init__(self, reading: Reading = EVERYTHING_IS_TEXT, stops: Sequence[str] = ()) -> None:
        self._source = Source()
        self._stops = StopFinder(stops)
        self._calls: CallReader | None = None
        if reading.tools:
            self._calls = CallReader(self._source, reading.tools, reading.format, self._emit, reading.most_calls)
        self._thinking = reading.thinking
        self._parts: list[AnswerPart] = []
        self._reads = self._read()
        self._cut: int | None = None  # where a stop string begins

    @property
    def is_over(self) -> bool:
        """A stop string was found, or the last call that is wanted is whole: what else comes is not read."""
        return self._cut is not None or (self._calls is not None and self._calls.is_full)

    @property
    def stop(self) -> str | None:
        """The stop string that was found."""
        return self._stops.found

    @property
    def num_settled(self) -> int:
        """Of the text that came, the characters of which it is certain what they are."""
        return self._cut if self._cut is not None else self._source.settled - self._stops.num_held

    def push(self, text: str) -> list[AnswerPart]:
        if text and not self.is_over:
            self._source.feed(text)
            next(self._reads, None)
        return self._taken()

    def finish(self) -> list[AnswerPart]:
        """What was held back. A call that is cut off keeps what it has."""
        if not self.is_over:
            self._source.is_whole = True
            next(self._reads, None)
            self._flush()
        return self._taken()

    def _read(self) -> Reads[None]:
        if self._thinking is not None:
            yield from read_thinking(self._source, self._thinking, self._emit)
        if self._calls is not None:
            yield from self._calls.read()
        else:
            yield from self._read_text()

    def _read_text(self) -> Reads[None]:
        source = self._source
        while (yield from source.peek()):
            text = source.rest
            source.at += len(text)
            source.settle()
            self._emit(Text(text))

    def _emit(self, part: AnswerPart) -> None:
        """Called where the part ends in what was read."""
        if self._cut is not None:
            return
        if not isinstance(part, Text):
            self._flush()
            self._parts.append(part)
            return
        come = self._stops.num_held + len(part.text)
        shown = self._stops.push(part.text)
        if self._stops.found is not None:
            self._cut = self._source.settled - come + len(shown)
        if shown:
            self._parts.append(Text(shown))

    def _flush(self) -> None:
        if held := self._stops.finish():
            self._parts.append(Text(held))

    def _taken(self) -> list[AnswerPart]:
        parts, self._parts = self._parts, []
        return joined(parts)


def joined(parts: Sequence[AnswerPart]) -> list[AnswerPart]:
    """Neighbours of one kind as one part: what does not depend on how the text was cut."""
    result: list[AnswerPart] = []
    for part in parts:
        match result[-1:], part:
            case [Thought(before)], Thought(text):
                result[-1] = Thought(before + text)
            case [Text(before)], Text(text):
                result[-1] = Text(before + text)
            case [CallArguments(call, before)], CallArguments(same, text) if same == call:
                result[-1] = CallArguments(call, before + text)
            case _:
                result.append(part)
    return result
