"""`/v1/completions`: the prompt is the model's input as it stands, as text or as token ids."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from tandem.gateway import sse
from tandem.gateway.answers import Completion, TextChoice, Usage
from tandem.gateway.dialect import Dialect, Ending, Identity, Written, finish_word, status_tail
from tandem.gateway.errors import ApiError
from tandem.gateway.logprobs import Shown, text_logprobs
from tandem.gateway.openai import CompletionRequest, Generation
from tandem.gateway.prompts import Prompts
from tandem.text.pieces import AnswerPart, CallArguments, CallBegun
from tandem.text.template import Prompt
from tandem.text.tokenizer import Tokenizer

_encode = msgspec.json.encode


class Completions(Dialect[CompletionRequest]):
    route = "/v1/completions"
    prefix = "cmpl-"
    request = CompletionRequest
    stream_type = sse.STREAM_TYPE

    def generation(self, wanted: CompletionRequest) -> CompletionRequest:
        return wanted

    async def prompts(self, wanted: CompletionRequest, generation: Generation, prompts: Prompts) -> list[Prompt]:
        if isinstance(wanted.prompt, str):
            return [await prompts.of_text(wanted.prompt, "prompt")]
        ids = [item for item in wanted.prompt if isinstance(item, int)]
        if len(ids) == len(wanted.prompt):
            return [prompts.of_ids(ids, "prompt")]
        if ids:
            raise ApiError(400, "invalid_value", "`prompt`: token ids stand in a list of their own", param="prompt")
        texts_or_lists = [item for item in wanted.prompt if not isinstance(item, int)]
        return [await _prompt(item, f"prompt[{n}]", prompts) for n, item in enumerate(texts_or_lists)]

    def chunks(self, wanted: CompletionRequest, identity: Identity, names: Tokenizer | None) -> CompletionChunks:
        return CompletionChunks(identity, names, wanted.wants_usage)

    def whole(
        self,
        wanted: CompletionRequest,
        identity: Identity,
        written: Sequence[Written],
        usage: Usage,
        names: Tokenizer | None,
    ) -> bytes:
        choices = [
            TextChoice(
                w.index,
                w.text,
                finish_word(w.ending),
                text_logprobs(w.shown, names) if names is not None else None,
                w.ending.remarks or UNSET,
            )
            for w in written
        ]
        timings = written[0].ending.timings
        return _encode(Completion(identity.id, identity.created, identity.model, choices, usage, timings))

    def error(self, error: ApiError) -> bytes:
        return error.body


async def _prompt(item: str | list[int], param: str, prompts: Prompts) -> Prompt:
    return await prompts.of_text(item, param) if isinstance(item, str) else prompts.of_ids(item, param)


class CompletionChunks:
    """As `chat.ChatChunks`; a choice begins with its first piece."""

    def __init__(self, identity: Identity, names: Tokenizer | None, wants_usage: bool) -> None:
        self._names = names
        self._wants_usage = wants_usage
        self._head = b'data: {"id":%b,"object":"text_completion","created":%d,"model":%b,"choices":[' % (
            _encode(identity.id),
            identity.created,
            _encode(identity.model),
        )

    def open(self) -> bytes:
        return b""

    def said(self, sentence: str) -> bytes:
        return sse.comment(sentence)

    def status(self, sentence: str, done: bool) -> bytes:
        return self._head + b'{"index":0,"text":"","finish_reason":null}]' + status_tail(sentence, done)

    def begin(self, index: int, usage: Usage) -> bytes:
        return b""

    def piece(self, index: int, part: AnswerPart | None, shown: Sequence[Shown]) -> bytes:
        assert not isinstance(part, CallBegun | CallArguments)  # a raw prompt offers no tools
        text = part.text if part is not None else ""
        scores = b'"logprobs":%b,' % _encode(text_logprobs(shown, self._names)) if self._names is not None else b""
        choice = b'{"index":%d,"text":%b,%b"finish_reason":null}]}\n\n'
        return self._head + choice % (index, _encode(text), scores)

    def end(self, index: int, ending: Ending) -> bytes:
        timings, remarks = ending.timings, ending.remarks
        tail = b',"timings":' + _encode(timings) if timings is not None else b""
        noticed = b',"tandem":' + _encode(remarks) if remarks is not None else b""
        word = _encode(finish_word(ending))
        return b'%b{"index":%d,"text":"","finish_reason":%b%b}]%b}\n\n' % (self._head, index, word, noticed, tail)

    def close(self, usage: Usage) -> bytes:
        counts = b'%b],"usage":%b}\n\n' % (self._head, _encode(usage)) if self._wants_usage else b""
        return counts + sse.DONE

    def failed(self, error: ApiError) -> bytes:
        return sse.data(error.body) + sse.DONE
