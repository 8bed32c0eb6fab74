"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from tandem.gateway import sse
from tandem.gateway.answers import AnswerMessage, ChatChoice, ChatCompletion, Usage
from tandem.gateway.dialect import Ending, Identity, Written, finish_word, status_tail
from tandem.gateway.errors import ApiError
from tandem.gateway.logprobs import Shown, chat_logprobs
from tandem.gateway.openai import ChatRequest
from tandem.gateway.prompts import Prompts
from tandem.text.pieces import AnswerPart, Text
from tandem.text.template import Prompt
from tandem.text.tokenizer import Tokenizer

_encode = msgspec.json.encode


class Chat:
    route = "/v1/chat/completions"
    prefix = "chatcmpl-"
    request = ChatRequest
    stream_type = sse.STREAM_TYPE

    def generation(self, wanted: ChatRequest) -> ChatRequest:
        return wanted

    async def prompts(self, wanted: ChatRequest, prompts: Prompts) -> list[Prompt]:
        if wanted.offer.tools or any(
            message.calls or message.role in ("tool", "function") for message in wanted.messages
        ):
            raise ApiError(400, "unsupported_value", "`tools` are not served here yet", param="tools")
        return [await prompts.of_messages(wanted.messages, thinks=wanted.thinking_limit != 0)]

    def chunks(self, wanted: ChatRequest, identity: Identity, names: Tokenizer | None) -> ChatChunks:
        return ChatChunks(identity, names, wanted.wants_usage)

    def whole(
        self,
        wanted: ChatRequest,
        identity: Identity,
        written: Sequence[Written],
        usage: Usage,
        names: Tokenizer | None,
    ) -> bytes:
        choices = [
            ChatChoice(
                w.index,
                AnswerMessage("assistant", w.text),
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


class ChatChunks:
    """All but the piece of text is the same in every event of a stream, so it is encoded once."""

    def __init__(self, identity: Identity, names: Tokenizer | None, wants_usage: bool) -> None:
        self._names = names
        self._wants_usage = wants_usage
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
        return self._head + status_tail(sentence, done)

    def begin(self, index: int, usage: Usage) -> bytes:
        delta = b'{"index":%d,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n' % index
        return self._head + delta

    def piece(self, index: int, part: AnswerPart | None, shown: Sequence[Shown]) -> bytes:
        delta = b'{"index":%d,"delta":%b,%b"finish_reason":null}]}\n\n'
        scores = b'"logprobs":%b,' % _encode(chat_logprobs(shown, self._names)) if self._names is not None else b""
        return self._head + delta % (index, _delta(part), scores)

    def end(self, index: int, ending: Ending) -> bytes:
        timings, remarks = ending.timings, ending.remarks
        tail = b',"timings":' + _encode(timings) if timings is not None else b""
        noticed = b',"tandem":' + _encode(remarks) if remarks is not None else b""
        word = _encode(finish_word(ending))
        return b'%b{"index":%d,"delta":{},"finish_reason":%b%b}]%b}\n\n' % (self._head, index, word, noticed, tail)

    def close(self, usage: Usage) -> bytes:
        counts = b'%b],"usage":%b}\n\n' % (self._head, _encode(usage)) if self._wants_usage else b""
        return counts + sse.DONE

    def failed(self, error: ApiError) -> bytes:
        return sse.data(error.body) + sse.DONE


def _delta(part: AnswerPart | None) -> bytes:
    match part:
        case Text(text):
            return b'{"content":%b}' % _encode(text)
        case _:
            return b"{}"
