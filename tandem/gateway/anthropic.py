"""`/v1/messages`: the same answers as events and blocks of Anthropic's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from tandem.gateway import sse
from tandem.gateway.answers import Usage
from tandem.gateway.anthropic_request import PLACES, MessagesRequest, to_chat
from tandem.gateway.dialect import Ending, Identity, Written, finish_word
from tandem.gateway.envelopes import messages_error
from tandem.gateway.errors import ApiError
from tandem.gateway.foreign import ForeignChat, arguments_of
from tandem.gateway.logprobs import Shown
from tandem.gateway.openai import ChatRequest
from tandem.text.pieces import AnswerPart, CallArguments, CallBegun, Text, Thought
from tandem.text.tokenizer import Tokenizer

_encode = msgspec.json.encode

# Clients send thinking back only when it is signed. Nobody here looks at it.
_SIGNATURE: Final = "unverified"


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = _SIGNATURE


class ToolUseBlock(Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class MessagesUsage(Struct, frozen=True):
    """The prompt is `input_tokens` and `cache_read_input_tokens` together."""

    input_tokens: int  # read anew
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
_STOP_REASONS: Final[dict[str, StopReason]] = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesAnswer(Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ThinkingBlock | TextBlock | ToolUseBlock] = field(default_factory=list)
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage


def stop_reason(ending: Ending) -> StopReason:
    return "stop_sequence" if ending.stop is not None else _STOP_REASONS[finish_word(ending)]


def usage_of(usage: Usage) -> MessagesUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return MessagesUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)


class Messages(ForeignChat[MessagesRequest]):
    route = "/v1/messages"
    prefix = "msg_"
    request = MessagesRequest
    stream_type = sse.STREAM_TYPE
    places = PLACES

    def generation(self, wanted: MessagesRequest) -> ChatRequest:
        return to_chat(wanted)

    def chunks(self, wanted: MessagesRequest, identity: Identity, names: Tokenizer | None) -> MessagesChunks:
        return MessagesChunks(identity)

    def whole(
        self,
        wanted: MessagesRequest,
        identity: Identity,
        written: Sequence[Written],
        usage: Usage,
        names: Tokenizer | None,
    ) -> bytes:
        (choice,) = written
        content: list[ThinkingBlock | TextBlock | ToolUseBlock] = []
        content += [ThinkingBlock(choice.thinking)] if choice.thinking else []
        content += [TextBlock(choice.text)] if choice.text else []
        content += [ToolUseBlock(call.id, call.name, arguments_of(call)) for call in choice.calls]
        answer = MessagesAnswer(
            id=identity.id,
            model=identity.model,
            usage=usage_of(usage),
            content=content,
            stop_reason=stop_reason(choice.ending),
            stop_sequence=choice.ending.stop,
        )
        return _encode(answer)


class MessagesChunks:
    """Parts of one kind, and each call, are a block: begun by its first piece, ended by what comes after it."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._has_begun = False
        self._open: type[Thought] | type[Text] | int | None = None  # the kind of the open block; a call by its number
        self._index = -1  # of the last block that was begun
        self._ending: Ending | None = None

    def open(self) -> bytes:
        return b""

    def said(self, sentence: str) -> bytes:
        """A message begins with its `message_start`; until it does, a line that clients skip keeps the connection."""
        return _event({"type": "ping"}) if self._has_begun else sse.comment(sentence)

    def status(self, sentence: str, done: bool) -> bytes:
        return b""

    def begin(self, index: int, usage: Usage) -> bytes:
        self._has_begun = True
        message = MessagesAnswer(id=self._identity.id, model=self._identity.model, usage=usage_of(usage))
        return _event({"type": "message_start", "message": message})

    def piece(self, index: int, part: AnswerPart | None, shown: Sequence[Shown]) -> bytes:
        match part:
            case Thought(text):
                begun = self._block(Thought, {"type": "thinking", "thinking": "", "signature": ""})
                return begun + self._delta({"type": "thinking_delta", "thinking": text})
            case Text(text):
                begun = self._block(Text, {"type": "text", "text": ""})
                return begun + self._delta({"type": "text_delta", "text": text})
            case CallBegun(call, id, name):
                return self._block(call, {"type": "tool_use", "id": id, "name": name, "input": {}})
            case CallArguments(_, text):
                return self._delta({"type": "input_json_delta", "partial_json": text})
            case _:
                return b""

    def end(self, index: int, ending: Ending) -> bytes:
        self._ending = ending
        return self._close_block()

    def close(self, usage: Usage) -> bytes:
        assert self._ending is not None
        delta = {"stop_reason": stop_reason(self._ending), "stop_sequence": self._ending.stop}
        told = _event({"type": "message_delta", "delta": delta, "usage": usage_of(usage)})
        return told + _event({"type": "message_stop"})

    def failed(self, error: ApiError) -> bytes:
        return sse.event(b"error", messages_error(error))

    def _block(self, kind: type[Thought] | type[Text] | int, block: dict[str, Any]) -> bytes:
        """Nothing when this block is open already."""
        if kind == self._open:
            return b""
        closed = self._close_block()
        self._open, self._index = kind, self._index + 1
        return closed + _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close_block(self) -> bytes:
        if self._open is None:
            return b""
        is_thinking, self._open = self._open is Thought, None
        signed = self._delta({"type": "signature_delta", "signature": _SIGNATURE}) if is_thinking else b""
        return signed + _event({"type": "content_block_stop", "index": self._index})


def _event(event: dict[str, Any]) -> bytes:
    return sse.event(event["type"].encode(), _encode(event))
