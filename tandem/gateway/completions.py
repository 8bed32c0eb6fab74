"""`/v1/completions`: the prompt is the model's input as it stands, as text or as token ids."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from tandem.contract.messages import FinishReason
from tandem.gateway.dialect import Identity, Written, finish_word, status_tail
from tandem.gateway.errors import ApiError
from tandem.gateway.logprobs import Shown, text_logprobs
from tandem.gateway.openai import Completion, CompletionRequest, Remarks, TextChoice, Timings, Usage
from tandem.gateway.prompts import Prompts
from tandem.text.template import Prompt
from tandem.text.tokenizer import Tokenizer

_encode = msgspec.json.encode


class Completions:
    route = "/v1/completions"
    prefix = "cmpl"
    request = CompletionRequest

    async def prompts(self, wanted: CompletionRequest, prompts: Prompts) -> list[Prompt]:
        if isinstance(wanted.prompt, str):
            return [await prompts.of_text(wanted.prompt, "prompt")]
        ids = [item for item in wanted.prompt if isinstance(item, int)]
        if len(ids) == len(wanted.prompt):
            return [prompts.of_ids(ids, "prompt")]
        if ids:
            raise ApiError(400, "invalid_value", "`prompt`: token ids stand in a list of their own", param="prompt")
        texts_or_lists = [item for item in wanted.prompt if not isinstance(item, int)]
        return [await _prompt(item, f"prompt[{n}]", prompts) for n, item in enumerate(texts_or_lists)]

    def max_tokens(self, wanted: CompletionRequest) -> int | None:
        return wanted.max_tokens

    def chunks(self, identity: Identity, names: Tokenizer | None) -> CompletionChunks:
        return CompletionChunks(identity, names)

    def whole(self, identity: Identity, written: list[Written], usage: Usage, names: Tokenizer | None) -> bytes:
        choices = [
            TextChoice(
                w.index,
                w.text,
                finish_word(w.reason),
                text_logprobs(w.shown, names) if names is not None else None,
                w.remarks or UNSET,
            )
            for w in written
        ]
        return _encode(Completion(identity.id, identity.created, identity.model, choices, usage, written[0].timings))


async def _prompt(item: str | list[int], param: str, prompts: Prompts) -> Prompt:
    return await prompts.of_text(item, param) if isinstance(item, str) else prompts.of_ids(item, param)


class CompletionChunks:
    """As `chat.ChatChunks`; a choice begins with its first piece."""

    def __init__(self, identity: Identity, names: Tokenizer | None) -> None:
        self._names = names
        self._head = b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[' % (
            _encode(identity.id),
            identity.created,
            _encode(identity.model),
        )

    def begin(self, index: int) -> bytes:
        return b""

    def status(self, sentence: str, done: bool) -> bytes:
        return self._head + status_tail(sentence, done)

    def piece(self, index: int, text: str, shown: Sequence[Shown]) -> bytes:
        scores = b'"logprobs":%b,' % _encode(text_logprobs(shown, self._names)) if self._names is not None else b""
        choice = b'{"index":%d,"text":%b,%b"finish_reason":null}]}\n\n'
        return self._head + choice % (index, _encode(text), scores)

    def end(self, index: int, reason: FinishReason, timings: Timings | None, remarks: Remarks | None) -> bytes:
        tail = b',"timings":' + _encode(timings) if timings is not None else b""
        noticed = b',"tandem":' + _encode(remarks) if remarks is not None else b""
        word = _encode(finish_word(reason))
        return b'%b{"index":%d,"text":"","finish_reason":%b%b}]%b}\n\n' % (self._head, index, word, noticed, tail)

    def usage(self, usage: Usage) -> bytes:
        return b'%b],"usage":%b}\n\n' % (self._head, _encode(usage))
