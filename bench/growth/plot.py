"""Curves as one SVG of small multiples, readable on light and on dark ground. Pure: a record in, text out.

Drawn by hand, because ten small panels need no library that is larger than all else the bench installs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, log10
from typing import Final

from bench.growth.curves import Axis, Curve, Line, Point, Record

COLUMNS: Final = 2
PANEL: Final = (480, 320)  # width and height of one panel, all it says included
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 34, 64  # of a panel, around what is drawn
LEGEND_ROW: Final = 16
TEN: Final = (1, 2, 5)
NEAR: Final = 34  # pixels that two labels of an axis need
SECTION: Final = "font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:11px"

# One hue for each line, told apart by lightness and dashes as well; the same contrast on both grounds.
_HUES: Final = ("#2f6fde", "#c4571a", "#1f8a5b", "#9a4fc4", "#b8860b", "#c43a5e", "#4a8fa8")
_HUES_DARK: Final = ("#7aa7ff", "#ff9d5c", "#5fd3a0", "#cf9bf5", "#e6c14d", "#ff8aa6", "#8fd0e6")
_DASHES: Final = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4", "4 2 1 2")


@dataclass(frozen=True, slots=True)
class Scale:
    """Values of one axis -> pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = log10(low), log10(high), log10(max(value, self.low))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round values, as many as have room."""
        return _log_ticks(self) if self.is_log else _linear_ticks(self)


def scale_of(values: Sequence[float], axis: Axis, start: float, end: float) -> Scale:
    """Wide enough for `values`, one or more; an axis that is not logarithmic begins at 0."""
    if axis.is_log:
        low, high = min(values), max(values)
        if high < 3 * low:
            low, high = low / 2, high * 2
        return Scale(low / 1.12, high * 1.12, start, end, True)
    return Scale(0.0, (max(values) or 1.0) * 1.06, start, end, False)


def _log_ticks(scale: Scale) -> list[float]:
    every = [n * 10.0**e for e in range(floor(log10(scale.low)), ceil(log10(scale.high)) + 1) for n in TEN]
    inside = [tick for tick in every if scale.low <= tick <= scale.high]
    decades = [tick for tick in inside if log10(tick).is_integer()]
    room = abs(scale.end - scale.start) / NEAR
    return inside if len(inside) <= room or len(decades) < 2 else decades


def _linear_ticks(scale: Scale) -> list[float]:
    span = scale.high - scale.low
    room = abs(scale.end - scale.start) / NEAR
    sizes = [n * 10.0**e for e in range(floor(log10(span)) - 2, ceil(log10(span)) + 1) for n in TEN]
    step = next(size for size in sizes if span / size <= min(room, 8))
    return [n * step for n in range(int(scale.high / step) + 1)]


def words(value: float) -> str:
    """A tick's label: 0.5, 20, 1,000, 20k."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:,.0f}" if value >= 1 and float(value).is_integer() else f"{value:g}"


def draw(record: Record) -> str:
    """An SVG document; a panel a curve, row by row, and below them what they were measured on."""
    curves = record.curves
    rows = -(-len(curves) // COLUMNS)
    legends = [max(_legend_height(c) for c in curves[row * COLUMNS : (row + 1) * COLUMNS]) for row in range(rows)]
    tops = [sum(PANEL[1] + legend for legend in legends[:row]) for row in range(rows)]
    below = sum(PANEL[1] + legend for legend in legends)
    told = told_below(record)
    width, height = COLUMNS * PANEL[0], below + LEGEND_ROW * (len(told) + 1)
    panels = "".join(
        f'<g transform="translate({number % COLUMNS * PANEL[0]} {tops[number // COLUMNS]})">{_panel(curve)}</g>\n'
        for number, curve in enumerate(curves)
    ) + "".join(_text(LEFT, below + LEGEND_ROW * (n + 0.6), line, "axis") for n, line in enumerate(told))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="How cost grows" style="{SECTION}">\n<style>{_style()}</style>\n'
        f'<rect class="ground" width="{width}" height="{height}"/>\n{panels}</svg>\n'
    )


def told_below(record: Record) -> list[str]:
    """The machine, once where all parts were measured on one at one commit; and which parts were only tried."""
    machines: dict[str, list[str]] = {}
    for name, part in record.parts.items():
        facts = part.machine
        on = f"{facts.get('cpu')}, {facts.get('cpus')} CPUs, commit {facts.get('commit')}"
        machines.setdefault(on, []).append(name)
    lines = [on if len(machines) == 1 else f"{', '.join(names)}: {on}" for on, names in machines.items()]
    tried = [name for name, part in record.parts.items() if part.is_quick]
    return [*lines, *([f"only tried, a few samples: {', '.join(tried)}"] if tried else [])]


def _style() -> str:
    def colours(ground: str, text: str, faint: str, hues: Sequence[str]) -> str:
        lines = "".join(f".l{n}{{stroke:{hue}}}.f{n}{{fill:{hue}}}" for n, hue in enumerate(hues))
        return f".ground{{fill:{ground}}}text{{fill:{text}}}.grid{{stroke:{faint}}}.bound{{stroke:{text}}}{lines}"

    light = colours("#ffffff", "#24292f", "#d0d7de", _HUES)
    dark = colours("#0d1117", "#e6edf3", "#30363d", _HUES_DARK)
    shapes = (
        ".line{fill:none;stroke-width:1.8}.band{stroke:none;opacity:.16}.grid{stroke-width:1}"
        ".bound{stroke-dasharray:3 4;stroke-width:1.4}.title{font-size:13px;font-weight:600}.axis{opacity:.85}"
    )
    return f"{shapes}{light}@media(prefers-color-scheme:dark){{{dark}}}"


def _panel(curve: Curve) -> str:
    points = [point for line in curve.lines for point in line.points]
    if not points:
        return _text(LEFT, 20, curve.title, "title")
    bounds = [] if curve.bound is None else [curve.bound]
    across = scale_of([point.x for point in points], curve.x, LEFT, PANEL[0] - RIGHT)
    up = scale_of([y for p in points for y in (p.low, p.high)] + bounds, curve.y, PANEL[1] - BOTTOM, TOP)
    parts = [_text(LEFT, 20, curve.title, "title"), _grid(curve, across, up)]
    if curve.bound is not None:
        y = up.at(curve.bound)
        parts.append(f'<path class="grid bound" d="M{LEFT} {y:.1f}H{PANEL[0] - RIGHT}"/>')
        parts.append(_text(PANEL[0] - RIGHT, y - 4, f"bound {words(curve.bound)}", "axis", "end"))
    parts += [_line(number, line, across, up) for number, line in enumerate(curve.lines)]
    parts += _legend(curve)
    return "".join(parts)


def _grid(curve: Curve, across: Scale, up: Scale) -> str:
    bottom, right = PANEL[1] - BOTTOM, PANEL[0] - RIGHT
    parts = []
    for tick in up.ticks:
        y = up.at(tick)
        parts.append(
            f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>{_text(LEFT - 6, y + 4, words(tick), "", "end")}'
        )
    for tick in _places(curve, across):
        x = across.at(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} {bottom}v4"/>{_text(x, bottom + 17, words(tick), "", "middle")}')
    parts.append(_text((LEFT + right) / 2, bottom + 34, curve.x.label, "axis", "middle"))
    parts.append(f'<g transform="translate(13 {(TOP + bottom) / 2:.0f}) rotate(-90)">')
    parts.append(f"{_text(0, 0, curve.y.label, 'axis', 'middle')}</g>")
    return "".join(parts)


def _places(curve: Curve, across: Scale) -> list[float]:
    """The places that were measured, as far as there is room for their labels; else round ones."""
    measured = sorted({point.x for line in curve.lines for point in line.points})
    pixels = [across.at(x) for x in measured]
    gaps = [after - before for before, after in pairwise(pixels)]
    return measured if all(gap >= NEAR for gap in gaps) else across.ticks


def _line(number: int, line: Line, across: Scale, up: Scale) -> str:
    def path(points: Sequence[tuple[float, float]]) -> str:
        return "L".join(f"{x:.1f} {y:.1f}" for x, y in points)

    middle = [(across.at(p.x), up.at(p.median)) for p in line.points]
    upper = [(across.at(p.x), up.at(p.high)) for p in line.points]
    lower = [(across.at(p.x), up.at(p.low)) for p in reversed(line.points)]
    dots = "".join(
        f'<circle class="f{number}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"><title>{_told(line, p)}</title></circle>'
        for (x, y), p in zip(middle, line.points, strict=True)
    )
    return (
        f'<path class="band f{number}" d="M{path([*upper, *lower])}Z"/>'
        f'<path class="line l{number}" stroke-dasharray="{_DASHES[number]}" d="M{path(middle)}"/>{dots}'
    )


def _told(line: Line, point: Point) -> str:
    return escape(f"{line.name}, {point.x:g}: {point.median:.3g} ({point.low:.3g} to {point.high:.3g})")


def _legend_height(curve: Curve) -> int:
    return LEGEND_ROW * (-(-len(curve.lines) // 2))


def _legend(curve: Curve) -> list[str]:
    """Two names a row, below the axis."""
    parts, column = list[str](), (PANEL[0] - LEFT) / 2
    for number, line in enumerate(curve.lines):
        x, y = LEFT + number % 2 * column, PANEL[1] - BOTTOM + 52 + number // 2 * LEGEND_ROW
        parts.append(
            f'<path class="line l{number}" stroke-dasharray="{_DASHES[number]}" d="M{x:.0f} {y - 4:.0f}h22"/>'
            f"{_text(x + 28, y, line.name)}"
        )
    return parts


def _text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'
