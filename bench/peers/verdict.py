"""Figures and ratios of all servers, and the table. Pure: samples in, words and numbers out.

Ratios are tandem's figure over the peer's, taken between runs of the same repetition, which saw the same machine, and
are medians of those. Without guesses tandem does the same work as its peers, token by token; where it guesses, the line
says so. A figure that is better on the peer's side is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.peers.footprint import Footprint
from bench.peers.work import Sample
from tandem.units import MIB

PLAIN: Final = "tandem, no guesses"
SHIPPED: Final = "tandem"
OURS: Final = (PLAIN, SHIPPED)


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the table."""

    name: str
    unit: str
    kind: str
    clients: int
    value: Callable[[Sample], float]
    is_rate: bool  # more is better
    ours: str = PLAIN  # which of ours is held against the peers


def _rate(sample: Sample) -> float:
    return sample.tokens / sample.total


def _writing_rate(sample: Sample) -> float:
    return (sample.tokens - sample.clients) / sample.writing  # each client's first token came before


def _first(sample: Sample) -> float:
    return median(sample.first_tokens) * 1000


MEASURES: Final = (
    *(Measure(f"{clients} at once, prose", "tok/s", "prose", clients, _rate, True) for clients in (1, 2, 4)),
    Measure("first text, short prompt", "ms", "prose", 1, _first, False),
    *(Measure(f"first text, {clients} at once", "ms", "prose", clients, _first, False) for clients in (2, 4)),
    Measure("first text, 1,500 tokens read", "ms", "long", 1, _first, False),
    Measure("a file edited, guesses on", "tok/s", "edit", 1, _rate, True, SHIPPED),
    Measure("the same from its first text on", "tok/s", "edit", 1, _writing_rate, True, SHIPPED),
)


@dataclass(frozen=True, slots=True)
class Line:
    """`values` are medians by server, `ratios` ours over the peer's; only of what was measured."""

    name: str
    unit: str
    is_rate: bool
    values: Mapping[str, float]
    ratios: Mapping[str, float]

    def is_behind(self, peer: str) -> bool:
        return (self.ratios[peer] < 1) is self.is_rate


def lines(groups: Sequence[Sequence[Sample]]) -> list[Line]:
    """`groups`: samples of servers that ran beside each other, tandem in each of them."""
    return [_line(measure, groups) for measure in MEASURES]


def _line(measure: Measure, groups: Sequence[Sequence[Sample]]) -> Line:
    values: dict[str, list[float]] = {}
    ratios: dict[str, float] = {}
    for group in groups:
        found: dict[str, dict[int, float]] = {}
        for sample in group:
            if (sample.kind, sample.clients, sample.invalid) == (measure.kind, measure.clients, None):
                found.setdefault(sample.server, {})[sample.repetition] = measure.value(sample)
        ours = found.get(measure.ours, {})
        for server, by_repetition in found.items():
            values.setdefault(server, []).extend(by_repetition.values())
            pairs = [ours[repetition] / theirs for repetition, theirs in by_repetition.items() if repetition in ours]
            if server not in OURS and pairs:
                ratios[server] = median(pairs)
    medians = {server: median(some) for server, some in values.items()}
    return Line(measure.name, measure.unit, measure.is_rate, medians, ratios)


def memory_lines(footprints: Mapping[str, Footprint]) -> list[Line]:
    peaks = {name: each.peak / MIB for name, each in footprints.items()}
    alls = {name: each.all_processes / MIB for name, each in footprints.items()}
    return [
        Line(name, "MiB", False, sizes, {peer: sizes[PLAIN] / size for peer, size in sizes.items() if peer not in OURS})
        for name, sizes in (("memory of its engine, at most", peaks), ("all its processes, at the end", alls))
    ]


def table(rows: Sequence[Line], names: Sequence[str]) -> str:
    """A column a server; behind a peer's figure, in brackets, ours over it."""
    cells = [("", "", *names), *((row.name, row.unit, *(_cell(row, name) for name in names)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    text = [
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in cells)
    ]
    return "\n".join(line.rstrip() for line in text)


def _cell(row: Line, name: str) -> str:
    if name not in row.values:
        return "-"
    value = row.values[name]
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
    if name not in row.ratios:
        return shown
    return f"{'! ' if row.is_behind(name) else ''}{shown} ({row.ratios[name]:.2f})"


def parts_table(parts: Mapping[str, Mapping[str, int]]) -> str:
    """Where each engine's peak goes, a line each."""
    text: list[str] = []
    for server, held in parts.items():
        text.append(f"{server}: {sum(held.values()) / MIB:.1f} MiB at most, of which")
        text += [f"  {name:44} {size / MIB:8.1f} MiB" for name, size in held.items()]
    return "\n".join(text)


def remarks(samples: Sequence[Sample], quiet: float) -> list[str]:
    """What a reader must know of these figures: runs that do not count, others that were busy, prompts that differ."""
    said = []
    for reason in sorted({sample.invalid for sample in samples if sample.invalid}):
        some = [sample for sample in samples if sample.invalid == reason]
        whose = ", ".join(sorted({sample.server for sample in some}))
        said.append(f"{len(some)} of {len(samples)} runs do not count: {reason} ({whose})")
    disturbed = [sample for sample in samples if sample.others > quiet]
    if disturbed:
        most = max(sample.others for sample in disturbed)
        said.append(f"{len(disturbed)} of {len(samples)} runs had others beside them, {most:.2f} processors at most")
    found = {
        server: sum(s.cached_tokens for s in samples if s.server == server)
        / sum(s.prompt_tokens for s in samples if s.server == server)
        for server in sorted({sample.server for sample in samples})
    }
    shares = ", ".join(f"{server} {share:.0%}" for server, share in found.items())
    said.append(f"found in caches, of what the prompts hold: {shares}")
    for kind in sorted({sample.kind for sample in samples}):
        read = {
            server: median(s.prompt_tokens / s.clients for s in samples if s.server == server and s.kind == kind)
            for server in sorted({sample.server for sample in samples if sample.kind == kind})
        }
        if len(set(read.values())) > 1:
            words = ", ".join(f"{server} {count:.0f}" for server, count in read.items())
            said.append(f"{kind}: prompts are not equally many tokens: {words}")
    return said
