"""The ledger's tables, and how a file of an earlier version becomes one of this version.

A migration, once released, is never edited: a change is a further entry. The file's version is the number of
entries it has seen (SQLite's `user_version`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec


class LedgerTooNew(sqlite3.DatabaseError):
    """The file was written by a later version; it is left alone."""


class Row(msgspec.Struct, frozen=True):
    """One request. Times are seconds; None where the request never got that far."""

    id: str
    at: float  # unix time of arrival
    route: str
    model: str
    key_name: str  # empty when the API is open
    client: str  # first word of the user agent
    status: int  # of HTTP; 499 when the client left first
    finish: str  # stop | length | loop | cancelled | an error's code
    streamed: bool
    choices: int
    slot: int | None
    reason: str  # routing's sentence
    cache_source: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float | None
    prefill_seconds: float | None
    decode_seconds: float | None
    ttft_seconds: float | None
    total_seconds: float
    rounds: int | None = None  # that wrote its tokens
    drafted: int | None = None  # guesses that were checked for it
    accepted: int | None = None  # of them, right
    kind: str = ""  # the class that the conductor saw; empty where it was not asked
    package: str = ""
    effort: str = ""
    stage: str = ""  # A | B | C: the last one that had to answer
    decider_answer: str = ""  # `class=code 0.91`, or why there was none
    decider_seconds: float | None = None
    model_answer: str = ""  # the same of the big model
    model_seconds: float | None = None
    missed_at: int | None = None  # a conversation was cold: tokens of it that agree with what a slot held
    missed_of: int | None = None  # tokens that the slot held
    task: bool = False  # a title, tags and the like, beside a conversation
    request_id: str = ""  # the `X-Request-Id` that its answer carried


MIGRATIONS: Final = (
    """
    CREATE TABLE requests (
        id TEXT NOT NULL, at REAL NOT NULL, route TEXT NOT NULL, model TEXT NOT NULL, key_name TEXT NOT NULL,
        client TEXT NOT NULL, status INTEGER NOT NULL, finish TEXT NOT NULL, streamed INTEGER NOT NULL,
        choices INTEGER NOT NULL, slot INTEGER, reason TEXT NOT NULL, cache_source TEXT NOT NULL,
        prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
        queue_seconds REAL, prefill_seconds REAL, decode_seconds REAL, ttft_seconds REAL, total_seconds REAL NOT NULL
    );
    CREATE INDEX requests_at ON requests (at);
    """,
    """
    ALTER TABLE requests ADD COLUMN rounds INTEGER;
    ALTER TABLE requests ADD COLUMN drafted INTEGER;
    ALTER TABLE requests ADD COLUMN accepted INTEGER;
    """,
    """
    ALTER TABLE requests ADD COLUMN kind TEXT NOT NULL DEFAULT '';
    ALTER TABLE requests ADD COLUMN package TEXT NOT NULL DEFAULT '';
    ALTER TABLE requests ADD COLUMN effort TEXT NOT NULL DEFAULT '';
    ALTER TABLE requests ADD COLUMN stage TEXT NOT NULL DEFAULT '';
    ALTER TABLE requests ADD COLUMN decider_answer TEXT NOT NULL DEFAULT '';
    ALTER TABLE requests ADD COLUMN decider_seconds REAL;
    ALTER TABLE requests ADD COLUMN model_answer TEXT NOT NULL DEFAULT '';
    ALTER TABLE requests ADD COLUMN model_seconds REAL;
    """,
    """
    ALTER TABLE requests ADD COLUMN missed_at INTEGER;
    ALTER TABLE requests ADD COLUMN missed_of INTEGER;
    """,
    "ALTER TABLE requests ADD COLUMN task INTEGER NOT NULL DEFAULT 0;",
    """
    ALTER TABLE requests ADD COLUMN request_id TEXT NOT NULL DEFAULT '';
    """,
)

_COLUMNS: Final = Row.__struct_fields__
INSERT: Final = f"INSERT INTO requests ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


def open_ledger(path: Path, migrations: Sequence[str] = MIGRATIONS) -> sqlite3.Connection:
    """For writing, brought to this version. Raises `sqlite3.Error` or `OSError`; a newer file is `LedgerTooNew`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the last rows, never the file
        migrate(connection, migrations)
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Each step and its version number are one transaction: a step that fails leaves the version before it."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise LedgerTooNew(f"the ledger has version {version}; this program knows {len(migrations)}")
    for number, script in enumerate(migrations[version:], version + 1):
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version = {number}; COMMIT;")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.rollback()
            raise
