"""The ledger of an appliance, as a test reads it."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def finished(ledger: Path, turns: int, tasks: int) -> list[sqlite3.Row]:
    """All rows in order of arrival, once there are so many of turns and at least so many of tasks; nothing before."""
    connection = sqlite3.connect(ledger)
    connection.row_factory = sqlite3.Row
    rows = connection.execute("SELECT * FROM requests ORDER BY at").fetchall()
    connection.close()
    num_tasks = sum(row["task"] for row in rows)
    return rows if len(rows) - num_tasks == turns and num_tasks >= tasks else []
