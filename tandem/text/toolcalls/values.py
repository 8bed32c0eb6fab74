"""A parameter's text as the JSON value its schema asks for: in XML forms everything is written as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

Schema: TypeAlias = Any  # of JSON Schema: a mapping, a bool, or what a client took for one
Types: TypeAlias = frozenset[str]  # of JSON

ANY: Final[Types] = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
STRING: Final[Types] = frozenset({"string"})
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}  # Python's, which models write too
_DEEPEST: Final = 32  # references and alternatives within one another


def types_of(parameters: Mapping[str, Any], name: str) -> Types:
    """What the parameter `name` may be, by the schema of all of them; anything where that does not say."""
    found = list(_properties(parameters, name, parameters, _DEEPEST))
    return _types(found[0], parameters, _DEEPEST) if found else ANY


def as_json(text: str, types: Types) -> str:
    """`text` as it stands where it is JSON of such a type, and as a string otherwise. Strings are written bare, so
    one that reads as a number is one only where no number may stand."""
    if types == STRING:
        return quote(text)
    written = text.strip()
    written = _WORDS.get(written, written)
    try:
        value = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return quote(text)
    return written if not isinstance(value, str) and _is_of(value, types) else quote(text)


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_of(value: Any, types: Types) -> bool:
    match value:
        case None:
            return "null" in types
        case bool():
            return "boolean" in types
        case int():
            return not types.isdisjoint({"integer", "number"})
        case float():
            return "number" in types or ("integer" in types and value.is_integer())
        case list():
            return "array" in types
        case _:
            return "object" in types


def _properties(schema: Schema, name: str, root: Mapping[str, Any], depth: int) -> Iterator[Schema]:
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or not depth:
        return
    declared = schema.get("properties")
    if isinstance(declared, Mapping) and name in declared:
        yield declared[name]
    for part in _parts(schema, "allOf", "anyOf", "oneOf"):
        yield from _properties(part, name, root, depth - 1)
    if isinstance(rest := schema.get("additionalProperties"), Mapping):
        yield rest


def _types(schema: Schema, root: Mapping[str, Any], depth: int) -> Types:
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or not depth:
        return ANY
    types = ANY
    if "const" in schema:
        types &= _type_of(schema["const"])
    if values := _parts(schema, "enum"):
        types &= frozenset[str]().union(*map(_type_of, values))
    declared = schema.get("type")
    named = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    if known := ANY & {each for each in named if isinstance(each, str)}:
        types &= known | ({"integer"} if "number" in known else frozenset())
    if schema.get("nullable") is True:
        types |= {"null"}
    for key in ("anyOf", "oneOf"):
        if alternatives := _parts(schema, key):
            types &= frozenset[str]().union(*(_types(each, root, depth - 1) for each in alternatives))
    for part in _parts(schema, "allOf"):
        types &= _types(part, root, depth - 1)
    return types or ANY


def _type_of(value: Any) -> Types:
    return frozenset(type for type in ANY if _is_of(value, frozenset({type}))) if not isinstance(value, str) else STRING


def _parts(schema: Mapping[str, Any], *keys: str) -> list[Any]:
    return [part for key in keys if isinstance(listed := schema.get(key), list) for part in listed]


def _resolved(schema: Schema, root: Mapping[str, Any]) -> Schema:
    """What `$ref` leads to, in as many steps as it takes; anything where it leads nowhere or in a circle."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
            return schema
        schema = follow(reference, root)
    return True


def follow(reference: str, root: Any) -> Schema:
    """What stands at a reference of the form `#/a/0`; anything may stand where there is nothing."""
    if not reference.startswith("#"):
        return True
    place = root
    for word in unquote(reference[1:]).split("/")[1:]:
        key = word.replace("~1", "/").replace("~0", "~")
        try:
            place = place[int(key)] if isinstance(place, list) else place[key]
        except (LookupError, TypeError, ValueError):
            return True
    return place


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
