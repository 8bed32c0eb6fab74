"""What a decision changes in a request. Pure. A client's own word stands, whatever was decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tandem.conductor.conductor import Decision
from tandem.conductor.status import MARK, without_lines
from tandem.gateway.conversation import Message, Part
from tandem.gateway.openai import ChatRequest


def plain_text(message: Message) -> str:
    """What of a message is text, without complaint about the rest."""
    if isinstance(message.content, list):
        return "\n".join(part.text for part in message.content if part.text)
    return message.content or ""


def last_task(request: ChatRequest) -> str:
    """What the user wants now."""
    return next((plain_text(message) for message in reversed(request.messages) if message.role == "user"), "")


def without_status(request: ChatRequest) -> ChatRequest:
    """Status lines of ours that a client took for a part of an answer go no further."""
    messages = [
        msgspec.structs.replace(message, content=without_lines(message.content))
        if message.role == "assistant" and isinstance(message.content, str) and message.content.startswith(MARK)
        else message
        for message in request.messages
    ]
    return msgspec.structs.replace(request, messages=messages) if messages != request.messages else request


def shaped(request: ChatRequest, decision: Decision | None, notes: Mapping[int, str]) -> ChatRequest:
    """`notes` stand behind the messages of these indices."""
    changes: dict[str, Any] = {}
    if notes:
        changes["messages"] = _noted(request.messages, notes)
    if decision is not None:
        shape = decision.shape
        changes |= {name: value for name, value in shape.sampling.items() if getattr(request, name) is None}
        if shape.tools is not None and request.tools and request.tool_choice is None:
            changes["tool_choice"] = shape.tools
        if decision.thinking is not None and not _says_how_long(request):
            changes["max_reasoning_tokens"] = decision.thinking
    return msgspec.structs.replace(request, **changes) if changes else request


def _says_how_long(request: ChatRequest) -> bool:
    said = request.chat_template_kwargs or {}
    return request.thinking_limit is not None or "enable_thinking" in said


def _noted(messages: Sequence[Message], notes: Mapping[int, str]) -> list[Message]:
    return [_with_note(message, notes[n]) if n in notes else message for n, message in enumerate(messages)]


def _with_note(message: Message, note: str) -> Message:
    if isinstance(message.content, list):
        return msgspec.structs.replace(message, content=[*message.content, Part("text", f"\n{note}")])
    return msgspec.structs.replace(message, content=f"{message.content or ''}\n\n{note}")
