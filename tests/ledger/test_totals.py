from __future__ import annotations

from pathlib import Path

import pytest
from test_ledger import DAY, NOON, row

from tandem.errors import CannotStart
from tandem.ledger.ledger import Ledger
from tandem.ledger.totals import GroupBy, read_totals


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a place" / "ledger.sqlite"
    ledger = Ledger(path, days=90)
    ledger.write(row("a", client="opencode"))
    ledger.write(row("b", client="opencode", status=400, ttft_seconds=None, decode_seconds=None))
    ledger.write(row("c", client="curl", status=499, at=NOON + DAY))
    ledger.write(row("d", client="curl", model="n", key_name="", ttft_seconds=0.7, at=NOON + DAY))
    ledger.close()
    return path


def test_totals_by_client(path: Path) -> None:
    curl, opencode = read_totals(path, 0, [GroupBy.CLIENT])
    assert (curl.group, curl.requests, curl.failed) == (("curl",), 2, 0)
    assert (opencode.requests, opencode.failed, opencode.prompt_tokens) == (2, 1, 20)
    assert (opencode.cached_tokens, opencode.completion_tokens, opencode.decode_seconds) == (8, 40, 2.0)
    assert opencode.ttft_seconds == 0.3
    assert curl.ttft_seconds == pytest.approx(0.5)


def test_totals_by_several_things_and_since_a_time(path: Path) -> None:
    totals = read_totals(path, NOON + 1, [GroupBy.MODEL, GroupBy.KEY])
    assert [total.group for total in totals] == [("m", "anna"), ("n", "")]
    days = read_totals(path, 0, [GroupBy.DAY])
    assert [total.requests for total in days] == [2, 2]


def test_no_ledger_and_no_database_are_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="no ledger"):
        read_totals(tmp_path / "none.sqlite", 0, [GroupBy.DAY])
    (tmp_path / "bad.sqlite").write_bytes(b"x" * 4096)
    with pytest.raises(CannotStart, match="cannot be read"):
        read_totals(tmp_path / "bad.sqlite", 0, [GroupBy.DAY])
