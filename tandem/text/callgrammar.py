"""What a forced call must match: the bare JSON of calls, which every model can be held to and every reader reads.

Where a client leaves the choice to the model nothing is forced, and calls are only looked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tandem.contract.messages import Grammar, GrammarKind
from tandem.text.toolcalls.values import ANY, follow
from tandem.text.tools import Tool

MOST_AT_ONCE: Final = 8  # calls: a small model would otherwise go on for ever

_PARAM: Final = "tools"
_PLACE: Final = re.compile(
    _PARAM + r"(?:\[(?P<named>\d+)\]|\.anyOf\.(?P<any>\d+))\.properties\.arguments(?P<rest>\..*)?"
)
_NAMED: Final = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_LISTED: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE: Final = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")


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
        self._closes = '"allOf"' not in json.dumps(self._root)  # of parts, none is the whole
        self.parameters = self._rebuilt(self._root) | {"type": "object"}

    def _rebuilt(self, schema: Any) -> Any:
        """The schema with every schema in it, from the innermost out."""
        if not isinstance(schema, Mapping):
            return True if self._is_loose and not isinstance(schema, bool) else schema
        rebuilt: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _NAMED and isinstance(value, Mapping):
                rebuilt[key] = {name: self._rebuilt(each) for name, each in value.items()}
            elif key in _LISTED and isinstance(value, list):
                rebuilt[key] = [self._rebuilt(each) for each in value]
            else:
                rebuilt[key] = self._rebuilt(value) if key in _SINGLE else value
        if self._is_loose:
            rebuilt = self._shape(rebuilt)
        if isinstance(reference := rebuilt.get("$ref"), str) and reference.startswith("#"):
            rebuilt["$ref"] = self._place + reference[1:]
        return rebuilt

    def _shape(self, schema: dict[str, Any]) -> dict[str, Any]:
        """What is kept of a schema that nobody promised to keep: what reads as it should, of what tells its shape.

        Which one of `oneOf` it is need not be certain. Where names are declared, no others are written unless the
        schema says so: a small model would go on inventing them.
        """
        if "oneOf" in schema and "anyOf" not in schema:
            schema["anyOf"] = schema["oneOf"]
        shape = {key: value for key, value in schema.items() if key in _SHAPE and _SHAPE[key](value)}
        if "type" in shape:
            named = shape["type"]
            shape["type"] = named.lower() if isinstance(named, str) else [name.lower() for name in named]
        if "$ref" in shape:
            if follow(shape["$ref"], self._root) is True:  # leads nowhere
                del shape["$ref"]
            else:
                shape["$ref"] = "/".join("anyOf" if word == "oneOf" else word for word in shape["$ref"].split("/"))
        if self._closes and "properties" in shape and shape.setdefault("additionalProperties", False) is False:
            shape["required"] = [name for name in shape.get("required", ()) if name in shape["properties"]]
        return shape


def _is_type(value: Any) -> bool:
    named = value if isinstance(value, list) else [value]
    return bool(named) and all(isinstance(name, str) and name.lower() in ANY for name in named)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping | bool)


def _is_schemas(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_schema, value))


_SHAPE: Final[Mapping[str, Callable[[Any], bool]]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "const": lambda value: True,
    "properties": _is_mapping,
    "required": _is_names,
    "additionalProperties": _is_schema,
    "items": _is_schema,
    "prefixItems": _is_schemas,
    "anyOf": _is_schemas,
    "allOf": _is_schemas,
    "$ref": lambda value: isinstance(value, str),
    "$defs": _is_mapping,
    "definitions": _is_mapping,
}
