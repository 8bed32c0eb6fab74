from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem.cli import app
from tandem.conductor.verdicts import Verdict, Verdicts
from tandem.errors import CannotStart


def verdict(request: str, by: str, answer: str, confidence: float) -> Verdict:
    return Verdict(1.0, request, "class", "choice", by, "m", answer, confidence, {answer: confidence}, 0.1)


@pytest.fixture
def appliance(tmp_path: Path) -> Path:
    document = tmp_path / "appliance.yaml"
    document.write_text("profile: smollm2-135m\n")
    return document


@pytest.fixture
def filled(appliance: Path) -> Path:
    (appliance.parent / ".tandem").mkdir()
    verdicts = Verdicts(appliance.parent / ".tandem")
    for request, said, model in (("1", "code", "code"), ("2", "code", "talk"), ("3", "talk", "talk")):
        verdicts.write(verdict(request, "decider", said, 0.75), verdict(request, "big-model", model, 1.0))
    return appliance


def test_the_report_says_who_agrees_and_how_sure_they_are(filled: Path) -> None:
    said = CliRunner().invoke(app, ["shadow", "report", "--appliance", str(filled)])
    assert said.exit_code == 0, said.output
    assert "decider" in said.stdout and "67%" in said.stdout and "talk 1/2" in said.stdout
    assert "off by 0.08; sure of 0.7: 67% of 3" in said.stdout
    (record,) = json.loads(CliRunner().invoke(app, ["shadow", "report", "--appliance", str(filled), "--json"]).stdout)
    assert (record["by"], record["other"], record["number"], record["agreed"]) == ("decider", "big-model", 3, 2)
    assert record["calibration"]["error"] == pytest.approx(0.75 - 2 / 3)


def test_an_export_is_for_labelling(filled: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    said = CliRunner().invoke(app, ["shadow", "export", str(file), "--appliance", str(filled)])
    assert said.exit_code == 0 and "3 lines" in said.stdout
    first = json.loads(file.read_text().splitlines()[0])
    assert (first["request"], first["question"], first["label"]) == ("1", "class", "")
    assert first["answers"]["decider"]["answer"] == "code" and first["answers"]["big-model"]["confidence"] == 1.0


def test_a_journal_with_nothing_to_compare_is_told_in_words(appliance: Path) -> None:
    said = CliRunner().invoke(app, ["shadow", "report", "--appliance", str(appliance)])
    assert isinstance(said.exception, CannotStart) and "conductor: on" in str(said.exception.help)
