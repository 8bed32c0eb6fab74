from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.conductor.status import GAP, MARK, OVER, QUIET, Doing, Line, StatusLines, without_lines


def test_lines_come_once_a_second_and_the_newest_of_those_held_back_follows() -> None:
    lines = StatusLines(is_on=True)
    assert lines.tell(Doing.QUEUED, "2 ahead", 10.0) == Line(f"{MARK}2 ahead")
    assert lines.tell(Doing.QUEUED, "1 ahead", 10.3) is None
    assert lines.tell(Doing.QUEUED, "0 ahead", 10.6) is None
    assert lines.pending(10.9) is None
    assert lines.pending(11.0) == Line(f"{MARK}0 ahead")
    assert lines.pending(20.0) is None


def test_what_is_seen_already_is_not_said_again() -> None:
    lines = StatusLines(is_on=True)
    lines.tell(Doing.QUEUED, "1 ahead", 0.0)
    assert lines.tell(Doing.QUEUED, "1 ahead", 5.0) is None
    assert lines.tell(Doing.QUEUED, "2 ahead", 5.0) is not None


def test_a_short_prompt_is_read_without_a_word() -> None:
    lines = StatusLines(is_on=True)
    assert lines.tell(Doing.READING, "0 of 40", 0.0) is None
    assert lines.end() is None
    assert lines.tell(Doing.READING, "0 of 4,000", 5.0) is None
    assert lines.tell(Doing.READING, "256 of 4,000", 5.0 + QUIET) == Line(f"{MARK}256 of 4,000")
    assert lines.end() == Line(MARK + OVER, done=True)
    assert lines.end() is None


def test_the_narrator_s_line_stands_until_ours_has_news_and_none_comes_after_the_end() -> None:
    lines = StatusLines(is_on=True)
    lines.tell(Doing.THINKING, "Thinking", 0.0)
    assert lines.narrate("Comparing two parsers.", 2.0) == Line(f"{MARK}Comparing two parsers.")
    assert lines.sentence == "Thinking"
    lines.end()
    assert lines.narrate("Too late.", 9.0) is None


def test_off_says_nothing_at_all() -> None:
    lines = StatusLines(is_on=False)
    assert lines.tell(Doing.QUEUED, "2 ahead", 0.0) is None
    assert lines.narrate("x", 5.0) is None and lines.pending(9.0) is None and lines.end() is None


@given(st.lists(st.tuples(st.sampled_from(Doing), st.integers(0, 3), st.floats(0, 2)), max_size=40))
def test_never_two_lines_within_a_second(steps: list[tuple[Doing, int, float]]) -> None:
    lines, now, times = StatusLines(is_on=True), 0.0, []
    for doing, number, pause in steps:
        now += pause
        said = (lines.pending(now), lines.tell(doing, f"{doing} {number}", now))
        times += [now for line in said if line is not None]
    assert all(later >= earlier + GAP for earlier, later in pairwise(times))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Hello", "Hello"),
        (f"{MARK}Reading: 5 of 9\n{MARK}Answering\n\nHello", "Hello"),
        (f"{MARK}Answering\nHello\n{MARK}is no line of ours", f"Hello\n{MARK}is no line of ours"),
        (f"{MARK}Answering", ""),
        ("\n\nHello", "\n\nHello"),
    ],
)
def test_lines_that_come_back_are_taken_out_and_nothing_else_is(text: str, answer: str) -> None:
    assert without_lines(text) == answer
