"""The messages of a chat as clients send them, lenient where clients differ and nothing is lost by it.

A call of a tool in the history is kept as it was written, whole or not: the conversation of a model that once wrote
broken arguments goes on.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from tandem.gateway.errors import ApiError
from tandem.gateway.fields import Ignored
from tandem.text import conversation
from tandem.text.conversation import ChatMessage

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class Part(Struct, frozen=True):
    """A piece of a message's content; text is read, and what a model refused once."""

    type: str
    text: str | None = None
    refusal: str | None = None


class PastFunction(Struct, frozen=True):
    """`arguments` are JSON in a string, as they were answered; an object is taken, too."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: str | dict[str, Any] | None = None

    @property
    def written(self) -> str:
        if isinstance(self.arguments, dict):
            return msgspec.json.encode(self.arguments).decode()
        return self.arguments or "{}"


class PastCall(Struct, frozen=True):
    function: PastFunction
    id: str | None = None
    type: Literal["function"] | None = None
    index: Ignored = None


class ReasoningDetail(Struct, frozen=True):
    """One of OpenRouter's; what is encrypted is nothing to a model."""

    type: str | None = None
    text: str | None = None
    summary: str | None = None


class Message(Struct, frozen=True):
    """`reasoning_content`, `reasoning` and `reasoning_details` are three names of one thing; the first that is there
    is read."""

    role: Role
    content: str | list[Part] | None = None
    name: str | None = None  # of the tool whose result this is; nothing else is named
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None
    function_call: PastFunction | None = None  # what a call was before `tool_calls`
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[ReasoningDetail] | None = None
    refusal: str | None = None

    @property
    def opening(self) -> str:
        """The first of its texts."""
        if isinstance(self.content, list):
            return next((part.text for part in self.content if part.text), "")
        return self.content or ""

    @property
    def calls(self) -> list[PastCall]:
        return self.tool_calls or ([PastCall(self.function_call)] if self.function_call is not None else [])

    @property
    def thinking(self) -> str:
        details = "".join(detail.text or detail.summary or "" for detail in self.reasoning_details or ())
        return self.reasoning_content or self.reasoning or details


def turn_of(message: Message, index: int, model: str) -> ChatMessage:
    """In the words of templates. Raises `ApiError` 400 as `text_of` does."""
    calls = tuple(conversation.PastCall(c.function.name, c.function.written, c.id) for c in message.calls)
    return ChatMessage(
        message.role,
        text_of(message, index, model),
        calls,
        message.tool_call_id,
        message.name if message.role in ("tool", "function") else None,
        message.thinking or None,
    )


TEXT_PARTS: Final = ("text", "input_text", "output_text")
_IMAGES: Final = frozenset({"image_url", "input_image", "image"})
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyz_-.0123456789")


def text_of(message: Message, index: int, model: str) -> str:
    """A message's text, whether it came as a string, as nothing, or in parts (joined by line breaks).

    Raises `ApiError` 400 naming the part that is not text; of an image, the sentence names the model that cannot see.
    """
    if not isinstance(message.content, list):
        return message.content or message.refusal or ""
    return "\n".join(
        _text_of_part(part, f"messages[{index}].content[{place}]", model) for place, part in enumerate(message.content)
    )


def _text_of_part(part: Part, param: str, model: str) -> str:
    if part.type in (*TEXT_PARTS, "refusal"):
        name = "refusal" if part.type == "refusal" else "text"
        text: str | None = getattr(part, name)
        if text is None:
            raise ApiError(400, "invalid_value", f"`{param}.{name}`: this field is required", param=f"{param}.{name}")
        return text
    if part.type in _IMAGES:
        raise ApiError(400, "unsupported_value", f"`{param}`: {model} does not see images; send text", param=param)
    kind = f"`{part.type}`" if 0 < len(part.type) <= 40 and set(part.type) <= _PLAIN else "an unknown type"
    sentence = f"`{param}.type`: only parts of type `text` are read, and this one is {kind}"
    raise ApiError(400, "unsupported_value", sentence, param=f"{param}.type")
