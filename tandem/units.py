"""Sizes and times as types, and the one way to read and to print them.

`Bytes` and `Duration` are plain numbers with a name: arithmetic on them is ordinary arithmetic.
Sizes are binary (`1 GiB` = 2**30); a decimal suffix (`GB`) is refused, because a box is planned to the page.
"""

from __future__ import annotations

import math
import re
from typing import Final, NewType

Bytes = NewType("Bytes", int)
Duration = NewType("Duration", float)  # seconds

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

_SIZES: Final = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40}
_TIMES: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d+)?|\d{1,3}(?:,\d{3})+)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> Bytes:
    """`15 GiB`, `1.5 GiB`, `98362432 B` -> bytes.

    Raises `ValueError` whose text says what is allowed: a number without a unit is refused (15 of what?).
    """
    number, unit = _split(text)
    if unit not in _SIZES:
        raise ValueError(f"`{text}` is not a size: write a number and one of {', '.join(_SIZES)}, as in `15 GiB`")
    size = number * _SIZES[unit]
    if unit == "B" and size != int(size):
        raise ValueError(f"`{text}` is not a size: bytes are whole")
    return Bytes(round(size))


def parse_duration(text: str) -> Duration:
    """`60s`, `400 ms`, `10min`, `1h`, `30d` -> seconds. Raises `ValueError` as `parse_bytes` does."""
    number, unit = _split(text)
    if unit not in _TIMES:
        raise ValueError(f"`{text}` is not a duration: write a number and one of {', '.join(_TIMES)}, as in `60s`")
    return Duration(number * _TIMES[unit])


def _split(text: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    return (float(match[1].replace(",", "")), match[2]) if match else (math.nan, "")


def format_bytes(size: int, digits: int = 1) -> str:
    """The largest unit that leaves at least 1: `14.0 GiB`, `98.0 MiB`, `512 B`. Negative sizes keep their sign."""
    sign, size = ("-", -size) if size < 0 else ("", size)
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= _SIZES[unit]:
            return f"{sign}{size / _SIZES[unit]:,.{digits}f} {unit}"
    return f"{sign}{size} B"


def format_gib(size: int) -> str:
    """GiB with two digits and no unit, for sentences that compare several sizes: `14.22`."""
    return f"{size / GIB:.2f}"


def format_duration(seconds: float) -> str:
    """`0.4 s`, `60 s`, `10 min`, `1.5 h`: the unit a person would say."""
    if seconds < 120:
        return f"{seconds:.3g} s" if seconds != int(seconds) else f"{int(seconds)} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h" if seconds < 172800 else f"{seconds / 86400:.3g} d"
