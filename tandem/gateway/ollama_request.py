"""What Ollama's requests may hold, and the same chat in OpenAI's words. No option changes what is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from tandem.gateway.errors import ApiError
from tandem.gateway.fields import MAX_STOPS, WHOLE_ROOM, Ignored, Stop
from tandem.gateway.foreign import Places, Refused, as_placed, effort_of, in_openai_words, not_read, refuse
from tandem.gateway.openai import ChatRequest, CompletionRequest
from tandem.gateway.reading import convert

LATEST: Final = ":latest"  # clients of Ollama add it to a name that has no tag


class Options(Struct, frozen=True):
    """Those that are read. The window is the appliance's, whatever `num_ctx` says."""

    num_predict: int | None = None  # 0 or less: all there is room for
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None


class OllamaFunction(Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1)]
    arguments: dict[str, Any] | str | None = None


class OllamaCall(Struct, frozen=True):
    function: OllamaFunction
    id: str | None = None


class OllamaMessage(Struct, frozen=True):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaGeneration(Struct, frozen=True, kw_only=True):
    """What chat and generate requests have in common. They stream unless told otherwise."""

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None  # "", "json" or a JSON schema
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: Ignored = None
    truncate: Ignored = None
    shift: Ignored = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class OllamaChatRequest(OllamaGeneration, frozen=True, kw_only=True):
    messages: list[OllamaMessage] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(OllamaGeneration, frozen=True, kw_only=True):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None  # the prompt is the model's input as it stands
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None


def asks_nothing(wanted: OllamaGeneration) -> bool:
    """Whether it is only to load the model, or to let go of it; the appliance decides that."""
    return not (wanted.messages if isinstance(wanted, OllamaChatRequest) else getattr(wanted, "prompt", None))


def unread_options(wanted: OllamaGeneration) -> tuple[str, ...]:
    return tuple(f"options.{name}" for name in wanted.options or () if name not in Options.__struct_fields__)


def chat_of(wanted: OllamaChatRequest) -> ChatRequest:
    """Raises `ApiError` 400 naming the place in the request as it came."""
    turns = wanted.messages or [OllamaMessage("user")]
    messages = [_message(message, f"messages[{n}]") for n, message in enumerate(turns)]
    fields = {"messages": messages, "tools": wanted.tools, **_chat_fields(wanted)}
    return in_openai_words(ChatRequest, fields, PLACES)


def generate_of(wanted: OllamaGenerateRequest) -> ChatRequest | CompletionRequest:
    """Raises `ApiError` 400 naming the place in the request as it came."""
    refuse(wanted, REFUSED)
    if wanted.raw:
        scores = (wanted.top_logprobs or 0) if wanted.logprobs else None
        fields = {"prompt": wanted.prompt or "", "logprobs": scores, **_fields(wanted)}
        return in_openai_words(CompletionRequest, fields, PLACES)
    system = [{"role": "system", "content": wanted.system}] if wanted.system else []
    messages = [*system, {"role": "user", "content": wanted.prompt or ""}]
    return in_openai_words(ChatRequest, {"messages": messages, **_chat_fields(wanted)}, PLACES)


REFUSED: Final = (
    Refused("suffix", (None, ""), "the model continues, it does not fill in"),
    Refused("template", (None, ""), "the model's own template is used; `raw` sends a prompt without it"),
    Refused("context", (None, []), "nothing is kept between requests: use `/api/chat`, with the whole conversation"),
    Refused("images", (None, []), "this model does not see images; send text"),
)

_LIMITS: Final = "temperature|top_p|top_k|min_p|presence_penalty|frequency_penalty|seed|stop|num_predict|repeat_penalty"
PLACES: Final[Places] = (
    ("max_tokens", "options.num_predict"),
    ("repetition_penalty", "options.repeat_penalty"),
    (f"({_LIMITS})", r"options.\1"),
    ("reasoning_effort", "think"),
    (r"response_format(\.json_schema\.schema)?", "format"),
)


def _fields(wanted: OllamaGeneration) -> dict[str, Any]:
    options = _options(wanted.options or {})
    return {
        "model": wanted.model.removesuffix(LATEST) if wanted.model is not None else None,
        "stream": wanted.stream is not False,
        "max_tokens": _limit(options.num_predict),
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p,
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "seed": options.seed,
        "stop": options.stop,
        "response_format": _format(wanted.format),
    }


def _limit(num_predict: int | None) -> int | None:
    """What is not above zero means no limit to Ollama."""
    return num_predict if num_predict is None or num_predict > 0 else WHOLE_ROOM


def _options(options: dict[str, Any]) -> Options:
    try:
        return convert(Options, options)
    except ApiError as error:
        raise as_placed(error, PLACES) from None


def _chat_fields(wanted: OllamaGeneration) -> dict[str, Any]:
    effort = "none" if wanted.think is False else effort_of(wanted.think) if isinstance(wanted.think, str) else None
    return {
        **_fields(wanted),
        "reasoning_effort": effort,
        "logprobs": wanted.logprobs,
        "top_logprobs": wanted.top_logprobs,
    }


def _format(form: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if isinstance(form, dict):
        return {"type": "json_schema", "json_schema": {"schema": form}}
    if form not in (None, "", "json"):
        sentence = '`format`: "json", a JSON schema, or nothing'
        raise ApiError(400, "invalid_value", sentence, param="format")
    return {"type": "json_object"} if form else None


def _message(message: OllamaMessage, place: str) -> dict[str, Any]:
    if message.images:
        raise not_read("image", f"{place}.images")
    fields = {
        "role": message.role,
        "content": message.content,
        "reasoning_content": message.thinking,
        "tool_calls": list(_calls(message.tool_calls or ())),
        "tool_call_id": message.tool_call_id,
        "name": message.tool_name,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _calls(calls: Iterable[OllamaCall]) -> Iterator[dict[str, Any]]:
    for call in calls:
        function = {"name": call.function.name, "arguments": call.function.arguments or {}}
        yield {"id": call.id, "type": "function", "function": function}
