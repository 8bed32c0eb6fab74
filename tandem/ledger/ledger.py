"""Writes rows from one thread of its own. No request waits for it, and none fails because of it."""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tandem.ledger.schema import INSERT, Row, open_ledger

_log = logging.getLogger("tandem.ledger")

_DAY: Final = 86400.0
_MAX_WAITING: Final = 10_000  # rows that may wait for a slow disk; later ones are lost
_MAX_BATCH: Final = 500


class Ledger:
    """`write` from any thread. A disk that is full, locked or gone costs rows, which are counted and told once."""

    def __init__(self, path: Path, days: int) -> None:
        self.days = days  # rows are kept this long; may be set at any time
        self.num_lost = 0
        self._path = path
        self._rows: queue.Queue[Row | None] = queue.Queue(_MAX_WAITING)
        self._connection: sqlite3.Connection | None = None
        self._is_failing = False
        self._cleaned_at = 0.0
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    def write(self, row: Row) -> None:
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self.num_lost += 1

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits, then stop."""
        try:
            self._rows.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _run(self) -> None:
        ending = False
        while not ending:
            batch = self._next_batch()
            ending = batch[-1] is None
            rows = [row for row in batch if row is not None]
            if rows:
                self._store(rows)
        if self._connection is not None:
            self._connection.close()

    def _next_batch(self) -> list[Row | None]:
        """At least one item; all that wait, up to a batch or the end mark."""
        batch = [self._rows.get()]
        while batch[-1] is not None and len(batch) < _MAX_BATCH:
            try:
                batch.append(self._rows.get_nowait())
            except queue.Empty:
                break
        return batch

    def _store(self, rows: Sequence[Row]) -> None:
        try:
            if self._connection is None:
                self._connection = open_ledger(self._path)
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(INSERT, map(msgspec.structs.astuple, rows))
                self._forget(rows[-1].at)
        except (sqlite3.Error, OSError) as error:
            self._failed(error, len(rows))
        else:
            if self._is_failing:
                _log.info("the ledger is written again; %d rows were lost", self.num_lost)
            self._is_failing = False

    def _forget(self, now: float) -> None:
        """Delete what is older than `days`, at the first row and then once a day, by the rows' own clock."""
        if now - self._cleaned_at >= _DAY and self._connection is not None:
            self._connection.execute("DELETE FROM requests WHERE at < ?", (now - self.days * _DAY,))
            self._cleaned_at = now

    def _failed(self, error: Exception, num_rows: int) -> None:
        """Start over with a new connection at the next row: the file may have been moved, or the disk freed."""
        self.num_lost += num_rows
        if not self._is_failing:
            _log.error("the ledger cannot be written (%s); requests go on without it", error)
        self._is_failing = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None
