"""The figures that docs/answers.md promises are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from tandem.conductor.monitor import FEWEST_REPEATS, FEWEST_TOKENS, LONGEST_PERIOD, RUNAWAY_SHARE
from tandem.gateway.fields import NumTop
from tandem.gateway.job import MOST_KEPT
from tandem.gateway.openai import EFFORTS

PAGE = (Path(__file__).parents[2] / "docs" / "answers.md").read_text()
WORDS = " ".join(PAGE.split())


def test_what_each_effort_may_think() -> None:
    table = re.findall(r"^\| `(\w+)` \| ([\d,]+) \|$", PAGE, re.MULTILINE)
    assert {word: int(tokens.replace(",", "")) for word, tokens in table} == EFFORTS


def test_what_is_never_for_thinking() -> None:
    assert f"A quarter of the answer's room, {MOST_KEPT:,} tokens at most" in WORDS


def test_when_a_stretch_is_a_loop() -> None:
    assert (
        f"of {LONGEST_PERIOD} tokens at most, is a loop once it is {FEWEST_REPEATS} runs and {FEWEST_TOKENS}" in WORDS
    )
    assert RUNAWAY_SHARE == 0.75 and "three quarters of the answer's room" in WORDS


def test_how_many_candidates() -> None:
    _, meta = get_args(NumTop)
    assert WORDS.count(f"from {meta.ge} to {meta.le}") == 2
