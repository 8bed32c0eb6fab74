"""Answers with calls as models of each family write them, and the parts they consist of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.text.parts import AnswerParts, Reading, joined
from tandem.text.pieces import AnswerPart, CallArguments, CallBegun, Text, Thought
from tandem.text.tools import Tool

PLACE = {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}}
WEATHER = Tool(
    "get_weather",
    "The weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "metric": {"type": "boolean"},
            "place": {"$ref": "#/$defs/place"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "$defs": {"place": PLACE},
    },
)
CLOCK = Tool("now")
TOOLS = (WEATHER, CLOCK)


@dataclass(frozen=True)
class Called:
    name: str
    arguments: dict[str, Any]


Item = str | Called


def hermes(items: Iterable[Item]) -> str:
    def one(call: Called) -> str:
        return f"<tool_call>\n{json_call(call)}\n</tool_call>"

    return "\n".join(item if isinstance(item, str) else one(item) for item in items)


def qwen_xml(items: Iterable[Item]) -> str:
    def one(call: Called) -> str:
        parameters = "".join(
            f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
            for key, value in call.arguments.items()
        )
        return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"

    return "\n".join(item if isinstance(item, str) else one(item) for item in items)


def mistral(items: Iterable[Item]) -> str:
    written = ""
    for item in items:
        if isinstance(item, str):
            written += item
        elif written.endswith("}]"):
            written = f"{written[:-1]}, {json_call(item)}]"
        else:
            written += f"[TOOL_CALLS][{json_call(item)}]"
    return written


def mistral_named(items: Iterable[Item]) -> str:
    def one(call: Called) -> str:
        return f"[TOOL_CALLS]{call.name}[ARGS]{json.dumps(call.arguments)}"

    return "".join(item if isinstance(item, str) else one(item) for item in items)


def llama(items: Iterable[Item]) -> str:
    def one(call: Called) -> str:
        return f"<|python_tag|>{json_call(call, 'parameters')}"

    return "\n".join(item if isinstance(item, str) else one(item) for item in items)


def json_call(call: Called, arguments: str = "arguments") -> str:
    return json.dumps({"name": call.name, arguments: call.arguments}, ensure_ascii=False)


Render = Callable[[Iterable[Item]], str]


def read(
    text: str, reading: Reading, cuts: int | Sequence[int] = 1, stops: Sequence[str] = ()
) -> tuple[list[AnswerPart], AnswerParts]:
    """The parts of a text that came in pieces of one width, or cut at the given places."""
    places = [0, *(range(cuts, len(text), cuts) if isinstance(cuts, int) else cuts)]
    parts = AnswerParts(reading, stops)
    found: list[AnswerPart] = []
    for start, end in zip(places, [*places[1:], len(text)], strict=True):
        come = parts.push(text[start:end])
        assert all(not hasattr(part, "text") or part.text for part in come), "no part is empty"
        found += come
    return joined(found + parts.finish()), parts


def without_ids(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    return [CallBegun(part.call, "", part.name) if isinstance(part, CallBegun) else part for part in parts]


def items_of(parts: Iterable[AnswerPart]) -> list[Item | Thought]:
    """Arguments are read as a strict client reads them."""
    items: list[Item | Thought] = []
    for part in parts:
        match part:
            case Text(text):
                items.append(text)
            case Thought():
                items.append(part)
            case CallBegun(call, _, name):
                assert call == sum(isinstance(item, Called) for item in items)
                items.append(Called(name, {}))
            case CallArguments(_, text):
                last = items[-1]
                assert isinstance(last, Called)
                items[-1] = Called(last.name, json.loads(text))
    return items
