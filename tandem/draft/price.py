"""What a joint pass costs, by its rows and by how far they look back: a staircase, because products of a few more
rows often take the same time until the next step.

Prices are milliseconds. They are measured once (`tandem calibrate`), learned while serving, or both. A price that
nobody has paid yet is an optimistic guess, so that a step is found by stepping on it.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median_low
from typing import Final, NamedTuple

import msgspec

log = logging.getLogger("tandem.draft")

_SLOPE: Final = 0.03  # of the lone row's price for each further row, before anything is known: rows are nearly free
_DOUBT: Final = 0.5  # how far the price between two known counts climbs before the second: its step may be anywhere
_NEAR: Final = 128  # contexts below are one bucket; from there on each doubling is another
_KEPT: Final = 9  # observations of a cell; their lower median is the price: what disturbs a pass never makes it shorter
_KNOWN: Final = 3  # observations from which a cell is believed to tell of the box rather than of itself
_LOADS: Final = 5  # last passes whose median says how loaded the box is
_FORGET: Final = 512  # passes after which a cell that was not paid again loses its oldest observation


class Price(NamedTuple):
    """One measured pass."""

    rows: int  # of the joint pass
    context: int  # rows its slots look back on, on average
    ms: float


class Staircase:
    """The price of a pass: what it takes beside others of its kind, times how loaded the box is right now.

    The load is a factor of its own because rounds of one kind may run for minutes: were a busy box booked as the
    price of that kind only, all other kinds would look cheap.
    """

    def __init__(self, measured: Iterable[Price] = ()) -> None:
        self._measured: dict[int, dict[int, float]] = {}  # bucket -> rows -> ms
        for price in measured:
            self._measured.setdefault(_bucket(price.context), {})[price.rows] = price.ms
        self._paid: dict[int, dict[int, deque[float]]] = {}  # bucket -> rows -> log ms at load 1
        self._paid_lately: set[tuple[int, int]] = set()
        self._passes = 0
        self._errors: deque[float] = deque(maxlen=_LOADS)
        self._tables: dict[tuple[int, int], list[float]] = {}  # (bucket, rows) -> prices; what was asked since a pass

    @property
    def load(self) -> float:
        """How many times longer passes take now than they did when they were learned."""
        return math.exp(median_low(self._errors)) if self._errors else 1.0

    def table(self, rows: int, context: int) -> Sequence[float]:
        """Milliseconds of a pass by its number of rows, 0 to `rows`. Never falls."""
        key = _bucket(context), rows
        if key not in self._tables:
            load = self.load
            self._tables[key] = [load * ms for ms in self._unloaded(*key)]
        return self._tables[key]

    def knows(self, rows: int, context: int) -> bool:
        """Whether such a pass was measured or paid for, at about this context."""
        bucket = _bucket(context)
        return rows in self._measured.get(bucket, ()) or rows in self._paid.get(bucket, ())

    def observe(self, rows: int, context: int, ms: float) -> None:
        """A pass took this long. What is no time at all (a clock that stood still) tells nothing."""
        if not ms > 0:
            return
        self._tables.clear()
        bucket = _bucket(context)
        cell = self._paid.setdefault(bucket, {}).setdefault(rows, deque(maxlen=_KEPT))
        if len(cell) >= _KNOWN:
            self._errors.append(math.log(ms) - median_low(cell))
        cell.append(math.log(ms) - math.log(self.load))
        self._paid_lately.add((bucket, rows))
        self._passes += 1
        if self._passes % _FORGET == 0:
            self._forget()

    def _forget(self) -> None:
        for bucket, rows, cell in [(b, rows, cell) for b, cells in self._paid.items() for rows, cell in cells.items()]:
            if (bucket, rows) not in self._paid_lately:
                cell.popleft()
                if not cell:
                    del self._paid[bucket][rows]
        self._paid = {bucket: cells for bucket, cells in self._paid.items() if cells}
        self._paid_lately.clear()

    def _unloaded(self, bucket: int, rows: int) -> list[float]:
        """Known contexts give the shape, each correcting the farther one: those that were measured, or else those that
        were paid for; last, what was paid for at this one."""
        table = [1 + _SLOPE * (count - 1) for count in range(rows + 1)]
        shape = self._measured or {other: _medians(cells) for other, cells in self._paid.items() if other != bucket}
        for other in sorted(shape, key=lambda other: (abs(other - bucket), other))[1::-1]:
            table = _fit(table, shape[other])
        table = _fit(table, _medians(self._paid.get(bucket, {})))
        for count in range(rows - 1, -1, -1):  # rows that mean nothing can be added, so fewer never cost more
            table[count] = min(table[count], table[count + 1])
        return table


def _fit(table: list[float], known: Mapping[int, float]) -> list[float]:
    """The table bent to pass through the known prices. Beyond them it keeps its shape, between them it hopes."""
    if not known:
        return table
    counts = sorted(known)
    ratios = [known[count] / _at(table, count) for count in counts]
    fitted: list[float] = []
    place = 0  # of the first known count that is not below
    for count, price in enumerate(table):
        while place < len(counts) and counts[place] < count:
            place += 1
        if place == len(counts):
            ratio = ratios[-1]
        elif place == 0 or counts[place] == count:
            ratio = ratios[place]
        else:
            below, above = counts[place - 1], counts[place]
            climbed = _DOUBT * (count - below) / (above - below)
            ratio = ratios[place - 1] + climbed * (ratios[place] - ratios[place - 1])
        fitted.append(price * ratio)
    return fitted


def _at(table: list[float], count: int) -> float:
    """Also for counts beyond the table: it goes on as it ends."""
    last = len(table) - 1
    return table[count] if count <= last else table[last] * (1 + _SLOPE * (count - last))


def _bucket(context: int) -> int:
    return (context // _NEAR).bit_length()


def _medians(cells: Mapping[int, deque[float]]) -> dict[int, float]:
    return {rows: math.exp(median_low(cell)) for rows, cell in cells.items()}


# --- measuring, and keeping what was measured -------------------------------------------------------------------


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    engine: dict[str, str]
    prices: tuple[Price, ...]


def passes_to_measure(row_limit: int, window: int) -> list[tuple[int, int]]:
    """(rows, context) of every pass that `tandem calibrate` times, by growing context: all row counts, in the middle
    of each bucket of contexts that the window reaches."""
    room = max(1, window - row_limit)
    contexts = [min(_NEAR // 2, room)]
    context = _NEAR * 3 // 2
    while context <= room:
        contexts.append(context)
        context *= 2
    return [(rows, context) for context in contexts for rows in range(1, row_limit + 1)]


def to_prices(measured: Mapping[tuple[int, int], Sequence[float]]) -> list[Price]:
    """Milliseconds of the repetitions of each pass, by (rows, context) -> what is kept of them."""
    return [Price(rows, context, median_low(ms)) for (rows, context), ms in sorted(measured.items()) if ms]


def read_prices(path: Path, engine: Mapping[str, str]) -> tuple[Price, ...]:
    """What was measured for an engine of exactly these facts (weights, compute, threads, device, torch).

    Nothing if nothing was measured, or, with one line in the log, if the file cannot be used.
    """
    try:
        record = msgspec.json.decode(path.read_bytes(), type=_Record)
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("prices of passes are learned anew: %s cannot be used (%s)", path, error)
        return ()
    if record.engine != engine:
        others = sorted(key for key in {*record.engine, *engine} if record.engine.get(key) != engine.get(key))
        log.warning("prices of passes are learned anew: %s was measured with another %s", path, ", ".join(others))
        return ()
    if not all(price.rows > 0 and price.context >= 0 and 0 < price.ms < math.inf for price in record.prices):
        log.warning("prices of passes are learned anew: %s holds what no pass can cost", path)
        return ()
    return record.prices


def write_prices(path: Path, engine: Mapping[str, str], prices: Iterable[Price]) -> None:
    """Under its name there is at any time the old file or the new one. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(_Record(dict(engine), tuple(prices)))) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
