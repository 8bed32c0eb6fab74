"""llguidance behind our own words: nothing else imports it.

It writes its own form of a grammar from a schema, an expression or a text; follows an answer token by token; and
says which tokens may come next. Its refusals are values here, never exceptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

_GBNF: Final = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)  # a rule; Lark has `:` there

Allowed = NDArray[np.bool_]  # [vocab]

# Its own defaults, but for the lexer's states: a kilobyte or two each, kept as long as the grammar is.
_LIMITS: Final = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,  # about 20 ms
    step_lexer_fuel=200_000,  # about 15 ms
    step_max_items=50_000,  # about 3 ms
    max_lexer_states=20_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)

# White space that models write, and not more: where any amount may stand, a small model writes it without end.
# Everything else is said too, because a schema may carry settings of its own, and these come last.
_JSON: Final[Any] = {
    "whitespace_pattern": r"\x20|\r?\n[\x20\x09]{0,64}",
    "whitespace_flexible": True,
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": 'nrbtf\\"u',
    "json_allow_general_unicode_escapes": False,
}


def from_schema(schema: str) -> str:
    """Of the text of a JSON object. Raises `ValueError` where it is none."""
    return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON)


def from_regex(expression: str) -> str:
    return LLMatcher.grammar_from_regex(expression)


def from_choice(answers: Sequence[str]) -> str:
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(each, ensure_ascii=False) for each in answers))


def from_text(text: str) -> str:
    """Of a Lark grammar, or of GBNF, which becomes one. Raises `ValueError` for GBNF that cannot be read; what is wrong
    with Lark shows at its start."""
    try:
        return LLMatcher.grammar_from_lark(gbnf_to_lark(text) if _GBNF.search(text) else text)
    except Exception as error:  # a parser of a few hundred lines, without a class of errors for all that can be wrong
        raise ValueError(f"this GBNF cannot be read: {error}") from error


class Words:
    """The tokens that answers are made of. Thread-safe: nothing changes after construction."""

    def __init__(self, tokens: Sequence[bytes], ends: Sequence[int], encode: Callable[[str], list[int]]) -> None:
        """`tokens` are the bytes of each id, none for those that no text has. At least one id ends an answer."""
        self.size = len(tokens)
        self.ends = tuple(ends)
        table: Any = _Table(tokens, ends, encode)
        self.native = LLTokenizer(table, n_vocab=len(tokens), eos_token=list(ends))


class Position:
    """A place in a grammar, moved forward by tokens."""

    def __init__(self, native: LLMatcher, num_tokens: int) -> None:
        self._native = native
        self._num_tokens = num_tokens
        self._bits = np.empty((num_tokens + 31) // 32, dtype=np.int32)

    @property
    def fault(self) -> str:
        """Why it can go no further in this grammar; empty while it can."""
        return self._native.get_error()

    @property
    def may_end(self) -> bool:
        return self._native.is_accepting()

    def copy(self) -> Position:
        return Position(self._native.deep_copy(), self._num_tokens)

    def read(self, tokens: Sequence[int]) -> int:
        """Move forward. Returns how many of the tokens the grammar takes."""
        return self._native.try_consume_tokens(list(tokens))

    def allowed(self) -> Allowed:
        """Which tokens may come next. Where the answer may end all its ends are among them; with a `fault`, only
        they are."""
        self._native.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        return np.unpackbits(self._bits.view(np.uint8), count=self._num_tokens, bitorder="little").view(np.bool_)

    def forced(self) -> list[int]:
        """Tokens that spell what must come next, cut as the tokenizer cuts it: `allowed` holds the first and no other.
        None where more than one thing may come."""
        return self._native.compute_ff_tokens()


def start(source: str, words: Words) -> Position:
    """The beginning of a grammar; its `fault` says whether it is one."""
    return Position(LLMatcher(words.native, source, log_level=0, limits=_LIMITS), words.size)


class _Table:
    """The form in which the library takes a vocabulary."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], ends: Sequence[int], encode: Callable[[str], list[int]]) -> None:
        self.eos_token_id = ends[0]
        self.special_token_ids = [id for id, written in enumerate(tokens) if not written]
        # a token that no text has begins with a byte that no text has
        self.tokens = [written or b"\xff<%d>" % id for id, written in enumerate(tokens)]
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)
