"""`tandem verify` and `tandem calibrate`: what they print and how they end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem.cli import app
from tandem.cli.trying import _json, _lines
from tandem.engine.verify import Difference, Mode, Outcome, Report
from tandem.engine.verify_turns import Kept

HALF = Mode("half-right", 2)


def outcome(*differences: Difference, failures: tuple[str, ...] = ()) -> Outcome:
    return Outcome(HALF, 1200, 400, 5200, 4800, 800, 9.0, differences, failures, requests=40, together=2)


def difference(lead: float) -> Difference:
    return Difference("code 3, greedy", HALF, 17, expected=5, written=6, gap=0.25, lead=lead, tolerance=0.01)


@pytest.mark.parametrize(
    ("one", "passed", "says"),
    [
        (outcome(), True, "the same in every mode, token for token"),
        (outcome(difference(0.005)), True, "the same but for near ties"),
        (outcome(difference(0.25)), False, "not the same: guesses, or requests beside each other, change what is"),
        (outcome(failures=("code 3, greedy: the engine could not go on",)), False, "\nrequests failed"),
        (outcome(failures=("code 3, greedy: the engine could not go on",)), False, "FAILED in half-right, 2 slots"),
    ],
)
def test_a_report_in_words(one: Outcome, passed: bool, says: str) -> None:
    report = Report(40, 14, (one,))
    text = "\n".join(_lines(report))
    assert report.passed is passed and says in text
    assert "1,200 tokens in    400 rounds, 13.0 rows and 2.00 accepted a round, 800 of 4,800 guesses right" in text
    assert json.loads(_json(report))["passed"] is passed


def test_a_difference_names_its_place_and_how_close_it_was() -> None:
    (line,) = [line for line in _lines(Report(1, 1, (outcome(difference(0.25)),))) if line.startswith("DIFFERENT")]
    assert line == (
        "DIFFERENT: `code 3, greedy` in half-right, 2 slots, token 17: 6 instead of 5, which led by 0.25 "
        "(the two best by 0.25; rounding is 0.01)"
    )


def test_it_says_of_how_much_and_what_was_not_tried() -> None:
    back = replace(outcome(), mode=Mode("none", 4, Kept.DISK), requests=3, together=1)
    nothing = replace(back, requests=0, together=0)
    first, *lines, last = _lines(Report(40, 1, (outcome(), back, nothing)))
    assert first == "40 requests in each of 1 modes, 1 conversations in each of 2 in which they come back"
    assert [line.rpartition(": ")[2] for line in lines] == [
        "equal",
        "equal, but no two of them together",
        "equal, as nothing was asked",
    ]
    assert last.endswith("token for token; 2 modes were not tried, which more `--prompts` may do")


def test_rows_of_a_cache_are_blamed_where_only_they_were_wrong() -> None:
    mode = Mode("none", 2, Kept.MEMORY)
    wrong = replace(outcome(replace(difference(0.25), mode=mode)), mode=mode)
    assert list(_lines(Report(40, 14, (outcome(), wrong))))[-1] == (
        "not the same: rows that conversations come back to change what is written"
    )


def test_prices_nobody_would_read_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "appliance.yaml").write_text("draft: off\n")
    result = CliRunner().invoke(app, ["calibrate"])
    assert "drafting is off" in str(result.exception)


@pytest.mark.wire
def test_the_default_model_is_verified_and_remembers_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "PYTHONUNBUFFERED"):
        monkeypatch.setenv(name, "")  # the command sets them for good; they are put back behind this test
    (tmp_path / "appliance.yaml").write_text("engine: {threads: 1}\n")
    result = CliRunner().invoke(app, ["verify", "--prompts", "1", "--tokens", "6", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout[result.stdout.index("{") :])
    assert report["passed"] and len(report["outcomes"]) == 22
    assert all(each["together"] == min(2, each["mode"]["slots"]) for each in report["outcomes"])
    assert not (tmp_path / ".tandem" / "draft").exists() and not (tmp_path / ".tandem" / "cache").exists()
