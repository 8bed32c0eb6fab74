"""The shape phase: a tree against a model, every finding in words and with its place.

pydantic finds, this module says. It knows the models only as sections with fields, never a key by name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tandem.config.quantities import exact_duration, exact_size
from tandem.config.section import Section, Switched
from tandem.config.settings import PREFIX, validate
from tandem.config.source import HIDDEN, KeyPath, Layers, dotted, without_secrets
from tandem.errors import Place, Problem

Model = TypeVar("Model", bound=Section)

_KINDS: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "`on` or `off`",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a section with `key: value` lines",
    "model_type": "a section with `key: value` lines",
    "model_attributes_type": "a section with `key: value` lines",
    "finite_number": "a finite number",
}
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "above"),
    "less_than": ("lt", "below"),
}

_ENDLESS: Final = re.compile(r"[-+]?\d[\d_]{30,}")  # what `source` leaves a text
_COMMA: Final = "inside `{ }` a comma ends a value: put a text that holds one in quotes"


def read_shape(layers: Layers, model: type[Model]) -> tuple[Model | None, list[Problem]]:
    """The document as `model`, or None and everything about its shape that is wrong."""
    try:
        return validate(layers, model), []
    except ValidationError as error:
        return None, _problems(error, layers, model)


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word a person most likely meant, or None when nothing is near."""
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def words(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


@dataclass(frozen=True, slots=True)
class _Missing:
    section: KeyPath
    key: str


def _problems(error: ValidationError, layers: Layers, model: type[Section]) -> list[Problem]:
    details = error.errors(include_url=False)
    missing = [
        _Missing(_path(found["loc"][:-1], layers), str(found["loc"][-1]))
        for found in details
        if found["type"] == "missing"
    ]
    problems: list[Problem] = []
    paired: set[_Missing] = set()
    for found in details:
        if found["type"] == "extra_forbidden":
            path = _path(found["loc"], layers)
            wanted = {lack.key: lack for lack in missing if lack.section == path[:-1]}
            meant = closest(str(path[-1]), wanted)
            if meant is not None:
                paired.add(wanted[meant])
            problems.append(_unknown_key(path, layers, model, meant))
        elif found["type"] != "missing":
            problems.append(_remarked(_bad_value(found, layers, model), model, _path(found["loc"], layers)))
    problems += [_missing_key(lack, layers, model) for lack in missing if lack not in paired]
    return problems


def _path(loc: tuple[int | str, ...], layers: Layers) -> KeyPath:
    """pydantic's `loc` without what stands in no document: union tags and validator names."""
    path: KeyPath = ()
    for step in loc:
        if layers.place((*path, step)) is not None:
            path = (*path, step)
    return path


def _unknown_key(path: KeyPath, layers: Layers, model: type[Section], meant: str | None) -> Problem:
    name = without_secrets(str(path[-1]))
    section = section_at(model, path[:-1])
    known = list(section.model_fields) if section else []
    notes = (f"{'this section' if path[:-1] else 'this document'} knows {words(known)}",)
    if section is not None and section.remark:
        return Problem("unknown-key", f"unknown key `{name}`", _key(path, layers), notes, section.remark)
    renamed = section.renamed.get(name.lower()) if section else None
    if renamed is not None:
        return Problem("unknown-key", f"unknown key `{name}`", _key(path, layers), notes, renamed)
    if (variable := _underscored(path, layers, model)) is not None:
        return Problem("unknown-key", f"unknown key `{name}`", _key(path, layers), notes, f"did you mean `{variable}`?")
    near = meant or closest(name, known)
    if near is not None:
        required = ", which is required here" if near == meant else ""
        return Problem(
            "unknown-key", f"unknown key `{name}`", _key(path, layers), notes, f"did you mean `{near}`{required}?"
        )
    if _cut_by_comma(path, layers):
        return Problem("unknown-key", f"unknown key `{name}`", _key(path, layers), notes, _COMMA)
    elsewhere = [dotted(home) for home in _homes(model, name)]
    help = f"`{name}` belongs at {words(elsewhere)}" if elsewhere else None
    return Problem("unknown-key", f"unknown key `{name}`", _key(path, layers), notes, help)


def _underscored(path: KeyPath, layers: Layers, model: type[Section]) -> str | None:
    """The variable whose `__` was written `_`: `TANDEM_SLOTS_COUNT`."""
    place = _key(path, layers)
    if place is None or not place.file.startswith(PREFIX):
        return None
    meant = place.file.replace("__", "_")
    variables = (PREFIX + "__".join(map(str, key)).upper() for key in _keys(model))
    return next((variable for variable in variables if variable.replace("__", "_") == meant), None)


def _cut_by_comma(path: KeyPath, layers: Layers) -> bool:
    """The rest of a text that was not quoted inside `{ }`: a key without a value, where there is a brace before it."""
    for tree in layers.trees:
        entry = tree.entry(path)
        if entry is not None and entry.node.value is None and entry.key.line:
            return "{" in tree.lines[entry.key.line - 1][: entry.key.column]
    return False


def _remarked(problem: Problem, model: type[Section], path: KeyPath) -> Problem:
    for end in (len(path), len(path) - 1):
        section = section_at(model, path[:end]) if end >= 0 else None
        if section is not None and section.remark:
            return replace(problem, help=section.remark)
    return problem


def _missing_key(lack: _Missing, layers: Layers, model: type[Section]) -> Problem:
    description = _description(model, (*lack.section, lack.key))
    notes = (f"`{lack.key}`: {description}",) if description else ()
    where = f"`{dotted(lack.section)}`" if lack.section else "this document"
    return Problem(
        "missing-key",
        f"{where} needs the key `{lack.key}`",
        _key(lack.section, layers) if lack.section else _start(layers),
        notes,
        f"add `{lack.key}:`",
    )


def _bad_value(found: ErrorDetails, layers: Layers, model: type[Section]) -> Problem:
    path = _path(found["loc"], layers)
    place = layers.nearest(path) or _start(layers)
    context: Mapping[str, Any] = found.get("ctx", {})
    value = found["input"]
    shown = _shown(value, place)
    match found["type"]:
        case "literal_error" | "enum":
            allowed = re.findall(r"'([^']*)'", str(context["expected"]))
            near = closest(str(value), allowed) if len(str(value)) > 3 else None
            help = f"did you mean `{near}`?" if near else None
            notes = (f"allowed: {words(allowed)}",)
            return Problem("not-allowed", f"{shown} is not one of the words allowed here", place, notes, help)
        case kind if kind in _BOUNDS:
            key, relation = _BOUNDS[kind]
            limit = _limit(context[key], value)
            return Problem("out-of-range", f"{shown} is out of range: it must be {relation} {limit}", place)
        case "string_too_short" | "string_too_long":
            return Problem("out-of-range", "this text is empty" if value == "" else "this text is too long", place)
        case "string_pattern_mismatch":
            form = filter(None, (_description(model, path),))
            return Problem("bad-text", f"{shown} does not have the form this key takes", place, tuple(form))
        case "int_type" | "float_type" if isinstance(value, str) and _ENDLESS.fullmatch(value):
            return Problem("out-of-range", f"{shown} is out of range: no key takes a number of so many digits", place)
        case kind if kind in _KINDS:
            wanted = _KINDS[kind]
            if kind == "model_type" and issubclass(section_at(model, path) or Section, Switched):
                wanted = f"`on`, `off` or {wanted}"
            message = f"expected {wanted}, not {_kind_of(value, place)}"
            return Problem("wrong-type", message, place, (), _retyped(kind, value))
        case kind:
            return Problem(kind.replace("_", "-"), str(found["msg"]), place)


def _limit(bound: float, value: object) -> str:
    """A bound as the value beside it is written: with a unit when that has one."""
    if isinstance(value, str):
        return exact_size(int(bound)) if re.search(r"B\s*$", value) else exact_duration(bound)
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _retyped(kind: str, value: object) -> str | None:
    """What the user most likely forgot about YAML."""
    if kind == "tuple_type":
        return "a list is written `[a, b]`, or one `- item` a line"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        if re.fullmatch(r"\d{1,3}(,\d{3})+", value):
            return f"write `{value.replace(',', '_')}`"
        if re.fullmatch(r"[\d.]+", value):
            return "leave the quotes out"
    return None


def _description(model: type[Section], path: KeyPath) -> str | None:
    section = section_at(model, path[:-1])
    field = section.model_fields.get(str(path[-1])) if section else None
    return field.description if field else None


def _key(path: KeyPath, layers: Layers) -> Place | None:
    return layers.place(path, on_key=True) or layers.nearest(path)


def _start(layers: Layers) -> Place:
    tree = layers.trees[0]
    return tree.place_of(tree.root.span)


def _shown(value: object, place: Place | None) -> str:
    """The user's value in a sentence; never one that the line itself does not show."""
    hidden = place is not None and HIDDEN in place.source
    return "this value" if hidden or isinstance(value, (Mapping, tuple)) else f"`{without_secrets(_short(value))}`"


def _short(value: object) -> str:
    text = (
        {True: "on", False: "off", None: "nothing"}.get(value, str(value))
        if isinstance(value, (bool, NoneType))
        else str(value)
    )
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind_of(value: object, place: Place | None) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the switch `{_short(value)}`"
        case int() | float():
            shown = _shown(value, place)
            return f"the number {shown}" if shown.startswith("`") else "a number"
        case str():
            shown = _shown(value, place)
            return f"the text {shown}" if shown.startswith("`") else "text"
        case Mapping():
            return "a section"
        case _:
            return "a list"


def section_at(model: type[Section], path: KeyPath) -> type[Section] | None:
    """The section class that describes `path`, through optional sections, lists and named mappings."""
    section: type[Section] | None = model
    named: Any = None
    for step in path:
        if named is not None:
            section, named = _section_in(named), None
            continue
        field = section.model_fields.get(str(step)) if section else None
        if field is None:
            return None
        inner = _without_none(field.annotation)
        if get_origin(inner) in (dict, tuple):
            section, named = None, get_args(inner)[-1 if get_origin(inner) is dict else 0]
        else:
            section = _section_in(inner)
    return section


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    options = [option for option in get_args(annotation) if option is not NoneType]
    return _without_none(options[0]) if NoneType in get_args(annotation) and options else annotation


def _section_in(annotation: Any) -> type[Section] | None:
    inner = _without_none(annotation)
    return inner if isinstance(inner, type) and issubclass(inner, Section) else None


def _keys(model: type[Section], above: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key of the schema that holds a value."""
    for key, field in model.model_fields.items():
        inner = _section_in(field.annotation)
        if inner is None:
            yield (*above, key)
        else:
            yield from _keys(inner, (*above, key))


def _homes(model: type[Section], name: str, above: KeyPath = ()) -> list[KeyPath]:
    """Every place in the schema where a key of this name would be right."""
    homes: list[KeyPath] = []
    for key, field in model.model_fields.items():
        inner = _section_in(field.annotation)
        if key == name and above:
            homes.append((*above, key))
        elif inner is not None:
            homes += _homes(inner, name, (*above, key))
    return homes
