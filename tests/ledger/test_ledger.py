from __future__ import annotations

import logging
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tandem.ledger.ledger import Ledger
from tandem.ledger.schema import MIGRATIONS, LedgerTooNew, Row, migrate, open_ledger

NOON = 1_900_000_000.0
DAY = 86400.0


def row(id: str = "r1", at: float = NOON, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "route": "/v1/chat/completions", "model": "m", "key_name": "anna", "client": "openai-python", "status": 200,
        "finish": "stop", "streamed": True, "choices": 1, "slot": 0, "reason": "slot 0 is free", "cache_source": "none",
        "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 20, "queue_seconds": 0.1, "prefill_seconds": 0.2,
        "decode_seconds": 2.0, "ttft_seconds": 0.3, "total_seconds": 2.5, "rounds": 9, "drafted": 30, "accepted": 10,
    }  # fmt: skip
    return Row(id=id, at=at, **(values | changes))


def stored(path: Path) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT id, slot, prompt_tokens, reason FROM requests ORDER BY at, id").fetchall()
    finally:
        connection.close()


def test_a_row_a_request(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ledger.sqlite"
    ledger = Ledger(path, days=90)
    for n in range(1000):
        ledger.write(row(f"r{n:04}"))
    ledger.write(row("waiting", slot=None, queue_seconds=None, at=NOON + 1))
    ledger.close()
    rows = stored(path)
    assert len(rows) == 1001
    assert rows[0] == ("r0000", 0, 10, "slot 0 is free")
    assert rows[-1][:2] == ("waiting", None)
    assert ledger.num_lost == 0


def test_rows_are_kept_for_the_declared_days_by_their_own_clock(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path, days=30)
    ledger.write(row("old", at=NOON))
    ledger.close()
    ledger = Ledger(path, days=30)
    ledger.write(row("kept", at=NOON + 30 * DAY))
    ledger.close()
    assert [r[0] for r in stored(path)] == ["old", "kept"]  # exactly 30 days old: kept
    ledger = Ledger(path, days=30)
    ledger.write(row("next", at=NOON + 30 * DAY + 1))
    ledger.close()
    assert [r[0] for r in stored(path)] == ["kept", "next"]


def test_a_file_that_is_no_ledger_costs_rows_and_one_line_of_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"not a database at all, but long enough to have a header" * 10)
    caplog.set_level(logging.INFO, "tandem.ledger")
    ledger = Ledger(path, days=1)
    for n in range(3):
        ledger.write(row(f"r{n}"))
    ledger.close()
    assert ledger.num_lost == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_writing_starts_again_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "state"
    directory.write_text("a file where the directory should be")
    caplog.set_level(logging.INFO, "tandem.ledger")
    ledger = Ledger(directory / "ledger.sqlite", days=1)
    ledger.write(row("lost"))
    while ledger.num_lost == 0:
        time.sleep(0.001)
    directory.unlink()
    ledger.write(row("kept"))
    ledger.close()
    assert [r[0] for r in stored(directory / "ledger.sqlite")] == ["kept"]
    assert "written again; 1 rows were lost" in caplog.text


def test_a_locked_ledger_never_holds_up_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    open_ledger(path).close()
    lock = sqlite3.connect(path, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    ledger = Ledger(path, days=1)
    for n in range(20_000):  # more than may wait: the surplus is lost, nobody blocks
        ledger.write(row(f"r{n}"))
    assert ledger.num_lost > 0
    lock.rollback()
    lock.close()
    ledger.close(timeout=30)
    assert len(stored(path)) + ledger.num_lost == 20_000


def test_an_older_file_is_brought_to_this_version(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    connection = open_ledger(path)
    connection.execute("INSERT INTO requests SELECT * FROM requests")
    connection.close()
    later = (*MIGRATIONS, "ALTER TABLE requests ADD COLUMN weather TEXT NOT NULL DEFAULT 'fair'")
    connection = open_ledger(path, later)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(later),)
    assert "weather" in [column[1] for column in connection.execute("PRAGMA table_info(requests)")]
    connection.close()


def test_rows_from_before_something_was_counted_say_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    old = open_ledger(path, MIGRATIONS[:1])
    columns = [column[1] for column in old.execute("PRAGMA table_info(requests)")]
    old.execute(
        f"INSERT INTO requests ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
        [getattr(row("old"), name) for name in columns],
    )
    old.close()
    ledger = Ledger(path, days=10_000_000)
    ledger.write(row("new"))
    ledger.close(timeout=30)
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT id, rounds, drafted, accepted, kind FROM requests ORDER BY id DESC").fetchall()
    connection.close()
    assert found == [("old", None, None, None, ""), ("new", 9, 30, 10, "")]


def test_a_step_that_fails_leaves_the_version_before_it() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, ("CREATE TABLE a (x)", "CREATE TABLE b (y); CREATE TABLE a (x)"))
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert [r[0] for r in connection.execute("SELECT name FROM sqlite_master")] == ["a"]
    migrate(connection, ("CREATE TABLE a (x)", "CREATE TABLE b (y)"))
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)


def test_a_newer_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    open_ledger(path, (*MIGRATIONS, "CREATE TABLE later (x)")).close()
    before = path.read_bytes()
    with pytest.raises(LedgerTooNew, match=f"version {len(MIGRATIONS) + 1}"):
        open_ledger(path)
    assert path.read_bytes() == before
