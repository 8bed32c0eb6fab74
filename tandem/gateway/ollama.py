"""`/api/chat` and `/api/generate`: the same answers as lines of JSON, in Ollama's words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tandem.gateway.answers import Usage
from tandem.gateway.dialect import Ending, Identity, Written, WrittenCall, finish_word
from tandem.gateway.envelopes import ollama_error
from tandem.gateway.errors import ApiError
from tandem.gateway.foreign import ForeignChat, arguments_of
from tandem.gateway.logprobs import Shown, TokenLogprob, chat_logprobs
from tandem.gateway.ollama_request import (
    PLACES,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaGeneration,
    asks_nothing,
    chat_of,
    generate_of,
    unread_options,
)
from tandem.gateway.openai import ChatRequest, CompletionRequest
from tandem.text.pieces import AnswerPart, CallArguments, CallBegun, Text, Thought
from tandem.text.tokenizer import Tokenizer

_encode = msgspec.json.encode
STREAM_TYPE: Final = b"application/x-ndjson"


class MadeFunction(Struct, frozen=True):
    name: str
    arguments: dict[str, Any]
    index: int


class MadeCall(Struct, frozen=True):
    id: str
    function: MadeFunction


class OllamaReply(Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[MadeCall] | UnsetType = UNSET


class OllamaAnswer(Struct, frozen=True, kw_only=True):
    """One line, or a whole answer; counts and durations (ns) stand in the last. A chat's words are its `message`."""

    model: str
    created_at: str
    message: OllamaReply | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    done: bool
    done_reason: Literal["stop", "length", "load"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


Wanted = TypeVar("Wanted", bound=OllamaGeneration)


class _Ollama(ForeignChat[Wanted]):
    """`model` is the name people know."""

    is_chat: bool
    prefix = "ollama-"
    stream_type = STREAM_TYPE
    places = PLACES

    def __init__(self, model: str) -> None:
        self._model = model

    def not_read(self, wanted: Wanted) -> tuple[str, ...]:
        return unread_options(wanted)

    def at_once(self, wanted: Wanted) -> bytes | None:
        """A request without words only asks to load the model, or to let go of it, which the appliance decides."""
        if not asks_nothing(wanted):
            return None
        lines = Lines(Identity("", int(time.time()), self._model), self.is_chat, None)
        return _encode(lines.line(done=True, done_reason="load"))

    def chunks(self, wanted: Wanted, identity: Identity, names: Tokenizer | None) -> Lines:
        return Lines(identity, self.is_chat, names)

    def whole(
        self, wanted: Wanted, identity: Identity, written: Sequence[Written], usage: Usage, names: Tokenizer | None
    ) -> bytes:
        (choice,) = written
        answer = Lines(identity, self.is_chat, names).line(
            choice.text, choice.thinking, choice.calls, choice.shown, **ended(choice.ending, usage)
        )
        return _encode(answer)


class OllamaChat(_Ollama[OllamaChatRequest]):
    route = "/api/chat"
    request = OllamaChatRequest
    is_chat = True

    def generation(self, wanted: OllamaChatRequest) -> ChatRequest:
        return chat_of(wanted)


class OllamaGenerate(_Ollama[OllamaGenerateRequest]):
    route = "/api/generate"
    request = OllamaGenerateRequest
    is_chat = False

    def generation(self, wanted: OllamaGenerateRequest) -> ChatRequest | CompletionRequest:
        return generate_of(wanted)


class Lines:
    """A call is one line, once its arguments are whole."""

    def __init__(self, identity: Identity, is_chat: bool, names: Tokenizer | None) -> None:
        self._model = identity.model
        self._created_at = datetime.fromtimestamp(identity.created, UTC).isoformat().replace("+00:00", "Z")
        self._is_chat = is_chat
        self._names = names
        self._call: CallBegun | None = None
        self._arguments: list[str] = []
        self._ending: Ending | None = None

    def open(self) -> bytes:
        return b""

    def said(self, sentence: str) -> bytes:
        """There are no comments in this form: an empty piece keeps the connection."""
        return self._line()

    def status(self, sentence: str, done: bool) -> bytes:
        return b""

    def begin(self, index: int, usage: Usage) -> bytes:
        return b""

    def piece(self, index: int, part: AnswerPart | None, shown: Sequence[Shown]) -> bytes:
        match part:
            case CallArguments(_, text):
                self._arguments.append(text)
                return self._line(shown=shown) if shown else b""
            case CallBegun():
                before = self._take_call()
                self._call = part
                return before + (self._line(shown=shown) if shown else b"")
            case Text(text):
                return self._take_call() + self._line(text, shown=shown)
            case Thought(text):
                return self._take_call() + self._line("", text, shown=shown)
            case None:
                return self._line(shown=shown) if shown else b""

    def end(self, index: int, ending: Ending) -> bytes:
        self._ending = ending
        return self._take_call()

    def close(self, usage: Usage) -> bytes:
        assert self._ending is not None
        return self._line(**ended(self._ending, usage))

    def failed(self, error: ApiError) -> bytes:
        return ollama_error(error) + b"\n"

    def line(
        self,
        text: str = "",
        thinking: str = "",
        calls: Sequence[WrittenCall] = (),
        shown: Sequence[Shown] = (),
        first_call: int = 0,
        **facts: Any,
    ) -> OllamaAnswer:
        """`facts` are what only the last line says."""
        thought = thinking or UNSET
        if self._is_chat:
            made = [_answered(call, n) for n, call in enumerate(calls, first_call)] or UNSET
            content: dict[str, Any] = {"message": OllamaReply(content=text, thinking=thought, tool_calls=made)}
        else:
            content = {"response": text, "thinking": thought}
        scores = chat_logprobs(shown, self._names).content if self._names is not None and shown else UNSET
        facts = {"done": False, **facts}
        return OllamaAnswer(model=self._model, created_at=self._created_at, logprobs=scores, **content, **facts)

    def _line(self, *said: Any, **facts: Any) -> bytes:
        return _encode(self.line(*said, **facts)) + b"\n"

    def _take_call(self) -> bytes:
        """The call whose arguments are whole, if there is one."""
        call, self._call = self._call, None
        arguments, self._arguments = "".join(self._arguments), []
        if call is None:
            return b""
        return self._line("", "", [WrittenCall(call.id, call.name, arguments)], first_call=call.call)


def _answered(call: WrittenCall, index: int) -> MadeCall:
    return MadeCall(call.id, MadeFunction(call.name, arguments_of(call), index))


def ended(ending: Ending, usage: Usage) -> dict[str, Any]:
    """What the last line says. A stream that a stop string ended has no timings: it does not wait for the engine."""
    timings = ending.timings
    read, written = (timings.prompt_ms, timings.predicted_ms) if timings is not None else (0.0, 0.0)
    waited = timings.queue_ms if timings is not None else 0.0
    return {
        "done": True,
        "done_reason": "length" if finish_word(ending) == "length" else "stop",
        "total_duration": _nanoseconds(waited + read + written),
        "load_duration": 0,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(read),
        "eval_count": usage.completion_tokens,
        "eval_duration": _nanoseconds(written),
    }


def _nanoseconds(milliseconds: float) -> int:
    """At least one: clients divide by it."""
    return max(1, round(milliseconds * 1_000_000))
