from __future__ import annotations

import time

import pytest
from msgspec import structs

from tandem.contract.messages import Narrate, Narrated, RoleRefusal, Undecided
from tandem.roles.narrator import MOST_CHARACTERS, MOST_TOKENS, SEEN, Narrator, first_line, instruct
from tandem.roles.small_model import SmallModel

TASKS = ("Fix the failing unit test in parser.py", "Name three rivers of Europe", "Translate a letter", "Plan a garden")
ASK = Narrate("r1", "Fix the failing unit test in parser.py", "Reading: 512 of 4,096 prompt tokens", "", 5.0)


def test_a_line_is_one_plain_sentence(smollm: SmallModel) -> None:
    said = Narrator(smollm).perform(ASK, time.monotonic() + 60)
    assert isinstance(said, Narrated) and said.id == "r1"
    assert 0 < len(said.line) <= MOST_CHARACTERS + 2 and "\n" not in said.line


def test_a_line_that_is_not_whole_in_time_is_not_told(smollm: SmallModel) -> None:
    said = Narrator(smollm).perform(ASK, time.monotonic())
    assert isinstance(said, Undecided) and said.reason is RoleRefusal.LATE


def goes_on(model: SmallModel) -> tuple[Narrate, str]:
    """A task behind whose first sentence the model, left alone, writes more; which one that is, is its own matter."""
    for task in TASKS:
        ask = structs.replace(ASK, task=task)
        whole = model.text_of(model.write(model.prompt(instruct(ask)), MOST_TOKENS, time.monotonic() + 60))
        if len(first_line(whole)) < len(whole.strip()) - 3:
            return ask, whole
    raise AssertionError("the model writes one sentence, whatever it is asked")


def test_nothing_is_written_behind_the_sentence_that_is_shown(
    smollm: SmallModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, whole = goes_on(smollm)
    narrator = Narrator(smollm)
    written: list[str] = []
    write = smollm.write
    monkeypatch.setattr(smollm, "write", lambda *args: written.append(smollm.text_of(write(*args))) or write(*args))
    said = narrator.perform(ask, time.monotonic() + 60)
    assert isinstance(said, Narrated) and said.line == first_line(whole)
    assert whole.startswith(written[0]) and len(written[0]) < len(whole)
    assert len(first_line(written[0])) >= len(written[0].strip()) - 3


def test_it_sees_the_beginning_of_the_task_and_the_end_of_the_thinking_and_no_more() -> None:
    ask = Narrate("r", "BEGIN " + "x" * 5000 + " HIDDEN", "Thinking", "HIDDEN " + "y" * 5000 + " END", 1.0)
    text = instruct(ask)
    assert "BEGIN" in text and "END" in text and "HIDDEN" not in text
    assert len(text) < 2 * SEEN + 500


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("Reading parser.py.", "Reading parser.py."),
        (' "Looking at the test." It is red.\nMore', "Looking at the test."),
        ("**Bold** <b>and</b>\tspaced \x07out", "Bold b and /b spaced out"),
        ("\n\n", ""),
        ("word " * 40, " ".join(["word"] * 18) + " …"),
    ],
)
def test_what_was_written_becomes_a_line(written: str, line: str) -> None:
    assert first_line(written) == line
