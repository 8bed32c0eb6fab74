"""JSON as models write it, passed on while it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from tandem.text.source import Reads, Source

Write: TypeAlias = Callable[[str], None]

LONGEST_WORD: Final = 256  # characters of a name or a key
LONGEST_BEFORE_NAME: Final = 2048  # characters of arguments that come before the name

_PLAIN: Final = re.compile(r'[^"{}\[\]<]+')
_IN_STRING: Final = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR: Final = re.compile(r"[^,}\]\s]+")
_SURROGATE: Final = re.compile(r"\\u[dD][89abAB]")


class NotACall(Exception):
    """What looked like a call is text."""


class CutOff(NotACall):
    """The answer ended before it could be told."""


def expect(source: Source, word: str) -> Reads[None]:
    """Raises `NotACall` where something else stands."""
    if not (yield from source.take(word)):
        raise CutOff if source.ends_in(word) else NotACall


def read_word(source: Source) -> Reads[str]:
    """A name or a key, in quotes. Raises `NotACall` for anything else."""
    if (char := (yield from source.peek())) != '"':
        raise NotACall if char else CutOff
    written: list[str] = []
    if not (yield from pass_string(source, bounded(written, LONGEST_WORD))):
        raise CutOff
    try:
        return str(json.loads("".join(written)))
    except ValueError:
        raise NotACall from None


def bounded(written: list[str], most: int) -> Write:
    """Keeps what is written. Raises `NotACall` beyond so many characters: what cannot be told yet is not shown yet,
    and it is read again if it is no call."""
    room = most

    def write(text: str) -> None:
        nonlocal room
        written.append(text)
        room -= len(text)
        if room < 0:
            raise NotACall

    return write


def pass_value(source: Source, write: Write, closing: str = "") -> Reads[None]:
    """An object or a list as it is written, from its first bracket to the one that closes it.

    Broken JSON is passed on all the same, up to `closing` or the end: a client may still see what was meant.
    """
    depth = 0
    while True:
        if run := source.run(_PLAIN):
            write(run)
            continue
        char = yield from source.peek()
        if not char or (char == "<" and closing and (yield from stands(source, closing))):
            return
        if char == '"':
            yield from pass_string(source, write)
            continue
        source.at += 1
        write(char)
        depth += (char in "{[") - (char in "}]")
        if not depth:
            return


def pass_string(source: Source, write: Write) -> Reads[bool]:
    """A string as it is written, with its quotes; line breaks and the like, which JSON forbids, are escaped.

    False when it is cut off.
    """
    source.at += 1
    write('"')
    while True:
        if run := source.run(_IN_STRING):
            write(run)
            continue
        char = yield from source.peek()
        if not char:
            return False
        source.at += 1
        if char == "\\":
            char += yield from source.peek()
            source.at += len(char) - 1
        elif char < " ":
            char = json.dumps(char)[1:-1]
        write(char)
        if char == '"':
            return True


def pass_content(source: Source, write: Write) -> Reads[None]:
    """What a string holds: arguments that a model wrote as the text of an object; none where it is empty."""
    source.at += 1
    if (yield from source.take('"')):
        write("{}")
        return
    while True:
        if run := source.run(_IN_STRING):
            write(run)
            continue
        char = yield from source.peek()
        if char != "\\":
            source.at += len(char)
            if char in ('"', ""):
                return
            write(char)
            continue
        escape = yield from _read_escape(source)
        if _SURROGATE.fullmatch(escape[:4]) and (yield from source.peek()) == "\\":
            escape += yield from _read_escape(source)
        try:
            write(json.loads(f'"{escape}"'))
        except ValueError:
            write(escape)


def _read_escape(source: Source) -> Reads[str]:
    start = source.at
    source.at += 1
    kind = yield from source.peek()
    source.at += len(kind)
    for _ in range(4 if kind == "u" else 0):
        source.at += len((yield from source.peek()))
    return source.since(start)


def skip_member(source: Source) -> Reads[None]:
    """Behind a comma: a key and its value, which say nothing here. Raises `NotACall` where there is none."""
    yield from source.skip()
    yield from read_word(source)
    yield from source.skip()
    yield from expect(source, ":")
    yield from source.skip()
    char = yield from source.peek()
    if char in ("{", "["):
        yield from pass_value(source, _nothing)
    elif char == '"':
        yield from pass_string(source, _nothing)
    else:
        while source.run(_SCALAR):
            yield from source.peek()


def stands(source: Source, word: str) -> Reads[bool]:
    """Whether `word` stands next, without reading it."""
    place = source.at
    is_there = yield from source.take(word)
    source.at = place
    return is_there


def _nothing(text: str) -> None:
    pass
