"""`tandem verify` and `tandem calibrate`: what they print and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem.cli import app
from tandem.cli.trying import _json, _lines
from tandem.engine.verify import Difference, Mode, Outcome, Report

HALF = Mode("half-right", 2)


def outcome(*differences: Difference, failures: tuple[str, ...] = ()) -> Outcome:
    return Outcome(HALF, 1200, 400, 5200, 4800, 800, 9.0, differences, failures)


def difference(lead: float) -> Difference:
    return Difference("code 3, greedy", HALF, 17, expected=5, written=6, gap=0.25, lead=lead, tolerance=0.01)


@pytest.mark.parametrize(
    ("one", "passed", "says"),
    [
        (outcome(), True, "the same in every mode, token for token"),
        (outcome(difference(0.005)), True, "the same but for near ties"),
        (outcome(difference(0.25)), False, "not the same"),
        (outcome(failures=("code 3, greedy: the engine could not go on",)), False, "FAILED in half-right, 2 slots"),
    ],
)
def test_a_report_in_words(one: Outcome, passed: bool, says: str) -> None:
    report = Report(40, (one,))
    text = "\n".join(_lines(report))
    assert report.passed is passed and says in text
    assert "1,200 tokens in    400 rounds, 13.0 rows and 2.00 accepted a round, 800 of 4,800 guesses right" in text
    assert json.loads(_json(report))["passed"] is passed


def test_a_difference_names_its_place_and_how_close_it_was() -> None:
    (line,) = [line for line in _lines(Report(1, (outcome(difference(0.25)),))) if line.startswith("DIFFERENT")]
    assert line == (
        "DIFFERENT: `code 3, greedy` in half-right, 2 slots, token 17: 6 instead of 5, which led by 0.25 "
        "(the two best by 0.25; rounding is 0.01)"
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
    assert not (tmp_path / ".tandem" / "draft").exists() and not (tmp_path / ".tandem" / "cache").exists()
