"""One request's row, found by its id."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from tandem.errors import CannotStart
from tandem.ledger.reading import read_row
from tandem.ledger.schema import INSERT, MIGRATIONS, Row, open_ledger


def row(id: str, at: float) -> Row:
    times = (0.1, 0.2, 0.3, 0.3, 0.6)
    return Row(
        id,
        at,
        "/v1/chat/completions",
        "m",
        "",
        "",
        200,
        "stop",
        True,
        1,
        0,
        "empty slot",
        "none",
        9,
        0,
        4,
        *times,
        1,
        0,
        0,
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    connection = open_ledger(path)
    for number, id in enumerate(("chat-abc", "chat-abd", "chat-xyz")):
        written = row(id, float(number))
        connection.execute(INSERT, [getattr(written, name) for name in Row.__struct_fields__])
    connection.close()
    return path


def test_by_its_id_or_the_beginning_of_it(ledger: Path) -> None:
    assert read_row(ledger, "chat-abd").at == 1.0
    assert read_row(ledger, "chat-x").id == "chat-xyz"
    assert read_row(ledger, None).id == "chat-xyz"  # the last


@pytest.mark.parametrize("id", ["chat-ab", "nobody", "%", "chat_xyz"])
def test_what_names_no_single_request_is_refused(ledger: Path, id: str) -> None:
    with pytest.raises(CannotStart, match=r"`chat-ab`|no request"):
        read_row(ledger, id)


def test_no_ledger_is_said(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="no ledger"):
        read_row(tmp_path / "ledger.sqlite", None)


def test_a_ledger_that_its_gateway_has_not_yet_brought_forward(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    connection = open_ledger(path, MIGRATIONS[:1])
    old = row("chat-old", 5.0)
    names = [name for name in Row.__struct_fields__ if name not in ("rounds", "drafted", "accepted")][:21]
    connection.execute(
        f"INSERT INTO requests ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
        [getattr(old, name) for name in names],
    )
    connection.close()
    assert read_row(path, None).missed_at is None


def test_by_the_id_that_any_answer_carries(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    connection = open_ledger(path)
    written = structs.replace(row("chat-1", 1.0), request_id="mine-7")
    connection.execute(INSERT, [getattr(written, name) for name in Row.__struct_fields__])
    connection.close()
    assert read_row(path, "mine-7").id == "chat-1"
    with pytest.raises(CannotStart, match="no request"):
        read_row(path, "mine")
