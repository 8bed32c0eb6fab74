"""What a joint pass costs, by its rows and by how far they look back: a staircase, because products of a few more
rows often take the same time until the next step.

Prices are milliseconds. They are measured once (`tandem calibrate`), learned while serving, or both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Price(NamedTuple):
    """One measured pass."""

    rows: int  # of the joint pass
    context: int  # rows its slots look back on, on average
    ms: float


class Staircase:
    """The price of a pass."""

    def __init__(self, measured: Iterable[Price] = ()) -> None:
        self._measured = tuple(measured)

    def of(self, rows: int, context: int) -> float:
        """Milliseconds of one pass."""
        return 1.0

    def observe(self, rows: int, context: int, ms: float) -> None:
        """A pass took this long."""


def passes_to_measure(row_limit: int, window: int) -> list[tuple[int, int]]:
    """(rows, context) of the passes that `tandem calibrate` has to time."""
    return []


def read_prices(path: Path, fingerprint: str) -> Sequence[Price]:
    """What was measured for exactly this engine; nothing, with one line in the log, if the file speaks of another."""
    return ()


def write_prices(path: Path, fingerprint: str, prices: Sequence[Price]) -> None:
    """The file is whole at any time. Raises `OSError`."""
