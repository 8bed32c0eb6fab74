"""Reads the ledger: totals by day, client, model or key."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from tandem.errors import CannotStart


class GroupBy(StrEnum):
    DAY = "day"
    CLIENT = "client"
    MODEL = "model"
    KEY = "key"


_EXPRESSIONS = {
    GroupBy.DAY: "date(at, 'unixepoch', 'localtime')",
    GroupBy.CLIENT: "client",
    GroupBy.MODEL: "model",
    GroupBy.KEY: "key_name",
}


class Total(Struct, frozen=True):
    """One line of the table. `group` holds a value for each thing grouped by, in the order asked for."""

    group: tuple[str, ...]
    requests: int
    failed: int  # answered with 4xx or 5xx; clients that left are not failures
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    decode_seconds: float
    ttft_seconds: float | None  # mean over requests that wrote something


def read_totals(path: Path, since: float, by: Sequence[GroupBy]) -> list[Total]:
    """Totals of the requests since a unix time, sorted by group. `by` names at least one.

    Raises `CannotStart` when there is no ledger or it cannot be read.
    """
    groups = ", ".join(_EXPRESSIONS[each] for each in by)
    query = f"""
        SELECT {groups}, count(*), sum(status >= 400 AND status <> 499), sum(prompt_tokens), sum(cached_tokens),
               sum(completion_tokens), coalesce(sum(decode_seconds), 0.0), avg(ttft_seconds)
        FROM requests WHERE at >= ? GROUP BY {groups} ORDER BY {groups}
    """
    if not path.exists():
        raise CannotStart(f"there is no ledger at {path}", "it appears with the first request that was served")
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            rows = connection.execute(query, (since,)).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise CannotStart(f"the ledger at {path} cannot be read: {error}") from error
    return [Total(row[: len(by)], *row[len(by) :]) for row in rows]
