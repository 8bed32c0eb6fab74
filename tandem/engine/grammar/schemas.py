"""A JSON schema as a tree of schemas: what stands in it, what it refers to, whether any value can satisfy it.

Pure. A path is the keys from the root; `dotted` writes one for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

Path: TypeAlias = tuple[str | int, ...]
Schema: TypeAlias = dict[str, Any]

MOST_HELD: Final = 65_536  # characters and items that a schema may make an answer hold; longer ones are not written

# Definitions first: what is wrong in one is better named there than at each place that refers to it.
_BY_NAME: Final = ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas")
_IN_ORDER: Final = ("prefixItems", "items", "allOf", "anyOf", "oneOf")
_SINGLE: Final = (
    "items", "additionalItems", "contains", "additionalProperties", "propertyNames",
    "not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip


def dotted(path: Path) -> str:
    return ".".join(map(str, path))


def children(schema: Any) -> Iterator[tuple[Path, Any]]:
    """The schemas that stand directly in one, each with its path from there."""
    if not isinstance(schema, dict):
        return
    for key in _BY_NAME:
        if isinstance(named := schema.get(key), dict):
            yield from (((key, name), each) for name, each in named.items())
    for key in _IN_ORDER:
        if isinstance(listed := schema.get(key), list):
            yield from (((key, index), each) for index, each in enumerate(listed))
    for key in _SINGLE:
        if isinstance(single := schema.get(key), dict | bool):
            yield (key,), single


def target(root: Schema, reference: Any) -> Path | None:
    """The path that a `$ref` of the form `#/a/b` names; None for other forms and for places that are not there."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    path: list[str | int] = []
    place: Any = root
    for word in unquote(reference[1:]).split("/")[1:]:
        key: str | int = word.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list):
            key = int(word) if word.isascii() and word.isdigit() else len(place)
        try:
            place = place[key]
        except (LookupError, TypeError):
            return None
        path.append(key)
    return tuple(path)


def at(root: Schema, path: Path) -> Any:
    place: Any = root
    for key in path:
        place = place[key]
    return place


def find_uncounted(root: Schema) -> Path | None:
    """A `minProperties` that an answer could meet only by names of its own choice: it might write one of them twice,
    and whoever reads it would count it once."""
    open_paths: list[tuple[Path, Any]] = [((), root)]
    while open_paths:
        path, schema = open_paths.pop()
        if isinstance(schema, dict):
            least = schema.get("minProperties", 0)
            if isinstance(least, int) and least > max(1, len(_listed(schema, "required"))):
                return (*path, "minProperties")
        open_paths += [((*path, *step), child) for step, child in children(schema)]
    return None


def find_too_long(root: Schema) -> Path | None:
    """A `minLength` or `minItems` that makes a value hold more than `MOST_HELD`, lists within lists multiplied."""
    open_paths: list[tuple[Path, Any, int]] = [((), root, 1)]
    while open_paths:
        path, schema, times = open_paths.pop()
        if not isinstance(schema, dict):
            continue
        least = {key: schema.get(key, 0) for key in ("minLength", "minItems")}
        for key, number in least.items():
            if isinstance(number, int | float) and number * times > MOST_HELD:
                return (*path, key)
        items = times * max(1, least["minItems"]) if isinstance(least["minItems"], int) else times
        for step, child in children(schema):
            open_paths.append(((*path, *step), child, items if step == ("items",) else times))
    return None


def find_endless(root: Schema) -> Path | None:
    """A schema that no finite value satisfies, because each value of it would hold another one, and that the root
    cannot do without, or one of the root's alternatives: a model that takes that one would never come to an end. None
    when there is none, or when what refers to what cannot be told."""
    needs: dict[Path, list[list[Path]]] = {}
    starts = [(), *(("anyOf", index) for index in range(len(_listed(root, "anyOf"))))]
    open_paths: list[Path] = list(starts)
    while open_paths:
        path = open_paths.pop()
        if path not in needs:
            needs[path] = list(_needs(root, path))
            open_paths += [need for choice in needs[path] for need in choice]
    finite: set[Path] = set()
    before = -1
    while len(finite) > before:
        before = len(finite)
        finite |= {path for path, all_of in needs.items() if all(not finite.isdisjoint(any_of) for any_of in all_of)}
    path, seen = next((start for start in starts if start not in finite), ()), set[Path]()
    while path not in finite:
        if path in seen:
            return path
        seen.add(path)
        path = next(any_of[0] for any_of in needs[path] if finite.isdisjoint(any_of))
    return None


def _needs(root: Schema, path: Path) -> Iterator[list[Path]]:
    """What a value of the schema at `path` holds for certain: of each list, one."""
    schema = at(root, path)
    if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
        return
    if (referred := target(root, schema.get("$ref"))) is not None:
        yield [referred]
    for index in range(len(_listed(schema, "allOf"))):
        yield [(*path, "allOf", index)]
    for key in ("anyOf", "oneOf"):
        if alternatives := _listed(schema, key):
            yield [(*path, key, index) for index in range(len(alternatives))]
    if schema.get("type") in ("object", ["object"]):
        declared = schema.get("properties", {})
        rest = schema.get("additionalProperties")
        for name in _listed(schema, "required"):
            if isinstance(declared, dict) and name in declared:
                yield [(*path, "properties", name)]
            elif isinstance(rest, dict):
                yield [(*path, "additionalProperties")]
    if schema.get("type") in ("array", ["array"]):
        least, first = schema.get("minItems", 0), len(_listed(schema, "prefixItems"))
        least = least if isinstance(least, int) else 0
        yield from ([(*path, "prefixItems", index)] for index in range(min(least, first)))
        if least > first and isinstance(schema.get("items"), dict):
            yield [(*path, "items")]


def _listed(schema: Schema, key: str) -> Sequence[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else ()
