"""What a request to `/v1/responses` may hold, and the same chat in OpenAI's older words.

Stateless: the whole conversation comes with each request, and nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from tandem.gateway.conversation import Part
from tandem.gateway.errors import ApiError
from tandem.gateway.fields import Count, Ignored
from tandem.gateway.foreign import (
    Places,
    Refused,
    effort_of,
    in_openai_words,
    joined,
    not_read,
    refuse,
    required,
    text_parts,
)
from tandem.gateway.openai import ChatRequest

ItemRole = Literal["user", "assistant", "system", "developer"]


class Item(Struct, frozen=True):
    """A piece of the conversation. Its type says which of the fields are there: `message` (also without a type),
    `function_call`, `function_call_output` or `reasoning`."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: ItemRole | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None


class ResponsesTool(Struct, frozen=True):
    """Of the type `function`. Those that a vendor hosts are left out, and a header says so."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesToolChoice(Struct, frozen=True):
    """One function by its name, or some of them (`allowed_tools`)."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[ResponsesTool] | None = None


class ReasoningWish(Struct, frozen=True):
    effort: str | None = None
    summary: Ignored = None
    generate_summary: Ignored = None


class TextFormat(Struct, frozen=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextWish(Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: Ignored = None


class ResponsesRequest(Struct, frozen=True, kw_only=True):
    input: str | Annotated[list[Item], Meta(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    stream_options: Ignored = None
    max_output_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningWish | None = None
    text: TextWish | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    top_logprobs: int | None = None
    include: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    truncation: Ignored = None
    user: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    service_tier: Ignored = None
    max_tool_calls: Ignored = None
    client_metadata: Ignored = None


REFUSED: Final = (
    Refused(
        "previous_response_id", (None,), "nothing is kept between requests: send the whole conversation as `input`"
    ),
    Refused("conversation", (None,), "nothing is kept between requests: send the whole conversation as `input`"),
    Refused("prompt", (None,), "no prompts are kept here: send `instructions` and `input`"),
    Refused("background", (None, False), "an answer is written while its client waits: leave it out, and stream"),
    Refused("top_logprobs", (None, 0), "log-probabilities are told by `/v1/chat/completions`"),
)


def to_chat(wanted: ResponsesRequest) -> ChatRequest:
    """Raises `ApiError` 400 naming the place in the request as it came."""
    refuse(wanted, REFUSED)
    instructions = [{"role": "system", "content": wanted.instructions}] if wanted.instructions else []
    fields: dict[str, Any] = {
        "model": wanted.model,
        "messages": [*instructions, *_messages(wanted.input)],
        "stream": wanted.stream,
        "max_completion_tokens": wanted.max_output_tokens,
        "temperature": wanted.temperature,
        "top_p": wanted.top_p,
        "parallel_tool_calls": wanted.parallel_tool_calls,
        "tools": [_tool(tool) for tool in _offered(wanted)],
        "tool_choice": _choice(wanted.tool_choice),
        "reasoning_effort": effort_of(wanted.reasoning.effort) if wanted.reasoning is not None else None,
        "response_format": _format(wanted.text.format) if wanted.text is not None else None,
    }
    return in_openai_words(ChatRequest, fields, PLACES)


PLACES: Final[Places] = (
    (r"messages(\[.*)?", "input"),  # their numbers differ
    ("max_completion_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    (r"response_format(\.json_schema)?", "text.format"),
    (r"(tools\[\d+\])\.function", r"\1"),
)


_ORDER: Final = ("thinking", "content", "tool_calls")


class _Assistant:
    """Items of one turn of the model, which are one message in OpenAI's older words."""

    def __init__(self) -> None:
        self._fields: dict[str, list[Any]] = {name: [] for name in _ORDER}

    def take(self) -> Iterator[dict[str, Any]]:
        """The message, if there is anything in it; what comes next is another."""
        fields, self._fields = self._fields, {name: [] for name in _ORDER}
        if any(fields.values()):
            yield {"role": "assistant", "reasoning_content": "".join(fields.pop("thinking")), **fields}

    def add(self, kind: str, values: list[Any]) -> Iterator[dict[str, Any]]:
        """What would stand before something that is there already begins another message."""
        if any(self._fields[later] for later in _ORDER[_ORDER.index(kind) + 1 :]):
            yield from self.take()
        self._fields[kind] += values


def _messages(input: str | list[Item]) -> Iterator[dict[str, Any]]:
    if isinstance(input, str):
        yield {"role": "user", "content": input}
        return
    turn = _Assistant()
    for n, item in enumerate(input):
        place = f"input[{n}]"
        match item.type:
            case "reasoning":
                yield from turn.add("thinking", [_thinking(item)])
            case "message" | None if item.role == "assistant":
                yield from turn.add("content", text_parts(item.content, f"{place}.content"))
            case "function_call":
                yield from turn.add("tool_calls", [_call(item, place)])
            case "message" | None:
                yield from turn.take()
                role = required(item.role, f"{place}.role")
                yield {"role": role, "content": text_parts(item.content, f"{place}.content")}
            case "function_call_output":
                yield from turn.take()
                call_id = required(item.call_id, f"{place}.call_id")
                yield {"role": "tool", "tool_call_id": call_id, "content": text_parts(item.output, f"{place}.output")}
            case "item_reference":
                sentence = f"`{place}`: nothing is kept between requests: send the item itself"
                raise ApiError(400, "unsupported_value", sentence, param=place)
            case kind:
                raise not_read(kind, place)
    yield from turn.take()


def _thinking(item: Item) -> str:
    told = item.content if isinstance(item.content, list) else []
    return joined(told) or joined(item.summary or ())


def _call(item: Item, place: str) -> dict[str, Any]:
    function = {"name": required(item.name, f"{place}.name"), "arguments": item.arguments or ""}
    return {"id": required(item.call_id, f"{place}.call_id"), "type": "function", "function": function}


def _offered(wanted: ResponsesRequest) -> list[ResponsesTool]:
    """Of `allowed_tools`, only what it allows."""
    tools, choice = wanted.tools or [], wanted.tool_choice
    if not isinstance(choice, ResponsesToolChoice) or choice.type != "allowed_tools":
        return tools
    allowed = {(tool.type, tool.name) for tool in choice.tools or ()}
    return [tool for tool in tools if (tool.type, tool.name) in allowed]


def _tool(tool: ResponsesTool) -> dict[str, Any]:
    if tool.type != "function":
        return {"type": tool.type}
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    return {"type": "function", "function": function}


def _choice(choice: str | ResponsesToolChoice | None) -> Any:
    if not isinstance(choice, ResponsesToolChoice):
        return choice
    if choice.type == "allowed_tools":
        return choice.mode or "auto"
    if choice.type != "function":
        sentence = "`tool_choice` names a tool that is not served here; only functions are"
        raise ApiError(400, "unsupported_value", sentence, param="tool_choice")
    return {"type": "function", "function": {"name": required(choice.name, "tool_choice.name")}}


def _format(form: TextFormat | None) -> dict[str, Any] | None:
    if form is None or form.type != "json_schema":
        return {"type": form.type} if form is not None else None
    return {"type": "json_schema", "json_schema": {"name": form.name, "schema": form.schema, "strict": form.strict}}
