"""`docs/configuration.md`, written from the models: no key, default or sentence can be in one and not in the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tandem.config.documents import KINDS, json_schema
from tandem.config.section import Section

_HEAD: Final = """# What may be written

Written from the document models by `tandem schema --markdown`; a test compares. Sizes carry a unit (`15 GiB`,
`512 MiB`), and so do durations (`60s`, `10min`, `400ms`); switches are `on` and `off`. A key that is not listed here
is an error. `tandem schema` prints the same as JSON Schema for editors.

Every key of `appliance.yaml` can be set from outside, flags before variables before the document:
`TANDEM_SLOTS__COUNT=4`, or `--set slots.count=4`. Lists and sections are written as in the document:
`TANDEM_LISTEN__CORS_ORIGINS='["https://chat.example"]'`.

A figure is a size with how it is known, `{size: 7.5 GiB, basis: measured, why: verify graphs}`, where `basis` is
`measured`, `arithmetic`, `estimate` or `configured`. In a profile, `required` keys may come from the one it extends.
"""

_FILES: Final = {"appliance": "appliance.yaml", "profile": "profiles/NAME.yaml", "residency": "residency/NAME.yaml"}


def configuration_markdown() -> str:
    parts = [_HEAD]
    for kind, model in KINDS.items():
        schema = json_schema(kind) | {"required": model.model_json_schema().get("required", [])}
        for name, section in model.model_json_schema()["$defs"].items():
            schema["$defs"][name]["required"] = section.get("required", [])
        parts.append(f"## {_FILES[kind]}\n\n{_about(model)}\n")
        parts += _tables(schema, schema, (), model.__name__)
    return "\n".join(parts)


def _about(model: type[Section]) -> str:
    return " ".join((model.__doc__ or "").split())


def _tables(root: dict[str, Any], section: dict[str, Any], path: tuple[str, ...], name: str) -> Iterator[str]:
    """The section's own table, then one for every section in it, in the order they are declared."""
    inner = []
    rows = ["| key | takes | default | meaning |", "|---|---|---|---|"]
    for key, field in section["properties"].items():
        target, form = _target(root, field)
        default = _default(field) if key not in section.get("required", ()) else "required"
        rows.append(f"| `{key}` | {form} | {default} | {_meaning(field, target)} |")
        if target is not None:
            step = key if field.get("type") != "object" else f"{key}.NAME"
            inner.append((target, (*path, f"{step}[]" if field.get("type") == "array" else step)))
    if path:
        yield f"### {'.'.join(path)}\n\n{' '.join(section.get('description', '').split())}\n"
    yield "\n".join(rows) + "\n"
    for target, where in inner:
        if target["title"] != "Figure":
            yield from _tables(root, target, where, name)


def _meaning(field: dict[str, Any], target: dict[str, Any] | None) -> str:
    """pydantic leaves a description out where it would repeat the section's own."""
    return " ".join(str(field.get("description") or (target or {}).get("description", "")).split())


def _target(root: dict[str, Any], field: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """The section a field leads to, if any, and what the field takes, in words."""
    options = [option for option in field.get("anyOf", [field]) if option.get("type") != "null"]
    option = options[0]
    if "$ref" in option:
        target = root["$defs"][option["$ref"].rsplit("/", 1)[1]]
        if "enum" in target:
            return None, ", ".join(f"`{word}`" for word in target["enum"])
        return target, "figure" if target["title"] == "Figure" else "section"
    if "allOf" in option:
        return _target(root, option["allOf"][0])
    match option.get("type"):
        case "array":
            target, form = _target(root, option["items"])
            return target, f"list of {form}"
        case "object":
            named = option.get("patternProperties", {"": option.get("additionalProperties")})  # names may have a form
            target, form = _target(root, next(iter(named.values())))
            word, comma, limits = form.partition(",")
            return target, f"{word}s{comma}{limits} by name"
        case _:
            return None, _form(option)


def _form(option: dict[str, Any]) -> str:
    if "enum" in option:
        return ", ".join(f"`{word}`" for word in option["enum"])
    if option.get("title") in ("size", "duration"):
        return str(option["title"])
    words = {"integer": "whole number", "number": "number", "boolean": "switch", "string": "text"}[option["type"]]
    low = option.get("minimum", option.get("exclusiveMinimum"))
    high = option.get("maximum")
    if low is not None and high is not None:
        return f"{words}, {low:,} to {high:,}"
    return words if low is None else f"{words}, from {low:,}"


def _default(field: dict[str, Any]) -> str:
    match field.get("default"):
        case None | "" | []:
            return ""
        case bool() as on:
            return "`on`" if on else "`off`"
        case value:
            return f"`{value}`"
