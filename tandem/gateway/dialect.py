"""What distinguishes one API from another: how prompts are read from a request and how an answer is written.

Everything between (waiting, cancelling, stop strings, accounting) is the same for all of them; see `exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from tandem.contract.messages import FinishReason
from tandem.gateway.logprobs import Shown
from tandem.gateway.openai import CompletionDetails, FinishWord, Generation, PromptDetails, Remarks, Timings, Usage
from tandem.gateway.prompts import Prompts
from tandem.text.template import Prompt
from tandem.text.tokenizer import Tokenizer

Wanted = TypeVar("Wanted", bound=Generation)


@dataclass(frozen=True, slots=True)
class Identity:
    """What every object of one answer repeats."""

    id: str
    created: int  # unix time
    model: str


@dataclass(frozen=True, slots=True)
class Written:
    """One choice, whole."""

    index: int
    text: str
    reason: FinishReason
    timings: Timings | None
    remarks: Remarks | None
    shown: tuple[Shown, ...]


class StatusData(Struct, frozen=True):
    description: str
    done: bool


class StatusEvent(Struct, frozen=True):
    """An event in a chunk without choices: front ends that know it show it, other clients skip it."""

    data: StatusData
    type: str = "status"


def status_tail(sentence: str, done: bool) -> bytes:
    """The end of a chunk whose list of choices is still open, and empty."""
    return b'],"event":%b}\n\n' % msgspec.json.encode(StatusEvent(StatusData(sentence, done)))


class Chunks(Protocol):
    """The events of one streamed answer, each as the bytes that are sent."""

    def begin(self, index: int) -> bytes: ...

    def status(self, sentence: str, done: bool) -> bytes: ...

    def piece(self, index: int, text: str, shown: Sequence[Shown]) -> bytes: ...

    def end(self, index: int, reason: FinishReason, timings: Timings | None, remarks: Remarks | None) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...


class Dialect(Protocol[Wanted]):
    route: str
    prefix: str  # of answers' ids
    request: type[Wanted]

    async def prompts(self, wanted: Wanted, prompts: Prompts) -> list[Prompt]:
        """At least one. Raises `ApiError` 400."""

    def max_tokens(self, wanted: Wanted) -> int | None: ...

    def chunks(self, identity: Identity, names: Tokenizer | None) -> Chunks:
        """`names` tells tokens' names where log-probabilities are wanted."""

    def whole(self, identity: Identity, written: list[Written], usage: Usage, names: Tokenizer | None) -> bytes:
        """The JSON of an answer that is not streamed."""


def finish_word(reason: FinishReason) -> FinishWord:
    return "stop" if reason is FinishReason.STOP else "length"


def make_usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int, reasoning_tokens: int) -> Usage:
    total = prompt_tokens + completion_tokens
    details = PromptDetails(cached_tokens), CompletionDetails(reasoning_tokens)
    return Usage(prompt_tokens, completion_tokens, total, *details)
