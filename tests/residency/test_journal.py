"""The journal: one line an event, whole lines whoever else writes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from tandem.residency.journal import Event, Journal


def test_an_event_is_a_line_with_its_figures(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(Event("ended", "memory fell", {"available": 5, "hard_floor": 7}, "chat-1"))
    journal.write(Event("reclaimed", "enough is free"))
    first, second = map(json.loads, (tmp_path / "residency.jsonl").read_text().splitlines())
    assert first.pop("at") > 1e9
    assert first == {
        "act": "ended",
        "sentence": "memory fell",
        "figures": {"available": 5, "hard_floor": 7},
        "subject": "chat-1",
    }
    assert set(second) == {"at", "act", "sentence"}


def test_lines_of_many_writers_stay_whole(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for _ in range(50):
            Journal(tmp_path).write(Event("refused", "x" * 500, {"number": number}))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [json.loads(line) for line in (tmp_path / "residency.jsonl").read_text().splitlines()]
    assert sorted(line["figures"]["number"] for line in lines) == sorted([0, 1, 2, 3] * 50)


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        Journal(tmp_path / "nowhere").write(Event("refused", "no"))
