from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import typer
from test_ledger import DAY, row
from typer.testing import CliRunner

from tandem.cli.usage import register
from tandem.errors import CannotStart
from tandem.ledger.ledger import Ledger

app = typer.Typer()
register(app)
app.callback()(lambda: None)
run = CliRunner(env={"COLUMNS": "40"}).invoke


@pytest.fixture
def state(tmp_path: Path) -> Path:
    now = time.time()
    ledger = Ledger(tmp_path / "ledger.sqlite", days=90)
    ledger.write(row("a", at=now))
    ledger.write(row("b", at=now, client="opencode", completion_tokens=1980, decode_seconds=18.0))
    ledger.write(row("c", at=now, client="", status=503))
    ledger.write(row("old", at=now - 40 * DAY))
    ledger.close()
    return tmp_path


def test_the_table_has_a_line_a_group_and_the_sums(state: Path) -> None:
    result = run(app, ["usage", "--state", str(state), "--by", "client"])
    assert result.exit_code == 0
    lines = [
        re.split(r"\s{2,}", line.strip()) for line in result.output.splitlines() if " 0.30 s" in line or "all" in line
    ]
    assert lines == [
        ["-", "1", "1", "10", "4", "20", "10.0", "0.30 s"],
        ["openai-python", "1", "0", "10", "4", "20", "10.0", "0.30 s"],
        ["opencode", "1", "0", "10", "4", "1,980", "110.0", "0.30 s"],
        ["all", "3", "1", "30", "12", "2,020", "91.8"],
    ]


@pytest.mark.parametrize("words", [["--by", "client, model"], ["--by", "client", "--by", "model"]])
def test_several_groups_in_one_word_or_in_several(state: Path, words: list[str]) -> None:
    records = json.loads(run(app, ["usage", "--state", str(state), "--json", *words]).output)
    assert {(record["client"], record["model"]) for record in records} >= {("opencode", "m"), ("openai-python", "m")}
    assert "day" not in records[0]


def test_json_names_what_it_is_grouped_by(state: Path) -> None:
    result = run(app, ["usage", "--state", str(state), "--json", "--days", "60"])
    records = json.loads(result.output)
    assert sum(record["requests"] for record in records) == 4
    assert set(records[0]) >= {"day", "client", "model", "requests", "prompt_tokens", "completion_tokens"}


def test_the_documents_state_directory_is_found(tmp_path: Path) -> None:
    (tmp_path / "appliance.yaml").write_text("state: elsewhere\n")
    (tmp_path / "elsewhere").mkdir()
    ledger = Ledger(tmp_path / "elsewhere" / "ledger.sqlite", days=90)
    ledger.write(row("a", at=time.time()))
    ledger.close()
    result = run(app, ["usage", str(tmp_path / "appliance.yaml"), "--json", "--by", "model"])
    assert [(record["model"], record["requests"]) for record in json.loads(result.output)] == [("m", 1)]


def test_an_unknown_group_and_a_missing_ledger_are_told_in_words(state: Path, tmp_path: Path) -> None:
    wrong = run(app, ["usage", "--state", str(state), "--by", "planet"])
    assert wrong.exit_code == 2 and "known: day" in wrong.output
    missing = run(app, ["usage", "--state", str(tmp_path / "none")])
    assert isinstance(missing.exception, CannotStart)
