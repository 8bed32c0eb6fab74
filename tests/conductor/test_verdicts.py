from __future__ import annotations

import stat
from pathlib import Path

from tandem.conductor.verdicts import FILE, Verdicts, read_verdicts, verdict_of
from tandem.contract.messages import Answer, Question, QuestionKind

QUESTION = Question("class", QuestionKind.CHOICE, "SECRET QUESTION?", (("talk", "SECRET"), ("code", "")))
ANSWER = Answer("class", (("talk", 0.25), ("code", 0.75)))


def test_what_was_said_is_read_back_without_any_text(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path)
    first = verdict_of("r1", "decider", "m", QUESTION, ANSWER, 0.12)
    second = verdict_of("r1", "shadow-reader", "n", QUESTION, ANSWER, 0.5)
    verdicts.write(first)
    verdicts.write(second)
    assert read_verdicts(tmp_path) == [first, second]
    assert (first.answer, first.confidence, first.probabilities) == ("code", 0.75, {"talk": 0.25, "code": 0.75})
    file = tmp_path / FILE
    assert "SECRET" not in file.read_text() and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_grows_only_so_far_and_the_one_before_it_is_kept(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path, most=1000)
    said = [verdict_of(f"r{n}", "decider", "m", QUESTION, ANSWER, 0.1) for n in range(20)]
    for each in said:
        verdicts.write(each)
    kept = read_verdicts(tmp_path)
    assert 4 <= len(kept) < 20 and kept == said[-len(kept) :]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3000


def test_a_line_that_a_crash_cut_is_left_out(tmp_path: Path) -> None:
    assert read_verdicts(tmp_path) == []
    Verdicts(tmp_path).write(whole := verdict_of("r1", "decider", "m", QUESTION, ANSWER, 0.12))
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"at": 1, "requ')
    assert read_verdicts(tmp_path) == [whole]
