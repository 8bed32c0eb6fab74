"""OpenAI's words on the wire: what requests may hold, and the shape of answers.

The structs are both the validation and the OpenAPI document. A field that is known, but whose value would change
the answer in a way this version does not honour, is refused by name; a field that is not known is ignored, and the
answer's header says so.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from tandem.gateway.errors import ApiError
from tandem.gateway.grammars import Answers, FormatType, ResponseFormat, SchemaField, StructuredOutputs, Text
from tandem.gateway.logprobs import ChatLogprobs, TextLogprobs

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
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


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
    def thinking_limit(self) -> int | None:
        if self.max_reasoning_tokens is not None or self.reasoning_effort is None:
            return self.max_reasoning_tokens
        return EFFORTS[self.reasoning_effort]


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

Wanted = TypeVar("Wanted", bound=Generation)


def parse(kind: type[Wanted], body: bytes) -> tuple[Wanted, tuple[str, ...]]:
    """The request, and the names of its fields that nobody reads.

    Raises `ApiError` 400 naming the field when the body is no JSON object of this kind.
    """
    try:
        wanted = msgspec.json.decode(body, type=kind)
        names = msgspec.json.decode(body, type=dict[str, Raw])
    except msgspec.ValidationError as error:
        sentence, param = _explain(str(error))
        raise ApiError(400, "invalid_value", sentence, param=param) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "invalid_json", f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise ApiError(400, "invalid_json", "the body is nested too deeply") from None
    refuse_unhonoured(wanted)
    if isinstance(wanted, ChatRequest) and wanted.top_logprobs and not wanted.logprobs:
        sentence = "`top_logprobs`: they are told with `logprobs: true` only"
        raise ApiError(400, "invalid_value", sentence, param="top_logprobs")
    return wanted, tuple(name for name in names if name not in kind.__struct_fields__)


def refuse_unhonoured(part: Struct, prefix: str = "") -> None:
    """Raises `ApiError` 400 for a known field that asks for what this version does not do."""
    for name in part.__struct_fields__:
        harmless = _ASK_NOTHING.get(name)
        if harmless is not None and getattr(part, name) not in harmless:
            raise ApiError(
                400, "unsupported_value", f"`{prefix}{name}` asks for what is not served here yet", param=prefix + name
            )


_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"`(\w+)`$")
_ALLOWED: Final = {
    "role": get_args(Role),
    "type": get_args(FormatType),
    "reasoning_effort": get_args(Effort),
}  # msgspec names the value that is wrong, which a user wrote


def _explain(message: str) -> tuple[str, str | None]:
    """msgspec's sentence as one of ours, and the field it is about."""
    found = _PLACE.fullmatch(message)
    assert found is not None
    what, path = found["what"], (found["path"] or "").lstrip(".")
    if what.startswith("Object missing required field") and (missing := _FIELD.search(what)):
        path = f"{path}.{missing[1]}" if path else missing[1]
        what = "this field is required"
    if what.startswith("Invalid enum value"):
        what = f"expected one of {', '.join(f'`{word}`' for word in _ALLOWED[path.rpartition('.')[2]])}"
    what = what[:1].lower() + what[1:]
    return (f"`{path}`: {what}", path) if path else (f"the body: {what}", None)


# --- answers ----------------------------------------------------------------------------------------------------


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


FinishWord = Literal["stop", "length"]


class AnswerMessage(Struct, frozen=True):
    role: Literal["assistant"]
    content: str


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
