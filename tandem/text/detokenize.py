"""Token ids to text, as they come: never a partial character, whatever a token's bytes are."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from tandem.text.tokenizer import Tokenizer

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One a sequence, on every path. Joined, its pieces are the whole answer.

    Only a tail that is a valid beginning of a character is held back; bytes that can never become one read as
    U+FFFD. An answer that ends inside a character ends before it.
    """

    def __init__(self, tokenizer: Tokenizer, marks: Iterable[str] = ()) -> None:
        """`marks` are texts of tokens that steer the model and are shown all the same, for a reader to find them."""
        self._bytes_of = tokenizer.bytes_of
        self._marks = tokenizer.controls(marks)
        self._decoder = _utf8("replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._marks.get(token) or self._bytes_of[token])

    @property
    def is_inside_character(self) -> bool:
        return bool(self._decoder.getstate()[0])


def decode(tokenizer: Tokenizer, tokens: Iterable[int]) -> str:
    """The text of a whole answer."""
    push = Detokenizer(tokenizer).push
    return "".join(map(push, tokens))
