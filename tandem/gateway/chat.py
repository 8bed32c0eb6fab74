"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from tandem.contract.messages import FinishReason
from tandem.gateway.dialect import Identity, Written, finish_word, status_tail
from tandem.gateway.errors import ApiError
from tandem.gateway.logprobs import Shown, chat_logprobs
from tandem.gateway.openai import AnswerMessage, ChatChoice, ChatCompletion, ChatRequest, Remarks, Timings, Usage
from tandem.gateway.openai import refuse_unhonoured as refuse
from tandem.gateway.prompts import Prompts
from tandem.text.template import Prompt
from tandem.text.tokenizer import Tokenizer

_encode = msgspec.json.encode


class Chat:
    route = "/v1/chat/completions"
    prefix = "chatcmpl"
    request = ChatRequest

    async def prompts(self, wanted: ChatRequest, prompts: Prompts) -> list[Prompt]:
        for index, message in enumerate(wanted.messages):
            refuse(message, f"messages[{index}].")
            if message.role in ("tool", "function"):
                param = f"messages[{index}].role"
                raise ApiError(400, "unsupported_value", f"`{param}`: tools are not served here yet", param=param)
        return [await prompts.of_messages(wanted.messages, thinks=wanted.thinking_limit != 0)]

    def max_tokens(self, wanted: ChatRequest) -> int | None:
        return wanted.max_completion_tokens or wanted.max_tokens

    def chunks(self, identity: Identity, names: Tokenizer | None) -> ChatChunks:
        return ChatChunks(identity, names)

    def whole(self, identity: Identity, written: list[Written], usage: Usage, names: Tokenizer | None) -> bytes:
        choices = [
            ChatChoice(
                w.index,
                AnswerMessage("assistant", w.text),
                finish_word(w.reason),
                chat_logprobs(w.shown, names) if names is not None else None,
                w.remarks or UNSET,
            )
            for w in written
        ]
        return _encode(
            ChatCompletion(identity.id, identity.created, identity.model, choices, usage, written[0].timings)
        )


class ChatChunks:
    """All but the piece of text is the same in every event of a stream, so it is encoded once."""

    def __init__(self, identity: Identity, names: Tokenizer | None) -> None:
        self._names = names
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
            _encode(identity.id),
            identity.created,
            _encode(identity.model),
        )

    def begin(self, index: int) -> bytes:
        delta = b'{"index":%d,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n' % index
        return self._head + delta

    def status(self, sentence: str, done: bool) -> bytes:
        return self._head + status_tail(sentence, done)

    def piece(self, index: int, text: str, shown: Sequence[Shown]) -> bytes:
        delta = b'{"index":%d,"delta":{"content":%b},%b"finish_reason":null}]}\n\n'
        scores = b'"logprobs":%b,' % _encode(chat_logprobs(shown, self._names)) if self._names is not None else b""
        return self._head + delta % (index, _encode(text), scores)

    def end(self, index: int, reason: FinishReason, timings: Timings | None, remarks: Remarks | None) -> bytes:
        tail = b',"timings":' + _encode(timings) if timings is not None else b""
        noticed = b',"tandem":' + _encode(remarks) if remarks is not None else b""
        word = _encode(finish_word(reason))
        return b'%b{"index":%d,"delta":{},"finish_reason":%b%b}]%b}\n\n' % (self._head, index, word, noticed, tail)

    def usage(self, usage: Usage) -> bytes:
        return b'%b],"usage":%b}\n\n' % (self._head, _encode(usage))
