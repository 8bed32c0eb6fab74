"""OpenAI's words on the wire: what requests may hold. Every other API's request is put into these words first.

The structs are both the validation and the OpenAPI document; `fields` says what becomes of each field. A field that
is not known is ignored, and the answer's header says so.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from tandem.gateway.conversation import Message
from tandem.gateway.errors import ApiError
from tandem.gateway.fields import (
    ENDLESS,
    MAX_CHOICES,
    MAX_STOPS,
    WHOLE_ROOM,
    Count,
    Ignored,
    NumTop,
    Penalty,
    Refused,
    Stop,
)
from tandem.gateway.grammars import Answers, ResponseFormat, SchemaField, StructuredOutputs, Text
from tandem.gateway.offer import NamedTool, Offer, OfferedTool, left_out, offer_of
from tandem.gateway.treatment import refuse_unhonoured
from tandem.text.template import OWN_WORDS


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class Generation(Struct, frozen=True, kw_only=True):
    """What chat and completion requests have in common. None is the same as left out."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Count | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaField = None
    guided_regex: Text | None = None
    guided_choice: Answers | None = None
    guided_grammar: Text | None = None
    json_schema: SchemaField = None
    grammar: Text | None = None
    end_loops: bool | None = None  # an answer that repeats itself without end is ended
    cache_prompt: bool | None = None
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    service_tier: Ignored = None

    @property
    def keep_for(self) -> float:
        """Seconds that memory is to keep what the conversation leaves; 0: as long as nobody wants the room."""
        return 86400.0 if self.prompt_cache_retention == "24h" else 0.0

    @property
    def num_top(self) -> int | None:
        """Best tokens that are told with each token; None: no log-probabilities at all."""
        return None

    @property
    def thinking_limit(self) -> int | None:
        """Tokens; None: no limit."""
        return None

    @property
    def answer_limit(self) -> int | None:
        """Tokens of the answer, thinking included; None: the appliance's default. Raises `ApiError` 400 for none."""
        return _limit(self.max_tokens, "max_tokens")

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def offer(self) -> Offer:
        """What the model may call."""
        return Offer()

    @property
    def openings(self) -> tuple[str, ...]:
        """Texts by whose beginnings a task beside a conversation is known."""
        return ()

    @property
    def not_read(self) -> tuple[str, ...]:
        """Places of what is left out of the request."""
        return ()

    def check(self) -> None:
        """Raises `ApiError` 400 for what no answer can keep to."""
        refuse_unhonoured(self)
        _ = self.answer_limit, self.offer


def _limit(value: int | None, param: str) -> int | None:
    if value == 0:
        sentence = (
            f"`{param}`: an answer has at least 1 token; leave it out for the default, -1 for all there is room for"
        )
        raise ApiError(400, "invalid_value", sentence, param=param)
    return ENDLESS if value == WHOLE_ROOM else value


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
EFFORTS: Final[dict[str, int]] = {  # tokens
    "none": 0,
    "minimal": 256,
    "low": 1024,
    "medium": 4096,
    "high": 16_384,
    "xhigh": 65_536,
}


ReasoningFormat = Literal["auto", "none", "deepseek", "deepseek-legacy"]  # llama.cpp's words


class ChatRequest(Generation, frozen=True, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    functions: Refused = None
    function_call: Refused = None
    logprobs: bool | None = None
    top_logprobs: NumTop | None = None
    max_reasoning_tokens: Annotated[int, Meta(ge=0)] | None = None  # goes before `reasoning_effort`
    reasoning_effort: Effort | None = None
    reasoning_format: ReasoningFormat | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: Refused = None
    audio: Refused = None
    web_search_options: Refused = None
    prediction: Ignored = None
    verbosity: Ignored = None

    @property
    def num_top(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def answer_limit(self) -> int | None:
        newer = _limit(self.max_completion_tokens, "max_completion_tokens")
        return newer if newer is not None else super().answer_limit

    @property
    def thinking_limit(self) -> int | None:
        if self.max_reasoning_tokens is not None or self.reasoning_effort is None:
            return self.max_reasoning_tokens
        return EFFORTS[self.reasoning_effort]

    @property
    def offer(self) -> Offer:
        """Raises `ApiError` 400."""
        return offer_of(self.tools or (), self.tool_choice, self.parallel_tool_calls is not False)

    @property
    def openings(self) -> tuple[str, ...]:
        """Of the system message, and of the user's last ones up to the answer before."""
        head = self.messages[:1] if self.messages[0].role in ("system", "developer") else []
        last = takewhile(lambda message: message.role == "user", reversed(self.messages))
        return tuple(message.opening for message in (*head, *last))

    @property
    def not_read(self) -> tuple[str, ...]:
        return left_out(self.tools or ())

    def check(self) -> None:
        super().check()
        if own := OWN_WORDS.intersection(self.chat_template_kwargs or ()):
            param = f"chat_template_kwargs.{min(own)}"
            sentence = f"`{param}`: the template has this word from the request itself"
            raise ApiError(400, "invalid_value", sentence, param=param)
        if self.top_logprobs and not self.logprobs:
            sentence = "`top_logprobs`: they are told with `logprobs: true` only"
            raise ApiError(400, "invalid_value", sentence, param="top_logprobs")


TokenId = Annotated[int, Meta(ge=0)]
Ids = Annotated[list[TokenId], Meta(min_length=1)]


class CompletionRequest(Generation, frozen=True, kw_only=True):
    """`prompt` is a text, several texts, one list of token ids, or several."""

    prompt: str | Annotated[list[str | TokenId | Ids], Meta(min_length=1)]
    suffix: Refused = None
    echo: Refused = None
    best_of: Refused = None
    logprobs: NumTop | None = None

    @property
    def num_top(self) -> int | None:
        return self.logprobs
