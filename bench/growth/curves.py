"""Curves as data: what was measured at each place of a line, and how it is written down. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TypeAlias

import msgspec
from msgspec import Struct

TENTH = 0.1  # of the values lie under `low`, as many above `high`

Facts: TypeAlias = dict[str, str | int | float]


class Point(Struct, frozen=True):
    x: float
    median: float
    low: float
    high: float
    samples: int


class Line(Struct, frozen=True):
    name: str
    points: tuple[Point, ...]


class Axis(Struct, frozen=True):
    label: str  # with its unit
    is_log: bool = False


class Curve(Struct, frozen=True):
    """One panel of the plot: lines over one axis."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    bound: float | None = None  # of y, that the project promises to stay under


class Part(Struct, frozen=True):
    """What one part of the bench found, and on what."""

    machine: Facts
    is_quick: bool
    seconds: float  # it took
    curves: tuple[Curve, ...]


class Record(Struct, frozen=True):
    parts: dict[str, Part] = {}  # in the order of the plot

    @property
    def curves(self) -> list[Curve]:
        return [curve for part in self.parts.values() for curve in part.curves]

    def with_parts(self, found: Mapping[str, Part], order: Sequence[str]) -> Record:
        """Parts that were measured again replace what was known of them."""
        known = {**self.parts, **found}
        return Record({name: known[name] for name in order if name in known})


def point(x: float, values: Sequence[float]) -> Point:
    """`values` are one or more samples at `x`."""
    ordered = sorted(values)
    aside = int(len(ordered) * TENTH)
    return Point(x, median(ordered), ordered[aside], ordered[len(ordered) - 1 - aside], len(ordered))


def line(name: str, samples: Mapping[float, Sequence[float]], scale: float = 1.0) -> Line:
    """`samples`: x -> values, which are multiplied by `scale`. Places without a sample are left out."""
    return Line(name, tuple(point(x, [scale * each for each in values]) for x, values in samples.items() if values))


def encode(record: Record) -> bytes:
    return msgspec.json.format(msgspec.json.encode(_rounded(msgspec.to_builtins(record))), indent=1) + b"\n"


def decode(data: bytes) -> Record:
    """Raises `msgspec.ValidationError` for what this bench did not write."""
    return msgspec.json.decode(data, type=Record)


def _rounded(value: object) -> object:
    """Four digits say more than a machine repeats."""
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value
