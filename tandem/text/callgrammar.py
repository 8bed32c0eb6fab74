"""What a forced call must match: the bare JSON of calls, which every model can be held to and every reader reads.

Where a client leaves the choice to the model nothing is forced, and calls are only looked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tandem.contract.messages import Grammar, GrammarKind
from tandem.text.toolcalls.values import follow
from tandem.text.tools import Tool

MOST_AT_ONCE: Final = 8  # calls: a small model would otherwise go on for ever

_PARAM: Final = "tools"
_PLACE: Final = re.compile(
    _PARAM + r"(?:\[(?P<named>\d+)\]|\.anyOf\.(?P<any>\d+))\.properties\.arguments(?P<rest>\..*)?"
)
_NAMED: Final = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE: Final = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")
_SHAPE: Final = frozenset(
    {"type", "enum", "const", "properties", "required", "$defs", "definitions", "items", "prefixItems"}
    | {"additionalProperties", "anyOf", "allOf", "$ref"}
)


def call_grammar(tools: Sequence[Tool], name: str | None = None, most_calls: int | None = None) -> Grammar:
    """For a call of the tool called `name`, or of any of them; of several unless `most_calls` is 1.

    A strict tool's schema is kept word for word, another one's shape: types, names and what is required, so that
    what its author wrote for people to read refuses nobody. Raises `ValueError` when there is no such tool.
    """
    if name is not None:
        index = next((n for n, tool in enumerate(tools) if tool.name == name), None)
        if index is None:
            raise ValueError(f"no tool is called `{name}`")
        return _grammar(_call(tools[index], "#"), f"{_PARAM}[{index}]")
    calls = [_call(tool, f"#/anyOf/{n}") for n, tool in enumerate(tools)]
    if most_calls == 1:
        return _grammar({"anyOf": calls})
    one = {"anyOf": [{"$ref": f"#/anyOf/{n}"} for n in range(len(calls))]}
    several = {"type": "array", "items": one, "minItems": 1, "maxItems": most_calls or MOST_AT_ONCE}
    return _grammar({"anyOf": [*calls, several]})


def place_of(param: str) -> str:
    """A place in a `call_grammar`, as the place in the client's request that it came from."""
    found = _PLACE.fullmatch(param)
    if found is None:
        return param
    return f"{_PARAM}[{found['named'] or found['any']}].function.parameters{found['rest'] or ''}"


def _grammar(schema: Mapping[str, Any], param: str = _PARAM) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False), param)


def _call(tool: Tool, place: str) -> dict[str, Any]:
    moved = _Moved(tool, f"{place}/properties/arguments")
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": moved.parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class _Moved:
    """A tool's parameters inside a larger schema: what refers to a place in them refers to it there."""

    def __init__(self, tool: Tool, place: str) -> None:
        self._root = tool.parameters or {"properties": {}, "additionalProperties": False}
        self._place = place
        self._is_loose = not tool.strict
        self._closes = self._is_loose and '"allOf"' not in json.dumps(self._root)  # of parts, none is the whole
        self.parameters = {"type": "object"} | self._schema(self._root)

    def _schema(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        moved: dict[str, Any] = {}
        for key, value in schema.items():
            if self._is_loose and key == "oneOf" and "anyOf" not in schema:
                key = "anyOf"  # which of them it is need not be certain
            if self._is_loose and key not in _SHAPE:
                continue
            if key == "$ref" and isinstance(value, str):
                if not self._is_loose or follow(value, self._root) is not True:
                    moved[key] = self._reference(value)
            elif key in _NAMED and isinstance(value, Mapping):
                moved[key] = {name: self._schema(each) for name, each in value.items()}
            elif key in _LISTED and isinstance(value, list):
                moved[key] = [self._schema(each) for each in value]
            else:
                moved[key] = self._schema(value) if key in _SINGLE else value
        if self._closes and "properties" in moved:
            moved.setdefault("additionalProperties", False)
        return moved

    def _reference(self, reference: str) -> str:
        if not reference.startswith("#"):
            return reference
        path = reference[1:].split("/")
        words = ["anyOf" if self._is_loose and word == "oneOf" else word for word in path]
        return self._place + "/".join(words)
