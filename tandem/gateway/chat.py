"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from tandem.gateway import sse
from tandem.gateway.answers import AnsweredCall, AnsweredFunction, AnswerMessage, ChatChoice, ChatCompletion, Usage
from tandem.gateway.dialect import Dialect, Ending, Identity, Written, finish_word, status_tail
from tandem.gateway.errors import ApiError
from tandem.gateway.logprobs import Shown, chat_logprobs
from tandem.gateway.openai import ChatRequest, Generation
from tandem.gateway.prompts import Prompts
from tandem.gateway.thinking import Tagged, ThinkingShown, in_tags, shown_as
from tandem.text.pieces import AnswerPart, CallArguments, CallBegun, Text, Thought
from tandem.text.template import Prompt
from tandem.text.tokenizer import Tokenizer

_encode = msgspec.json.encode


class Chat(Dialect[ChatRequest]):
    """`thinking` is the appliance's word for how thinking is sent (`api.reasoning`)."""

    route = "/v1/chat/completions"
    prefix = "chatcmpl-"
    request = ChatRequest
    stream_type = sse.STREAM_TYPE

    def __init__(self, thinking: str = ThinkingShown.REASONING_CONTENT) -> None:
        self._thinking = thinking

    def generation(self, wanted: ChatRequest) -> ChatRequest:
        return wanted

    async def prompts(self, wanted: ChatRequest, generation: Generation, prompts: Prompts) -> list[Prompt]:
        assert isinstance(generation, ChatRequest)
        return [await prompts.of_chat(generation)]

    def chunks(self, wanted: ChatRequest, identity: Identity, names: Tokenizer | None) -> ChatChunks:
        return ChatChunks(identity, names, wanted.wants_usage, self._shown(wanted))

    def whole(
        self,
        wanted: ChatRequest,
        identity: Identity,
        written: Sequence[Written],
        usage: Usage,
        names: Tokenizer | None,
    ) -> bytes:
        shown = self._shown(wanted)
        choices = [
            ChatChoice(
                w.index,
                message_of(w, shown),
                finish_word(w.ending),
                chat_logprobs(w.shown, names) if names is not None else None,
                w.ending.remarks or UNSET,
            )
            for w in written
        ]
        timings = written[0].ending.timings
        return _encode(ChatCompletion(identity.id, identity.created, identity.model, choices, usage, timings))

    def error(self, error: ApiError) -> bytes:
        return error.body

    def _shown(self, wanted: ChatRequest) -> ThinkingShown:
        return shown_as(self._thinking, wanted.reasoning_format, wanted.include_reasoning)


def message_of(written: Written, shown: ThinkingShown) -> AnswerMessage:
    """An answer that is nothing but calls has no text at all, not an empty one."""
    text = in_tags(written.thinking, written.text) if shown.in_text else written.text
    calls = [AnsweredCall(call.id, AnsweredFunction(call.name, call.arguments)) for call in written.calls]
    names = shown.names if written.thinking else ()
    return AnswerMessage(
        "assistant",
        text if text or not calls else None,
        reasoning_content=written.thinking if "reasoning_content" in names else UNSET,
        reasoning=written.thinking if "reasoning" in names else UNSET,
        tool_calls=calls or UNSET,
    )


class ChatChunks:
    """All but the piece of text is the same in every event of a stream, so it is encoded once."""

    def __init__(self, identity: Identity, names: Tokenizer | None, wants_usage: bool, thinking: ThinkingShown) -> None:
        self._names = names
        self._wants_usage = wants_usage
        self._thinking = thinking
        self._tagged: dict[int, Tagged] = {}
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            _encode(identity.id),
            identity.created,
            _encode(identity.model),
        )

    def open(self) -> bytes:
        return b""

    def said(self, sentence: str) -> bytes:
        return sse.comment(sentence)

    def status(self, sentence: str, done: bool) -> bytes:
        return self._head + b'{"index":0,"delta":{},"finish_reason":null}]' + status_tail(sentence, done)

    def begin(self, index: int, usage: Usage) -> bytes:
        return self._delta(index, b'{"role":"assistant","content":""}')

    def piece(self, index: int, part: AnswerPart | None, shown: Sequence[Shown]) -> bytes:
        scores = b'"logprobs":%b,' % _encode(chat_logprobs(shown, self._names)) if self._names is not None else b""
        if (delta := self._of_part(index, part)) is None:
            return self._delta(index, b"{}", scores) if shown else b""
        closing = b"" if isinstance(part, Thought) else self._close_tags(index)
        return closing + self._delta(index, delta, scores)

    def end(self, index: int, ending: Ending) -> bytes:
        timings, remarks = ending.timings, ending.remarks
        tail = b',"timings":' + _encode(timings) if timings is not None else b""
        noticed = b',"tandem":' + _encode(remarks) if remarks is not None else b""
        word = _encode(finish_word(ending))
        last = b'%b{"index":%d,"delta":{},"finish_reason":%b%b}]%b}\n\n' % (self._head, index, word, noticed, tail)
        return self._close_tags(index) + last

    def close(self, usage: Usage) -> bytes:
        counts = b'%b],"usage":%b}\n\n' % (self._head, _encode(usage)) if self._wants_usage else b""
        return counts + sse.DONE

    def failed(self, error: ApiError) -> bytes:
        return sse.data(error.body) + sse.DONE

    def _of_part(self, index: int, part: AnswerPart | None) -> bytes | None:
        """A call is begun by an event that says which and to what, with empty arguments; those follow, as they are
        written. Only the first says its id and name: clients tell calls apart by either, or by the index."""
        match part:
            case Text(text):
                return b'{"content":%b}' % _encode(text)
            case Thought(text):
                return self._of_thought(index, text)
            case CallBegun(call, id, name):
                function = b'{"name":%b,"arguments":""}' % _encode(name)
                begun = b'{"index":%d,"id":%b,"type":"function","function":%b}' % (call, _encode(id), function)
                return b'{"tool_calls":[%b]}' % begun
            case CallArguments(call, text):
                return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (call, _encode(text))
            case None:
                return None

    def _of_thought(self, index: int, text: str) -> bytes | None:
        encoded = _encode(text)
        fields = [b'"%b":%b' % (name.encode(), encoded) for name in self._thinking.names]
        if self._thinking.in_text:
            fields.append(b'"content":%b' % _encode(self._tagged.setdefault(index, Tagged()).thought(text)))
        return b"{%b}" % b",".join(fields) if fields else None

    def _close_tags(self, index: int) -> bytes:
        closing = self._tagged[index].before_text() if index in self._tagged else ""
        return self._delta(index, b'{"content":%b}' % _encode(closing)) if closing else b""

    def _delta(self, index: int, delta: bytes, scores: bytes = b"") -> bytes:
        return b'%b{"index":%d,"delta":%b,%b"finish_reason":null}]}\n\n' % (self._head, index, delta, scores)
