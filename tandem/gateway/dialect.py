"""What distinguishes one API from another: how a request is read and how an answer is written.

Everything between (waiting, cancelling, stop strings, accounting) is the same for all of them; see `exchange`. A
dialect puts its request into OpenAI's words (`Generation`), which say how the answer is sampled and limited, and is
told the answer in parts (`text.pieces`): thinking, text, calls of tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from tandem.contract.messages import FinishReason
from tandem.gateway.answers import CompletionDetails, FinishWord, PromptDetails, Remarks, Timings, Usage
from tandem.gateway.errors import ApiError
from tandem.gateway.logprobs import Shown
from tandem.gateway.openai import Generation
from tandem.gateway.prompts import Prompts
from tandem.text.pieces import AnswerPart, CallArguments, CallBegun, Text, Thought
from tandem.text.template import Prompt
from tandem.text.tokenizer import Tokenizer

Wanted = TypeVar("Wanted", bound=Struct)


@dataclass(frozen=True, slots=True)
class Identity:
    """What every object of one answer repeats."""

    id: str  # `Dialect.prefix`, then 32 hexadecimal digits
    created: int  # unix time
    model: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How a choice ended. `timings` and `remarks` are None until the engine has said its last word on it: in a stream,
    they are where a stop string ended the choice."""

    reason: FinishReason
    has_calls: bool
    stop: str | None  # the stop string that ended it
    timings: Timings | None
    remarks: Remarks | None


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """`arguments` are the JSON the model wrote; of a call that a limit cut, its beginning."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Written:
    """One choice, whole. `shown` is empty where no log-probabilities are wanted."""

    index: int
    thinking: str
    text: str
    calls: tuple[WrittenCall, ...]
    shown: tuple[Shown, ...]
    ending: Ending


class Gathered:
    """The parts of one choice, put together as they come."""

    def __init__(self) -> None:
        self._thinking: list[str] = []
        self._text: list[str] = []
        self._begun: dict[int, CallBegun] = {}
        self._arguments: dict[int, list[str]] = {}
        self._shown: list[Shown] = []

    def add(self, part: AnswerPart | None, shown: Sequence[Shown] = ()) -> None:
        self._shown += shown
        match part:
            case Thought(text):
                self._thinking.append(text)
            case Text(text):
                self._text.append(text)
            case CallBegun(call):
                self._begun[call], self._arguments[call] = part, []
            case CallArguments(call, text):
                self._arguments[call].append(text)

    def whole(self, index: int, ending: Ending) -> Written:
        calls = tuple(WrittenCall(c.id, c.name, "".join(self._arguments[n])) for n, c in self._begun.items())
        return Written(index, "".join(self._thinking), "".join(self._text), calls, tuple(self._shown), ending)


class Chunks(Protocol):
    """One streamed answer, as the bytes that are sent; any may be none. Called in the order of the methods here."""

    def open(self) -> bytes:
        """Before all else, once."""

    def said(self, sentence: str) -> bytes:
        """Why nothing comes, for people who look: sent at every silence, so that the connection lives. At any time."""

    def status(self, sentence: str, done: bool) -> bytes:
        """The same for programs that show it."""

    def begin(self, index: int, usage: Usage) -> bytes:
        """A choice was given a slot. `usage` is as far as it is known: the prompt, and what of it was found again."""

    def piece(self, index: int, part: AnswerPart | None, shown: Sequence[Shown]) -> bytes:
        """`part` is None where tokens have log-probabilities and no text."""

    def end(self, index: int, ending: Ending) -> bytes:
        """A choice is whole. The last piece of another may come later."""

    def close(self, usage: Usage) -> bytes:
        """After all else: the whole answer was sent."""

    def failed(self, error: ApiError) -> bytes:
        """Instead of `close`, at any time: the answer breaks off here."""


class Dialect(Protocol[Wanted]):
    """Made for one request. Its request's struct is what `reading.read` reads a body into."""

    route: str
    prefix: str  # of answers' ids, with what parts it from the digits
    request: type[Wanted]
    stream_type: bytes  # `Content-Type` of a streamed answer

    def generation(self, wanted: Wanted) -> Generation:
        """The request in OpenAI's words. Raises `ApiError` 400 for what cannot be said in them."""

    def not_read(self, wanted: Wanted) -> tuple[str, ...]:
        """Places that are left out, of which `Generation.not_read` cannot know."""
        return ()

    def at_once(self, wanted: Wanted) -> bytes | None:
        """The whole answer, as JSON, where a request asks for nothing of the model."""
        return None

    async def prompts(self, wanted: Wanted, generation: Generation, prompts: Prompts) -> list[Prompt]:
        """At least one. `generation` may have been shaped since `wanted` was read. Raises `ApiError` 400."""

    def chunks(self, wanted: Wanted, identity: Identity, names: Tokenizer | None) -> Chunks:
        """`names` tells tokens' names where log-probabilities are wanted."""

    def whole(
        self, wanted: Wanted, identity: Identity, written: Sequence[Written], usage: Usage, names: Tokenizer | None
    ) -> bytes:
        """The JSON of an answer that is not streamed."""

    def error(self, error: ApiError) -> bytes:
        """The JSON of an answer that is an error; its status and headers are the error's own."""


class StatusData(Struct, frozen=True, omit_defaults=True):
    description: str
    done: bool
    hidden: bool = False  # front ends that would leave the last line above its answer for good take it away


class StatusEvent(Struct, frozen=True):
    """An event in a chunk whose choice adds nothing: front ends that know it show it, other clients skip it."""

    data: StatusData
    type: str = "status"


def status_tail(sentence: str, done: bool) -> bytes:
    """The end of a chunk behind its choices. It has one, because programs look at the first of every chunk."""
    return b',"event":%b}\n\n' % msgspec.json.encode(StatusEvent(StatusData(sentence, done, hidden=done)))


def finish_word(ending: Ending) -> FinishWord:
    """A call that a limit cut was not made: its client hears of the limit."""
    if ending.reason is not FinishReason.STOP:
        return "length"
    return "tool_calls" if ending.has_calls else "stop"


def make_usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int, reasoning_tokens: int) -> Usage:
    total = prompt_tokens + completion_tokens
    details = PromptDetails(cached_tokens), CompletionDetails(reasoning_tokens)
    return Usage(prompt_tokens, completion_tokens, total, *details)
