"""The tools a chat offers its model, and whether it must call one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tandem.gateway.errors import ApiError
from tandem.text.tools import Tool

Name = Annotated[str, Meta(min_length=1, max_length=256)]


class OfferedFunction(Struct, frozen=True):
    """`parameters` is a JSON schema; it reaches the model and, where a call is forced, the grammar, whole."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class OfferedTool(Struct, frozen=True):
    """Of the type `function`. What a vendor hosts (`web_search`, `mcp`, ...) is left out, and a header says so."""

    type: str = "function"
    function: OfferedFunction | None = None


class NamedFunction(Struct, frozen=True):
    name: Name


class NamedTool(Struct, frozen=True):
    function: NamedFunction
    type: Literal["function"] = "function"


class Offer(Struct, frozen=True):
    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    name: str | None = None  # of the one that must be called
    at_most_one: bool = False  # call in one answer


def offer_of(tools: Sequence[OfferedTool], choice: str | NamedTool | None, may_be_several: bool) -> Offer:
    """Raises `ApiError` 400 for a tool without its function, two of one name, and a choice of none there is."""
    offered = tuple(_functions(tools))
    names = {tool.name for tool in offered}
    if len(names) < len(offered):
        raise ApiError(400, "invalid_value", "`tools`: two functions have the same name", param="tools")
    if choice == "none":
        return Offer()
    name = choice.function.name if isinstance(choice, NamedTool) else None
    must_call = name is not None or choice == "required"
    if must_call and (name not in names if name is not None else not names):
        sentence = "`tool_choice`: the call that it asks for is to none of the functions in `tools`"
        raise ApiError(400, "invalid_value", sentence, param="tool_choice")
    return Offer(offered, must_call, name, at_most_one=name is not None or not may_be_several)


def _functions(tools: Sequence[OfferedTool]) -> Iterator[Tool]:
    for place, tool in enumerate(tools):
        if tool.type != "function":
            continue
        if (function := tool.function) is None:
            param = f"tools[{place}].function"
            raise ApiError(400, "invalid_value", f"`{param}`: this field is required", param=param)
        yield Tool(function.name, function.description or "", function.parameters or {}, bool(function.strict))


def left_out(tools: Sequence[OfferedTool]) -> tuple[str, ...]:
    """Places of tools that are no functions."""
    return tuple(f"tools[{place}]" for place, tool in enumerate(tools) if tool.type != "function")
