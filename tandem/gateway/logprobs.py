"""Log-probabilities on the wire: of exactly the tokens whose text was sent, in both of OpenAI's shapes.

A token need not be text: a part of a character reads as U+FFFD, and only its bytes say which. Tokens that steer the
model go by their name and have no bytes, so that the bytes of all tokens join to the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from tandem.contract.messages import TokenScore
from tandem.text.tokenizer import Tokenizer

_IMPOSSIBLE: Final = -9999.0  # JSON has no infinity; OpenAI's word for it


class Shown(Struct, frozen=True):
    """A token whose text was sent."""

    token: int
    score: TokenScore
    start: int  # of its text in the answer, in characters


class Alternative(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[Alternative]


class ChatLogprobs(Struct, frozen=True):
    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(Struct, frozen=True):
    """One entry a token in each list. `text_offset` counts characters from the start of the answer."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


def chat_logprobs(shown: Sequence[Shown], tokenizer: Tokenizer) -> ChatLogprobs:
    return ChatLogprobs([_token_logprob(each, tokenizer) for each in shown])


def text_logprobs(shown: Sequence[Shown], tokenizer: Tokenizer) -> TextLogprobs:
    return TextLogprobs(
        tokens=[_name(each.token, tokenizer) for each in shown],
        token_logprobs=[_finite(each.score.chosen) for each in shown],
        top_logprobs=[_by_name(each, tokenizer) for each in shown],
        text_offset=[each.start for each in shown],
    )


def _token_logprob(shown: Shown, tokenizer: Tokenizer) -> TokenLogprob:
    best = [Alternative(*_named(token, value, tokenizer)) for token, value in shown.score.top]
    return TokenLogprob(*_named(shown.token, shown.score.chosen, tokenizer), best)


def _named(token: int, value: float, tokenizer: Tokenizer) -> tuple[str, float, list[int] | None]:
    return _name(token, tokenizer), _finite(value), list(tokenizer.bytes_of[token]) or None


def _by_name(shown: Shown, tokenizer: Tokenizer) -> dict[str, float]:
    """The best tokens and the chosen one. Of tokens that read the same, the best stands for all."""
    values: dict[str, float] = {}
    for token, value in (*shown.score.top, (shown.token, shown.score.chosen)):
        values.setdefault(_name(token, tokenizer), _finite(value))
    return values


def _name(token: int, tokenizer: Tokenizer) -> str:
    text = tokenizer.bytes_of[token]
    return text.decode("utf-8", "replace") if text else tokenizer.vocabulary.tokens[token]


def _finite(value: float) -> float:
    return max(value, _IMPOSSIBLE)
