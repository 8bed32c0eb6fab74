"""How thinking is sent: in a field of its own under the name a client reads, inside the text with its tags, or not."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

OPEN: Final = "<think>\n"
CLOSE: Final = "\n</think>\n\n"


class ThinkingShown(StrEnum):
    """As `api.reasoning` says it, or a request."""

    REASONING_CONTENT = "reasoning_content"
    REASONING = "reasoning"
    BOTH = "both"  # names
    TAGS = "tags"  # at the beginning of the text
    NONE = "none"
    TAGS_AND_FIELD = "deepseek-legacy"  # in a request only

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that hold it."""
        return _NAMES[self]

    @property
    def in_text(self) -> bool:
        return self in (ThinkingShown.TAGS, ThinkingShown.TAGS_AND_FIELD)


_NAMES: Final[dict[ThinkingShown, tuple[str, ...]]] = {
    ThinkingShown.REASONING_CONTENT: ("reasoning_content",),
    ThinkingShown.REASONING: ("reasoning",),
    ThinkingShown.BOTH: ("reasoning_content", "reasoning"),
    ThinkingShown.TAGS: (),
    ThinkingShown.NONE: (),
    ThinkingShown.TAGS_AND_FIELD: ("reasoning_content",),
}


def shown_as(setting: str, wished: str | None, include: bool | None) -> ThinkingShown:
    """A request's word over the appliance's. `wished` is llama.cpp's `reasoning_format`, `include` vLLM's
    `include_reasoning`."""
    if include is False:
        return ThinkingShown.NONE
    match wished:
        case "none":
            return ThinkingShown.TAGS
        case "deepseek":
            return ThinkingShown.REASONING_CONTENT
        case "deepseek-legacy":
            return ThinkingShown.TAGS_AND_FIELD
    return ThinkingShown(setting)


def in_tags(thinking: str, text: str) -> str:
    return f"{OPEN}{thinking}{CLOSE}{text}" if thinking else text


class Tagged:
    """The same in pieces, for one choice of a stream."""

    def __init__(self) -> None:
        self._is_open = False

    def thought(self, text: str) -> str:
        opening, self._is_open = "" if self._is_open else OPEN, True
        return opening + text

    def before_text(self) -> str:
        """What ends the block, if one is open: before anything else, and at the end."""
        closing, self._is_open = CLOSE if self._is_open else "", False
        return closing
