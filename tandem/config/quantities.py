"""Sizes, durations and the basis of a figure, as documents write them: typed on the way in, exact on the way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Final

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from tandem.contract.plan import Basis
from tandem.units import Bytes, Duration, parse_bytes, parse_duration


def _quantity(code: str, parse: Callable[[str], float], example: str) -> Callable[[object], object]:
    """Only a text with a unit becomes a quantity; a bare number is refused with the way to write it."""

    def read(value: object) -> object:
        try:
            if value is None:
                raise ValueError(f"nothing stands here: write {example}")
            if isinstance(value, (Mapping, tuple)):
                raise ValueError(f"a section or a list is no quantity: write {example}")
            if not isinstance(value, str):
                raise ValueError(f"`{value}` has no unit: write {example}")
            quantity = parse(value)
            if quantity >= _TOO_LARGE:
                raise OverflowError
        except OverflowError:
            raise PydanticCustomError(code, "no machine has that much") from None
        except ValueError as error:
            raise PydanticCustomError(code, "{reason}", {"reason": str(error)}) from None
        return quantity

    return read


def _basis(value: object) -> Basis:
    """YAML knows no enums: the word becomes the member."""
    try:
        return Basis(str(value))
    except ValueError:
        allowed = ", ".join(f"'{basis}'" for basis in Basis)
        raise PydanticKnownError("enum", {"expected": allowed}) from None


_TOO_LARGE: Final = 1 << 60  # of bytes or of seconds


def exact_size(size: int) -> str:
    """The shortest way to write a size so that it reads back as itself: `8 MiB`, `1.134 GiB`, `98362432 B`."""
    for unit, width in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        number = f"{size / (1 << width):.3f}".rstrip("0").rstrip(".")
        if size >= 1 << width and round(float(number) * (1 << width)) == size:
            return f"{number} {unit}"
    return f"{size} B"


def exact_duration(seconds: float) -> str:
    """The shortest way to write a duration so that it reads back as itself: `90d`, `10min`, `400ms`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    milliseconds = seconds * 1000
    return f"{int(milliseconds)}ms" if milliseconds == int(milliseconds) else f"{seconds!r}s"


SIZE_PATTERN: Final = r"^\s*(\d+(\.\d+)?|\d{1,3}(,\d{3})+)\s*(B|KiB|MiB|GiB|TiB)\s*$"
TIME_PATTERN: Final = r"^\s*(\d+(\.\d+)?|\d{1,3}(,\d{3})+)\s*(ms|s|min|h|d)\s*$"

Size = Annotated[
    Bytes,
    BeforeValidator(_quantity("bad-size", parse_bytes, "`15 GiB`, `512 MiB` or `0 B`")),
    WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN, "examples": ["15 GiB"], "title": "size"}),
]
Time = Annotated[
    Duration,
    BeforeValidator(_quantity("bad-duration", parse_duration, "`60s`, `10min` or `400ms`")),
    WithJsonSchema({"type": "string", "pattern": TIME_PATTERN, "examples": ["60s"], "title": "duration"}),
]
KnownBy = Annotated[Basis, BeforeValidator(_basis)]
