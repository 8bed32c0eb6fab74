"""`<function=NAME><parameter=KEY>` value `</parameter></function>`: made into the JSON that clients read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tandem.text.source import Reads, Source
from tandem.text.toolcalls.json_form import LONGEST_WORD, CutOff, NotACall, Write, pass_value, stands
from tandem.text.toolcalls.values import STRING, as_json, quote, types_of

FUNCTION: Final = "<function="
_FUNCTION_END: Final = "</function>"
_PARAMETER: Final = "<parameter="
_PARAMETER_END: Final = "</parameter>"
_WORD: Final = re.compile(r"[^>\n]+")
_VALUE: Final = re.compile(r"[^<\r\n]+")


def read_tag(source: Source) -> Reads[str]:
    """What stands behind `=` and before `>`. Raises `NotACall`."""
    start = source.at
    while (char := (yield from source.peek())) and char not in ">\n" and source.at - start < LONGEST_WORD:
        source.run(_WORD)
    word = source.since(start)
    if char != ">":
        raise NotACall if char else CutOff
    source.at += 1
    return word.strip(" \"'")


def read_arguments(source: Source, parameters: Mapping[str, Any], write: Write, closing: str) -> Reads[None]:
    """Everything behind `<function=NAME>`, up to and with its end. What is neither a parameter nor the end ends it."""
    num_written = 0
    while True:
        yield from source.skip()
        if (yield from source.take(_PARAMETER)):
            try:
                key = yield from read_tag(source)
            except NotACall:
                return
            write(f"{', ' if num_written else '{'}{quote(key)}: ")
            num_written += 1
            if not (yield from _value(source, types_of(parameters, key), write, closing)):
                return
            continue
        char = yield from source.peek()
        if char == "{" and not num_written:
            yield from pass_value(source, write, closing)
            yield from source.skip()
            yield from source.take(_FUNCTION_END)
            return
        if char:
            yield from source.take(_FUNCTION_END)
            write("}" if num_written else "{}")
        return


def _value(source: Source, types: frozenset[str], write: Write, closing: str) -> Reads[bool]:
    """One value and its end; False when it is cut off. Text is passed on as it comes, the rest when it is whole."""
    _ = (yield from source.take("\n")) or (yield from source.take("\r\n"))
    if types == STRING:
        write('"')
        is_whole = yield from _pass_text(source, lambda text: write(quote(text)[1:-1]), closing)
        if is_whole:
            write('"')
        return is_whole
    written: list[str] = []
    is_whole = yield from _pass_text(source, written.append, closing)
    text = "".join(written)
    write(as_json(text, types) if is_whole else text)
    return is_whole


def _pass_text(source: Source, write: Write, closing: str) -> Reads[bool]:
    while True:
        if run := source.run(_VALUE):
            write(run)
            continue
        char = yield from source.peek()
        if not char:
            return False
        if (yield from _ends(source, closing)):
            return True
        source.at += 1
        write(char)


def _ends(source: Source, closing: str) -> Reads[bool]:
    """Reads a value's end and the line break before it. A value may hold the words of an end: it is one only where the
    next parameter, or an end of the call, follows."""
    start = source.at
    _ = (yield from source.take("\n")) or (yield from source.take("\r\n"))
    if (yield from source.take(_PARAMETER_END)):
        end = source.at
        yield from source.skip()
        followers = (_PARAMETER, _FUNCTION_END, *((closing,) if closing else ()))
        is_end = not (yield from source.peek())
        for word in followers:
            is_end = is_end or (yield from stands(source, word))
        if is_end:
            source.at = end
            return True
    source.at = start
    return False
