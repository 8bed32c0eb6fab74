"""What answers are made of on the wire: counts that every API shows in its own words, and OpenAI's shapes.

The structs are also the answers' part of the OpenAPI document.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from tandem.gateway.logprobs import ChatLogprobs, TextLogprobs


class PromptDetails(Struct, frozen=True):
    cached_tokens: int


class CompletionDetails(Struct, frozen=True):
    reasoning_tokens: int


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Timings(Struct, frozen=True):
    """Of one choice, in milliseconds and tokens a second, under the names llama.cpp gave them."""

    cache_n: int
    prompt_n: int  # read anew
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    queue_ms: float
    draft_n: int  # guesses that were checked
    draft_n_accepted: int  # of them, right


class LoopRemark(Struct, frozen=True):
    """The answer was one run of tokens over and over."""

    period: int  # tokens of the run
    repeats: int
    ended: bool  # whether the answer was ended for it; then its `finish_reason` is `length`


class Remarks(Struct, frozen=True, omit_defaults=True):
    """What the appliance noticed about a choice; there when there is anything."""

    loop: LoopRemark | None = None
    runaway_reasoning: bool = False  # it was still thinking when most of its room was used up
    max_tokens: int | None = None  # what there was room for, where the request asked for more


FinishWord = Literal["stop", "length", "tool_calls"]


class AnsweredFunction(Struct, frozen=True):
    name: str
    arguments: str  # JSON; of a call that a limit cut, its beginning


class AnsweredCall(Struct, frozen=True):
    id: str
    function: AnsweredFunction
    type: Literal["function"] = "function"


class AnswerMessage(Struct, frozen=True):
    """Thinking is there under the name, or the names, that `api.reasoning` chooses. `content` is null in an answer
    that is nothing but calls."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[AnsweredCall] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    index: int
    message: AnswerMessage
    finish_reason: FinishWord
    logprobs: ChatLogprobs | None = None
    tandem: Remarks | UnsetType = UNSET


class ChatCompletion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings | None
    object: Literal["chat.completion"] = "chat.completion"


class TextChoice(Struct, frozen=True):
    index: int
    text: str
    finish_reason: FinishWord
    logprobs: TextLogprobs | None = None
    tandem: Remarks | UnsetType = UNSET


class Completion(Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    timings: Timings | None
    object: Literal["text_completion"] = "text_completion"


class ModelMeta(Struct, frozen=True):
    n_ctx: int
    n_ctx_side: int
    n_vocab: int
    slots: int


class ModelCard(Struct, frozen=True):
    id: str
    created: int
    max_model_len: int  # rows of the largest slot: prompt and answer together
    context_length: int
    meta: ModelMeta
    status: str  # loading | ready | draining | failed | hung | away
    aliases: list[str] = field(default_factory=list)
    owned_by: str = "tandem"
    object: Literal["model"] = "model"


class ModelList(Struct, frozen=True):
    data: list[ModelCard]
    object: Literal["list"] = "list"
