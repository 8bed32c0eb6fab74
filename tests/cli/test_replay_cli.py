"""`tandem replay` as it is typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tandem.cli import app
from tandem.errors import CannotStart

PROJECT = Path(__file__).parents[2]
LINE = '{"id":"%s","at":%s,"prompt":[["head",600],["%s",300]],"max_tokens":100,"head_end":700,"client":"me"}\n'


@pytest.fixture(autouse=True)
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("profiles", "residency"):
        shutil.copytree(PROJECT / name, tmp_path / name)
    shutil.copy(PROJECT / "appliance.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tandem(*words: str) -> str:
    result = CliRunner().invoke(app, ["replay", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_trace_is_played_on_the_slots_of_the_document() -> None:
    Path("trace.jsonl").write_text(LINE % ("a", 0, "x") + "\n" + LINE % ("b", 0, "y"))
    answer = json.loads(tandem("trace.jsonl", "--set", "slots.count=2", "--read", "300", "--json"))
    mine = answer["clients"][0]
    assert (mine["client"], mine["requests"], mine["waited"]) == ("me", 2, 0.0)
    assert len(answer["slots"]) == 2 and all(0 < share <= 1 for share in answer["slots"])
    assert (answer["waits"], answer["yielded"]) == ({}, 0)
    one = json.loads(tandem("trace.jsonl", "--set", "slots.count=1", "--read", "300", "--json"))
    assert one["waits"] == {"busy": 1} and one["clients"][0]["waited_longest"] > 3.0


def test_rules_and_windows_are_those_of_the_document(documents: Path) -> None:
    Path("trace.jsonl").write_text(LINE % ("a", 0, "x") + LINE % ("b", 1, "y"))
    told = tandem("trace.jsonl", "--profile", "qwen3.8-27b", "--set", "slots.side_window=1024")
    assert "slots of 262,144, 1,024 tokens; reading 1,000, writing 45 tok/s" in told
    assert "requests that waited: none" in told and "slots busy: " in told
    assert "requests that waited: too_long 1" in tandem(
        *("trace.jsonl", "--profile", "qwen3.8-27b", "--set", "slots.side_window=999")
    )


def test_made_up_traffic_can_be_written_changed_and_played(documents: Path) -> None:
    made = tandem("--make")
    lines = made.splitlines()
    assert len(lines) == 2_200 and json.loads(lines[0])["client"] in ("opencode", "open-webui")
    Path("few.jsonl").write_text("\n".join(line for line in lines[:60]))
    assert json.loads(tandem("few.jsonl", "--profile", "qwen3.8-27b", "--json"))["clients"][-1]["requests"] == 60


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"id": "a"}\n', "trace.jsonl:1: Object missing required field `at`"),
        (LINE % ("a", 0, "x") + "oh no\n", "trace.jsonl:2: JSON is malformed: invalid character (byte 0)"),
        (LINE % ("a", -1, "x"), "trace.jsonl:1: Expected `float` >= 0.0 - at `$.at`"),
        ((LINE % ("a", 0, "x")) * 2, "trace.jsonl: two requests have the same id"),
        ((LINE % ("a", 0, "x")).replace("300", "9000"), "a: its prompt of 9,600 tokens has no room in slot 0"),
    ],
    ids=["a field is missing", "no JSON", "before it began", "two of one id", "too long"],
)
def test_what_is_no_trace_is_told_with_its_line(text: str, sentence: str) -> None:
    Path("trace.jsonl").write_text(text)
    with pytest.raises(CannotStart) as raised:
        tandem("trace.jsonl")
    assert str(raised.value).startswith(sentence)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(CannotStart, match=r"nowhere\.jsonl cannot be read: No such file or directory"):
        tandem("nowhere.jsonl")
