"""Text and calls of tools, told apart while they are written.

A call is one when it names a tool that was offered and goes on as its form demands; everything else is text, as it
was written. From the moment a call has begun it stays one, however it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tandem.text.pieces import AnswerPart, CallArguments, CallBegun, Text
from tandem.text.source import WHITE, Reads, Source, held_back
from tandem.text.toolcalls.formats import CallFormat
from tandem.text.toolcalls.json_form import (
    LONGEST_BEFORE_NAME,
    CutOff,
    NotACall,
    Write,
    bounded,
    expect,
    pass_content,
    pass_value,
    read_word,
    skip_member,
)
from tandem.text.toolcalls.xml_form import FUNCTION, read_arguments, read_tag
from tandem.text.tools import Tool

_NAMES: Final = ("name", "function")
_ARGUMENTS: Final = ("arguments", "parameters")
_KEYS: Final = frozenset((*_NAMES, *_ARGUMENTS, "id", "type"))


class CallReader:
    """Of one answer. White space around calls is nobody's text."""

    def __init__(
        self,
        source: Source,
        tools: Sequence[Tool],
        format: CallFormat,
        emit: Callable[[AnswerPart], None],
        most_calls: int | None = None,
    ) -> None:
        self._source = source
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._format = format
        self._marks = (*format.openings, *((format.closing,) if format.closing else ()))
        self._emit = emit
        self._most_calls = most_calls
        self._white = ""  # read behind the last text, held back: before a call it is nobody's
        self._is_behind_call = False
        self.num_calls = 0
        self._back = 0  # where reading goes on when what is read now turns out to be no call

    @property
    def is_full(self) -> bool:
        """As many calls as are wanted are whole."""
        return self._most_calls is not None and self.num_calls >= self._most_calls and self._is_behind_call

    def read(self) -> Reads[None]:
        yield from self._try("", self._bare())
        while not self.is_full:
            while not (mark := self._text()):
                if self._source.is_whole:
                    self._end()
                    return
                yield
            if mark in self._format.openings:
                yield from self._try(mark, self._marked(mark))
            elif not self.num_calls:  # the end of no call
                self._say(mark)

    def _text(self) -> str:
        """Says what has come up to the first mark, and reads that; empty where none has come whole."""
        rest = self._source.rest
        found = [(at, mark) for mark in self._marks if (at := rest.find(mark)) >= 0]
        come = len(rest) if self._source.is_whole else len(rest) - held_back(rest, self._marks)
        at, mark = min(found, default=(come, ""))
        self._source.at += at
        self._say(rest[:at])
        self._source.at += len(mark)
        return mark

    def _say(self, text: str) -> None:
        """All that was read and not yet said."""
        if self._is_behind_call:
            text = text.lstrip(WHITE)
        text = self._white + text
        shown = text.rstrip(WHITE)
        self._white = text[len(shown) :]
        self._source.settle(held=len(self._white))
        if shown:
            self._is_behind_call = False
            self._emit(Text(shown))

    def _end(self) -> None:
        white, self._white = self._white, ""
        self._source.settle()
        if white:
            self._emit(Text(white))

    def _try(self, mark: str, calls: Reads[None]) -> Reads[None]:
        """What was read as a call and is none is text from where it began. An answer that ends before the name of a
        call is whole has only its mark taken away."""
        num_before, self._back = self.num_calls, self._source.at
        try:
            yield from calls
        except NotACall as error:
            self._source.at = self._back
            if self.num_calls == num_before and not isinstance(error, CutOff):
                self._say(mark)

    def _bare(self) -> Reads[None]:
        yield from self._source.skip()
        yield from self._json_calls(is_marked=False)

    def _marked(self, mark: str) -> Reads[None]:
        source, closing = self._source, self._format.closing
        if mark == FUNCTION:
            yield from self._function()
        else:
            yield from source.skip()
            if (yield from source.take(FUNCTION)):
                yield from self._function()
            elif (yield from source.peek()) in ("{", "["):
                yield from self._json_calls(is_marked=True)
            elif source.ends_in(FUNCTION):
                raise CutOff
            else:
                yield from self._named()
        if closing and not self.is_full:
            yield from source.skip(WHITE + "}")
            yield from source.take(closing)

    def _json_calls(self, is_marked: bool) -> Reads[None]:
        """One object, a list of them, or several behind one another."""
        source = self._source
        in_list = yield from source.take("[")
        while True:
            yield from source.skip()
            yield from self._object(is_marked)
            self._back = source.at
            if self.is_full:
                return
            yield from source.skip()
            if in_list:
                if not (yield from source.take(",")):
                    yield from source.take("]")
                    return
            elif not (yield from source.take(";")) and (yield from source.peek()) != "{":
                return

    def _object(self, is_marked: bool) -> Reads[None]:
        """`{"name": ..., "arguments": {...}}`, in either order."""
        source = self._source
        yield from expect(source, "{")
        name, early = None, list[str]()
        while True:
            yield from source.skip()
            if name is not None and (early or is_marked) and (yield from source.take("}")):
                self._begin(name)("".join(early) or "{}")
                self._done()
                return
            key = yield from read_word(source)
            if key not in _KEYS:
                raise NotACall
            yield from source.skip()
            yield from expect(source, ":")
            yield from source.skip()
            if key in _NAMES:
                name = self._known((yield from read_word(source)))
            elif key in _ARGUMENTS and name is not None:
                yield from self._arguments(self._begins(name))
                self._done()
                yield from self._rest_of_object()
                return
            elif key in _ARGUMENTS:
                yield from self._arguments(bounded(early, LONGEST_BEFORE_NAME))
            else:
                yield from read_word(source)
            yield from source.skip()
            yield from source.take(",")

    def _arguments(self, write: Write) -> Reads[None]:
        """Raises `NotACall` before anything is written, or not at all."""
        source = self._source
        char = yield from source.peek()
        if char == "{":
            yield from pass_value(source, write, self._format.closing)
        elif char == '"':
            yield from pass_content(source, write)
        else:
            yield from expect(source, "null")
            write("{}")

    def _rest_of_object(self) -> Reads[None]:
        source = self._source
        yield from source.skip()
        while (yield from source.take(",")):
            yield from skip_member(source)
            yield from source.skip()
        yield from source.take("}")

    def _named(self) -> Reads[None]:
        """`NAME[ARGS]{...}`, at times with `[CALL_ID]ID` between."""
        source = self._source
        start = source.at
        while (char := (yield from source.peek())) and char not in "[{" + WHITE:
            source.at += 1
            if not any(name.startswith(source.since(start)) for name in self._tools):
                raise NotACall
        if not char:
            raise CutOff
        name = self._known(source.since(start))
        if (yield from source.take("[CALL_ID]")):
            while (char := (yield from source.peek())) and char not in "[{":
                source.at += 1
        yield from source.take("[ARGS]")
        yield from source.skip()
        if (yield from source.peek()) != "{":
            raise CutOff if source.ends_in("[ARGS]") or source.ends_in("[CALL_ID]") else NotACall
        yield from pass_value(source, self._begin(name))
        self._done()

    def _function(self) -> Reads[None]:
        name = self._known((yield from read_tag(self._source)))
        write = self._begin(name)
        yield from read_arguments(self._source, self._tools[name].parameters, write, self._format.closing)
        self._done()

    def _known(self, name: str) -> str:
        if name not in self._tools:
            raise NotACall
        return name

    def _begins(self, name: str) -> Write:
        """Begins the call with the first piece of its arguments."""
        write: Write | None = None

        def begin_and_write(text: str) -> None:
            nonlocal write
            write = write or self._begin(name)
            write(text)

        return begin_and_write

    def _begin(self, name: str) -> Write:
        call, source = self.num_calls, self._source
        self.num_calls += 1
        self._white, self._is_behind_call = "", False
        source.settle()
        self._emit(CallBegun(call, self._format.new_id(), name))

        def write(text: str) -> None:
            source.settle()
            if text:
                self._emit(CallArguments(call, text))

        return write

    def _done(self) -> None:
        self._is_behind_call = True
        self._source.settle()
        self._back = self._source.at
