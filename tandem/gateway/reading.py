"""A request's body, read into the struct of its API; what is wrong with it, in a sentence that names the field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct, inspect

from tandem.gateway.errors import ApiError

Body = TypeVar("Body", bound=Struct)


def read(kind: type[Body], body: bytes) -> tuple[Body, tuple[str, ...]]:
    """The request, and the names of its fields that nobody reads.

    Raises `ApiError` 400 naming the field when the body is no JSON object of this kind.
    """
    try:
        wanted = msgspec.json.decode(body, type=kind)
        names = msgspec.json.decode(body, type=dict[str, Raw])
    except msgspec.ValidationError as error:
        sentence, param = _explain(str(error), kind)
        raise ApiError(400, "invalid_value", sentence, param=param) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if (whole := with_whole_characters(body)) != body:
            return read(kind, whole)
        raise ApiError(400, "invalid_json", f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise ApiError(400, "invalid_json", "the body is nested too deeply") from None
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    return wanted, tuple(name for name in names if name not in known)


_ESCAPE: Final = re.compile(rb"\\u[dD][89abAB]..(?:\\u[dD][c-fC-F]..)?|\\u[dD][c-fC-F]..|\\.", re.DOTALL)
_PAIR: Final = 12  # bytes of both halves


def with_whole_characters(body: bytes) -> bytes:
    """JSON without halves of surrogate pairs: each becomes U+FFFD.

    A client written in JavaScript that cuts an emoji in two sends half of one, and sends it again with every turn.
    """

    def whole(found: re.Match[bytes]) -> bytes:
        escape = found[0]
        is_half = len(escape) not in (2, _PAIR)
        return rb"\ufffd" if is_half else escape

    return _ESCAPE.sub(whole, body)


def convert(kind: type[Body], fields: Mapping[str, Any]) -> Body:
    """Fields that are read already, by the same rules. Raises `ApiError` 400 naming the one that is wrong."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        sentence, param = _explain(str(error), kind)
        raise ApiError(400, "invalid_value", sentence, param=param) from None


_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r"`(\w+)`$")


def _explain(message: str, kind: type[Struct]) -> tuple[str, str | None]:
    """msgspec's sentence as one of ours, and the field it is about."""
    found = _PLACE.fullmatch(message)
    assert found is not None
    what, path = found["what"], (found["path"] or "").lstrip(".")
    if what.startswith("Object missing required field") and (missing := _FIELD.search(what)):
        path = f"{path}.{missing[1]}" if path else missing[1]
        what = "this field is required"
    if what.startswith("Invalid enum value"):  # msgspec names the value that is wrong, which a user wrote
        what = f"expected one of {', '.join(f'`{word}`' for word in _allowed(kind, path))}"
    what = what[:1].lower() + what[1:]
    return (f"`{path}`: {what}", path) if path else (f"the body: {what}", None)


def _allowed(kind: type[Struct], path: str) -> list[Any]:
    """The words that may stand at this place, or in it."""
    types = [inspect.type_info(kind)]
    for step in re.findall(r"\w+|\[.*?\]", path):
        types = [inner for each in types for inner in _inside(each, step)]
    return sorted({word for each in types for word in _words(each)})


def _inside(type: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match type:
        case inspect.StructType(fields=fields):
            yield from (inner for field in fields if field.encode_name == step for inner in _plain(field.type))
        case inspect.ListType(item_type=item) | inspect.DictType(value_type=item) if step.startswith("["):
            yield from _plain(item)


def _plain(type: inspect.Type) -> Iterator[inspect.Type]:
    """Without what is said about it; of a union, each."""
    match type:
        case inspect.Metadata(type=inner):
            yield from _plain(inner)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _plain(each)
        case _:
            yield type


def _words(type: inspect.Type) -> tuple[Any, ...]:
    return type.values if isinstance(type, inspect.LiteralType) else ()
