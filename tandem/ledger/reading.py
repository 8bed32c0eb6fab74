"""Reads one request's row."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tandem.errors import CannotStart
from tandem.ledger.schema import Row


def read_row(path: Path, id: str | None) -> Row:
    """The row of a request, by its id, the beginning of one, or the `X-Request-Id` of its answer; None: of the last.

    Raises `CannotStart` when there is no ledger, no such row, or more than one begins so.
    """
    if not path.exists():
        raise CannotStart(f"there is no ledger at {path}", "it appears with the first request that was served")
    wanted = id or ""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        connection.row_factory = sqlite3.Row
        try:
            columns = {column["name"] for column in connection.execute("PRAGMA table_info(requests)")}
            names = "id" if "request_id" not in columns else "iif(request_id = ?2, request_id, id)"
            query = f"SELECT * FROM requests WHERE substr({names}, 1, ?1) = ?2 ORDER BY at DESC LIMIT 2"
            found = connection.execute(query, (len(wanted), wanted)).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise CannotStart(f"the ledger at {path} cannot be read: {error}") from error
    if not found:
        raise CannotStart("nothing was served yet" if id is None else f"no request of the id `{id}` is in the ledger")
    if id is not None and len(found) > 1:
        raise CannotStart(f"more than one request has an id that begins with `{id}`", "give more of it")
    known = set(found[0].keys())
    return Row(**{name: found[0][name] for name in Row.__struct_fields__ if name in known})
