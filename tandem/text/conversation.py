"""A conversation as clients send it, and the forms in which a template may take it.

Templates differ in what they refuse: a system message, two turns of one role, several calls in one turn, tools at
all. Each form here says the same in fewer kinds of turns. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tandem.text.reasoning import Tags, without_thinking
from tandem.text.toolcalls.formats import CallFormat
from tandem.text.tools import Tool

_ROLES: Final = {"developer": "system", "function": "tool"}


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call that the model made in an earlier turn."""

    name: str
    arguments: str = "{}"  # as the client repeats it; it need not be JSON
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str  # system, developer, user, assistant, tool or function
    content: str = ""
    tool_calls: tuple[PastCall, ...] = ()  # of the assistant
    tool_call_id: str | None = None  # of a tool's result
    name: str | None = None  # of the tool; where it is left out, the call says it
    reasoning: str | None = None  # of the assistant: what it thought before it answered


Texts = Callable[[str], str]


def with_texts(message: ChatMessage, change: Texts) -> ChatMessage:
    """The same message, every text in it changed."""

    def changed(text: str | None) -> str | None:
        return None if text is None else change(text)

    return ChatMessage(
        message.role,
        change(message.content),
        tuple(PastCall(change(call.name), change(call.arguments), changed(call.id)) for call in message.tool_calls),
        changed(message.tool_call_id),
        changed(message.name),
        changed(message.reasoning),
    )


def texts_of(message: ChatMessage) -> Iterator[str]:
    calls = (text for call in message.tool_calls for text in (call.name, call.arguments, call.id))
    several = (message.content, message.tool_call_id, message.name, message.reasoning, *calls)
    return (text for text in several if text is not None)


def has_tools(messages: Sequence[ChatMessage]) -> bool:
    return any(message.role == "tool" or message.tool_calls for message in messages)


def settled(messages: Sequence[ChatMessage], format: CallFormat, tags: Tags | None) -> list[ChatMessage]:
    """What clients leave out or write in their own way, put in its place: roles, thinking that stands in the text, the
    ids and names by which results and calls belong together. The same for the same messages, so that prompts share
    their beginnings from turn to turn."""
    result: list[ChatMessage] = []
    num_calls = 0
    waiting: list[PastCall] = []  # for their results
    for message in messages:
        message = replace(message, role=_ROLES.get(message.role, message.role))
        if message.role == "assistant":
            if tags is not None and message.reasoning is None:
                reasoning, content = without_thinking(message.content, tags)
                message = replace(message, reasoning=reasoning, content=content)
            calls = [
                replace(call, id=_id(call.id or f"call_{num_calls + n}", format))
                for n, call in enumerate(message.tool_calls)
            ]
            num_calls += len(calls)
            waiting = calls or waiting
            message = replace(message, tool_calls=tuple(calls))
        elif message.role == "tool":
            id = _id(message.tool_call_id, format) if message.tool_call_id else None
            call = next((call for call in waiting if call.id == id), waiting[0] if waiting else None)
            if call is not None:
                waiting = [each for each in waiting if each is not call]
                id = id or call.id
                message = replace(message, name=message.name or call.name)
            message = replace(message, tool_call_id=id or _id("call", format))
        result.append(message)
    return result


def _id(id: str, format: CallFormat) -> str:
    return id if format.takes_id(id) else hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()[:9]


# --- forms ------------------------------------------------------------------------------------------------------


def as_they_came(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    return messages


def merged(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Neighbours of one role become one message, an empty line between their texts."""
    result: list[ChatMessage] = []
    for message in messages:
        last = result[-1] if result else None
        if last is None or last.role != message.role or message.role == "tool" or last.tool_calls:
            result.append(message)
        else:
            content = "\n\n".join(text for text in (last.content, message.content) if text or not message.tool_calls)
            result[-1] = replace(message, content=content, reasoning=message.reasoning or last.reasoning)
    return result


def folded(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """System messages say their word at the beginning of the first user turn."""
    system = [ChatMessage("user", message.content) for message in messages if message.role == "system"]
    others = [message for message in messages if message.role != "system"]
    at = next((n for n, message in enumerate(others) if message.role == "user"), 0)
    return merged([*others[:at], *system, *others[at:]])


def one_call_a_turn(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Several calls of one turn become turns of one call, each with its result behind it."""
    result: list[ChatMessage] = []
    results = {message.tool_call_id: message for message in messages if message.role == "tool"}
    moved = set[str | None]()
    for message in messages:
        if len(message.tool_calls) < 2:
            if message.role != "tool" or message.tool_call_id not in moved:
                result.append(message)
            continue
        for n, call in enumerate(message.tool_calls):
            first = message if n == 0 else ChatMessage("assistant")
            result.append(replace(first, tool_calls=(call,)))
            if call.id in results:
                result.append(results[call.id])
                moved.add(call.id)
    return result


def plain(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """For a template that knows no tools: what they are stands behind the system's word, calls are text, results are
    the user's."""
    told = [_plain(message) for message in messages]
    if not tools:
        return told
    note = describe(tools)
    if told and told[0].role == "system":
        return [replace(told[0], content="\n\n".join(filter(None, (told[0].content, note)))), *told[1:]]
    return [ChatMessage("system", note), *told]


def _plain(message: ChatMessage) -> ChatMessage:
    if message.role == "tool":
        return ChatMessage("user", f"Result of {message.name or 'the tool'}:\n{message.content}")
    if not message.tool_calls:
        return message
    calls = [
        f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments.strip() or "{}"}}}'
        for call in message.tool_calls
    ]
    written = calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"
    content = "\n\n".join(filter(None, (message.content, written)))
    return replace(message, content=content, tool_calls=())


def describe(tools: Sequence[Tool]) -> str:
    listed = "\n".join(json.dumps(function(tool), ensure_ascii=False) for tool in tools)
    return (
        "You can call these tools; each line describes one, its parameters as a JSON schema:\n"
        f"{listed}\n"
        "To call a tool, answer with nothing but JSON of this form:\n"
        '{"name": "the tool\'s name", "arguments": {"a parameter": "its value"}}\n'
        "To call several, answer with a list of such objects. The results come in the next message. "
        "When no tool is needed, answer in words."
    )


def function(tool: Tool) -> dict[str, Any]:
    """In OpenAI's words, which templates and models know."""
    parameters = dict(tool.parameters) or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description, "parameters": parameters}
