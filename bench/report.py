"""What was measured, whether it counts, and the table. Pure: samples in, words and numbers out.

A level counts only when the engine's own counters prove that that many slots decoded together: requests that arrive
together and are served one after the other would otherwise pass for concurrency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

MIN_TOGETHER = 0.5  # of a level's decoded rows: the rest is the stagger of prompts being read at its start
SAME_SPEED = 0.03  # side slots that idle must not cost the only client more than this


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one level: `clients` requests sent at once. Times are seconds."""

    clients: int
    slots: int
    seconds: float  # from the first request sent to the last answer complete
    tokens: int  # written, all clients together
    first_tokens: tuple[float, ...]  # seconds to the first piece of text, a client each
    cached_tokens: int
    different: tuple[int, ...]  # clients whose text is not their alone text
    rounds_by_size: Mapping[int, int]  # decode rounds of this run, by the number of slots in them

    @property
    def rate(self) -> float:
        """Tokens a second, all clients together."""
        return self.tokens / self.seconds

    @property
    def together(self) -> float:
        """Share of the decoded rows that came from rounds of exactly this many slots, 0 to 1."""
        rows = sum(size * rounds for size, rounds in self.rounds_by_size.items())
        return self.clients * self.rounds_by_size.get(self.clients, 0) / rows if rows else 0.0

    @property
    def invalid(self) -> str | None:
        """Why this sample does not count; None when it does."""
        if self.different:
            return f"the text of client {self.different[0] + 1} is not its alone text"
        if any(size > self.clients and rounds for size, rounds in self.rounds_by_size.items()):
            return "somebody else was served at the same time"
        if self.together < MIN_TOGETHER:
            return f"only {self.together:.0%} of the rows were decoded {self.clients} together"
        return None


@dataclass(frozen=True, slots=True)
class Level:
    """Medians over the samples that count; `reasons` are those of the others."""

    clients: int
    slots: int
    counted: int
    runs: int
    rate: float | None
    first_token: float | None
    worst_first_token: float | None
    together: float | None
    reasons: tuple[str, ...]


def summarize(samples: Sequence[Sample]) -> Level:
    """`samples` of one level; at least one. More than half of them must count, or the level has no figures."""
    good = [sample for sample in samples if sample.invalid is None]
    reasons = tuple(sorted({sample.invalid for sample in samples if sample.invalid is not None}))
    first = [seconds for sample in good for seconds in sample.first_tokens]
    is_valid = len(good) > len(samples) / 2
    return Level(
        clients=samples[0].clients,
        slots=samples[0].slots,
        counted=len(good),
        runs=len(samples),
        rate=median(sample.rate for sample in good) if is_valid else None,
        first_token=median(first) if is_valid else None,
        worst_first_token=max(first) if is_valid else None,
        together=median(sample.together for sample in good) if is_valid else None,
        reasons=reasons,
    )


def ratio(upper: Sequence[Sample], lower: Sequence[Sample]) -> float | None:
    """Median of the ratios run by run: neighbours in time saw the same machine, medians of far runs did not."""
    pairs = [
        above.rate / below.rate
        for above, below in zip(upper, lower, strict=True)
        if above.invalid is None and below.invalid is None
    ]
    return median(pairs) if len(pairs) > len(upper) / 2 else None


def table(levels: Sequence[Level], ratios: Mapping[int, float | None], side_slots_cost: float | None) -> str:
    """`ratios`: clients -> total rate against one client's. `side_slots_cost`: rate with side slots against without."""
    head = ("clients", "slots", "tok/s", "x one", "first token", "worst", "together", "counted")
    rows = [head, *(_row(level, ratios.get(level.clients) if level.slots > 1 else None) for level in levels)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    for level in levels:
        lines += [f"! {level.clients} clients on {level.slots} slots: {reason}" for reason in level.reasons]
    if side_slots_cost is not None:
        verdict = "costs nothing" if side_slots_cost >= 1 - SAME_SPEED else "costs something"
        lines.append(f"one client with side slots built / without: {side_slots_cost:.3f} ({verdict})")
    return "\n".join(lines)


def _row(level: Level, ratio_to_one: float | None) -> tuple[str, ...]:
    counted = f"{level.counted} of {level.runs}"
    place = (str(level.clients), str(level.slots))
    if level.rate is None or level.first_token is None or level.worst_first_token is None or level.together is None:
        return (*place, "invalid", "-", "-", "-", "-", counted)
    return (
        *place,
        f"{level.rate:.1f}",
        "-" if ratio_to_one is None else f"{ratio_to_one:.2f}",
        f"{level.first_token * 1000:.0f} ms",
        f"{level.worst_first_token * 1000:.0f} ms",
        f"{level.together:.0%}",
        counted,
    )
