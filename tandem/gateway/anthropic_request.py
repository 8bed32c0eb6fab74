"""What a request to `/v1/messages` may hold, and the same chat in OpenAI's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from tandem.gateway.conversation import Part
from tandem.gateway.fields import MAX_STOPS, Count, Ignored, Stop
from tandem.gateway.foreign import Places, effort_of, in_openai_words, joined, not_read, required, text_parts
from tandem.gateway.openai import ChatRequest


class Block(Struct, frozen=True):
    """A piece of a message. Its type says which of the fields are there: `text`, `thinking`, `redacted_thinking`
    (nothing to this model), `tool_use` or `tool_result`."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Part] | None = None


class MessagesTurn(Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class MessagesTool(Struct, frozen=True):
    """One with an `input_schema`. Those that a vendor hosts are left out, and a header says so."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessagesToolChoice(Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, frozen=True):
    """`enabled` within `budget_tokens`, `disabled`, or as the model likes it."""

    type: str
    budget_tokens: Annotated[int, Meta(ge=0)] | None = None


class OutputFormat(Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, frozen=True):
    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(Struct, frozen=True, kw_only=True):
    """What of a request makes up its prompt."""

    messages: Annotated[list[MessagesTurn], Meta(min_length=1)]
    model: str | None = None
    system: str | list[Part] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: Ignored = None
    mcp_servers: Ignored = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True):
    max_tokens: Count | None = None
    stream: bool | None = None
    stop_sequences: Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Ignored = None
    service_tier: Ignored = None
    container: Ignored = None
    inference_geo: Ignored = None


def to_chat(wanted: CountRequest) -> ChatRequest:
    """Raises `ApiError` 400 naming the place in the request as it came."""
    turns = [turn for n, message in enumerate(wanted.messages) for turn in _turns(message, f"messages[{n}]")]
    fields: dict[str, Any] = {
        "model": wanted.model,
        "messages": [*_system(wanted.system), *turns],
        "tools": [_tool(tool, f"tools[{n}]") for n, tool in enumerate(wanted.tools or ())],
    }
    if (choice := wanted.tool_choice) is not None:
        fields["tool_choice"] = _choice(choice)
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if (thinking := wanted.thinking) is not None:
        fields["max_reasoning_tokens"] = 0 if thinking.type == "disabled" else thinking.budget_tokens
    if (config := wanted.output_config) is not None:
        fields["reasoning_effort"] = effort_of(config.effort)
        if config.format is not None:
            fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": config.format.schema}}
    if isinstance(wanted, MessagesRequest):
        fields |= {name: getattr(wanted, name) for name in _SAME}
        fields["stop"] = wanted.stop_sequences
    return in_openai_words(ChatRequest, fields, PLACES)


PLACES: Final[Places] = (
    (r"messages(\[.*)?", "messages"),  # their numbers differ
    (r"response_format(\.json_schema)?", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("max_reasoning_tokens", "thinking.budget_tokens"),
    (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"(tools\[\d+\])\.function", r"\1"),
    ("stop", "stop_sequences"),
)
_SAME: Final = ("max_tokens", "stream", "temperature", "top_p", "top_k")  # called alike in both APIs

# Claude Code opens its system prompt with a line that differs in every request; nothing behind it could be found again.
_BILLING: Final = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")


def _system(system: str | list[Part] | None) -> Iterator[dict[str, Any]]:
    parts = text_parts(system, "system")
    for part in parts:
        part["text"] = _BILLING.sub("", part["text"], count=1) if _BILLING.match(part["text"]) else part["text"]
    if kept := [part for part in parts if part["text"]]:
        yield {"role": "system", "content": kept}


def _turns(message: MessagesTurn, place: str) -> Iterator[dict[str, Any]]:
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    blocks = [(block, f"{place}.content[{n}]") for n, block in enumerate(message.content)]
    yield from _assistant_turn(blocks) if message.role == "assistant" else _user_turns(message.role, blocks)


def _user_turns(role: str, blocks: list[tuple[Block, str]]) -> Iterator[dict[str, Any]]:
    """A result of a tool is a message of its own; what stands around it keeps its place."""
    texts: list[dict[str, Any]] = []
    for block, place in blocks:
        match block.type:
            case "text":
                texts += text_parts(required(block.text, f"{place}.text"), place)
            case "tool_result":
                if texts:
                    yield {"role": role, "content": texts}
                    texts = []
                yield {
                    "role": "tool",
                    "tool_call_id": required(block.tool_use_id, f"{place}.tool_use_id"),
                    "content": text_parts(block.content, f"{place}.content"),
                }
            case _:
                raise not_read(block.type, place)
    if texts or not blocks:
        yield {"role": role, "content": texts}


def _assistant_turn(blocks: list[tuple[Block, str]]) -> Iterator[dict[str, Any]]:
    texts: list[dict[str, Any]] = []
    thinking: list[Part] = []
    calls: list[dict[str, Any]] = []
    for block, place in blocks:
        match block.type:
            case "text":
                texts += text_parts(required(block.text, f"{place}.text"), place)
            case "thinking":
                thinking.append(Part("text", required(block.thinking, f"{place}.thinking")))
            case "redacted_thinking":
                pass
            case "tool_use":
                arguments = msgspec.json.encode(block.input or {}).decode()
                function = {"name": required(block.name, f"{place}.name"), "arguments": arguments}
                calls.append({"id": required(block.id, f"{place}.id"), "type": "function", "function": function})
            case _:
                raise not_read(block.type, place)
    yield {"role": "assistant", "content": texts, "reasoning_content": joined(thinking), "tool_calls": calls}


def _tool(tool: MessagesTool, place: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        return {"type": tool.type}
    function = {
        "name": required(tool.name, f"{place}.name"),
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": function}


def _choice(choice: MessagesToolChoice) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": required(choice.name, "tool_choice.name")}}
    return {"any": "required"}.get(choice.type, choice.type)
