"""OpenAI's words on the wire: what requests may hold. Every other API's request is put into these words first.

The structs are both the validation and the OpenAPI document. A field that is known, but whose value would change
the answer in a way this version does not honour, is refused by name; a field that is not known is ignored, and the
answer's header says so.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from tandem.gateway.errors import ApiError
from tandem.gateway.grammars import Answers, ResponseFormat, SchemaField, StructuredOutputs, Text

MAX_CHOICES: Final = 16
MAX_STOPS: Final = 16

Count = Annotated[int, Meta(ge=1)]  # cut to the room of the slot, however large
Penalty = Annotated[float, Meta(ge=-2, le=2)]
NumTop = Annotated[int, Meta(ge=0, le=20)]
Stop = Annotated[str, Meta(min_length=1, max_length=1000)]
NotYet = Annotated[Any, Meta(description="Accepted only with a value that asks for nothing; others are refused.")]


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
    user: Any = None
    metadata: Any = None
    store: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    service_tier: Any = None

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
        """Tokens of the answer, thinking included; None: the appliance's default."""
        return self.max_tokens

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def refuse_unhonoured(self) -> None:
        """Raises `ApiError` 400 for a field that asks for what is not done."""
        refuse_unhonoured(self)


class Part(Struct, frozen=True):
    """A piece of a message's content; only text is read."""

    type: str
    text: str | None = None


Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class Message(Struct, frozen=True):
    role: Role
    content: str | list[Part] | None = None
    tool_calls: NotYet = None
    function_call: NotYet = None


Effort = Literal["none", "minimal", "low", "medium", "high"]
EFFORTS: Final[dict[str, int]] = {"none": 0, "minimal": 256, "low": 1024, "medium": 4096, "high": 16_384}  # tokens


class ChatRequest(Generation, frozen=True, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    tools: NotYet = None
    tool_choice: NotYet = None
    parallel_tool_calls: Any = None
    functions: NotYet = None
    function_call: NotYet = None
    logprobs: bool | None = None
    top_logprobs: NumTop | None = None
    max_reasoning_tokens: Annotated[int, Meta(ge=0)] | None = None  # goes before `reasoning_effort`
    reasoning_effort: Effort | None = None
    modalities: NotYet = None
    audio: NotYet = None
    web_search_options: NotYet = None

    @property
    def num_top(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def answer_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def thinking_limit(self) -> int | None:
        if self.max_reasoning_tokens is not None or self.reasoning_effort is None:
            return self.max_reasoning_tokens
        return EFFORTS[self.reasoning_effort]

    def refuse_unhonoured(self) -> None:
        refuse_unhonoured(self)
        for index, message in enumerate(self.messages):
            refuse_unhonoured(message, f"messages[{index}].")
            if message.role in ("tool", "function"):
                param = f"messages[{index}].role"
                raise ApiError(400, "unsupported_value", f"`{param}`: tools are not served here yet", param=param)
        if self.top_logprobs and not self.logprobs:
            sentence = "`top_logprobs`: they are told with `logprobs: true` only"
            raise ApiError(400, "invalid_value", sentence, param="top_logprobs")


TokenId = Annotated[int, Meta(ge=0)]
Ids = Annotated[list[TokenId], Meta(min_length=1)]


class CompletionRequest(Generation, frozen=True, kw_only=True):
    """`prompt` is a text, several texts, one list of token ids, or several."""

    prompt: str | Annotated[list[str | TokenId | Ids], Meta(min_length=1)]
    suffix: NotYet = None
    echo: NotYet = None
    best_of: NotYet = None
    logprobs: NumTop | None = None

    @property
    def num_top(self) -> int | None:
        return self.logprobs


# Values of known fields that ask for nothing. Any other value is refused by the field's name.
_ASK_NOTHING: Final[dict[str, tuple[Any, ...]]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "tool_calls": (None, []),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "suffix": (None, ""),
    "echo": (None, False),
    "best_of": (None, 1),
}


def refuse_unhonoured(part: Struct, prefix: str = "") -> None:
    """Raises `ApiError` 400 for a known field that asks for what this version does not do."""
    for name in part.__struct_fields__:
        harmless = _ASK_NOTHING.get(name)
        if harmless is not None and getattr(part, name) not in harmless:
            raise ApiError(
                400, "unsupported_value", f"`{prefix}{name}` asks for what is not served here yet", param=prefix + name
            )
