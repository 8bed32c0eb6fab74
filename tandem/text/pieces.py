"""What an answer consists of, piece by piece, in the order in which it is written: thinking, text, calls of tools.

Every API is written from these; none of them reads the model's own marks.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct


class Thought(Struct, frozen=True):
    """Of the thinking block, without its marks. Never empty."""

    text: str


class Text(Struct, frozen=True):
    """Of the answer itself. Never empty."""

    text: str


class CallBegun(Struct, frozen=True):
    """A call of a tool whose name is whole. Its arguments follow."""

    call: int  # of this answer, from 0
    id: str  # unique, as clients repeat it with the tool's result
    name: str


class CallArguments(Struct, frozen=True):
    """More of a call's arguments: the pieces of one call together are one JSON object. Never empty."""

    call: int
    text: str


AnswerPart: TypeAlias = Thought | Text | CallBegun | CallArguments
