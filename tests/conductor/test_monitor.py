"""Loops against a checker that looks at every stretch, and against texts that repeat for a reason."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from natural_texts import TEXTS

from tandem.conductor.monitor import FEWEST_REPEATS, FEWEST_TOKENS, LONGEST_PERIOD, LoopWatch, is_runaway
from tandem.contract.messages import Loop


def needed(period: int) -> int:
    return max(FEWEST_TOKENS, FEWEST_REPEATS * period)


def by_the_book(tokens: list[int]) -> list[tuple[int, Loop]]:
    """Every loop with the number of tokens after which it is seen: all periods, looked up in the text itself."""
    seen, stretches, going_on = [], dict.fromkeys(range(1, LONGEST_PERIOD + 1), 0), 0
    for at, token in enumerate(tokens):
        for period in stretches:
            is_same = at >= period and tokens[at - period] == token
            stretches[period] = stretches[period] + 1 if is_same else period
        if going_on and stretches[going_on] == going_on:
            going_on = 0
        loops = [period for period, length in stretches.items() if length >= needed(period)]
        if loops and not going_on:
            going_on = loops[0]
            seen.append((at + 1, Loop(going_on, stretches[going_on] // going_on)))
    return seen


def told(tokens: list[int]) -> list[tuple[int, Loop]]:
    watch = LoopWatch()
    return [(at, loop) for at, token in enumerate(tokens, 1) if (loop := watch.follow([token])) is not None]


runs = st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=90), st.integers(1, 600))


@settings(max_examples=30, deadline=None)
@given(parts=st.lists(runs, min_size=1, max_size=4))
def test_loops_are_what_looking_at_every_stretch_finds(parts: list[tuple[list[int], int]]) -> None:
    tokens = [token for run, repeats in parts for token in run * max(1, min(repeats, 700 // len(run)))]
    assert told(tokens) == by_the_book(tokens)


@pytest.mark.parametrize("period", [1, 2, 7, 66, 67, 199, 200])
def test_a_loop_is_told_when_it_has_enough_runs_and_tokens_and_only_once(period: int) -> None:
    run = list(range(100, 100 + period))
    tokens = [1, 2, 3, *run * 1000][: 3 + needed(period) + 500]
    expected = Loop(period, needed(period) // period)
    assert told(tokens) == [(3 + needed(period), expected)]


def test_a_run_longer_than_the_longest_period_is_no_loop() -> None:
    assert told(list(range(LONGEST_PERIOD + 1)) * 10) == []


def test_a_loop_that_was_left_and_comes_back_is_told_again_and_the_last_one_stays() -> None:
    watch = LoopWatch()
    assert watch.follow([1, 2] * 300) == Loop(2, 256)
    assert watch.seen == Loop(2, 300)
    assert watch.follow([1, 2] * 100) is None
    assert watch.seen == Loop(2, 400)
    assert watch.follow(range(10, 500)) is None
    assert watch.seen == Loop(2, 400)
    assert watch.follow([1, 2] * 300) == Loop(2, 256)


def test_a_long_text_moves_the_window_and_loses_nothing() -> None:
    tokens = [n * n % 9973 for n in range(20_000)] + [5, 6, 7] * 200
    assert told(tokens) == [(20_000 + 512, Loop(3, 170))]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    "pattern", [r"\w+|\s+|[^\w\s]", r"\w+|\s|[^\w\s]{1,4}", r"(?s)."], ids=["words", "groups", "letters"]
)
def test_texts_that_repeat_for_a_reason_are_no_loops(name: str, pattern: str) -> None:
    """However finely they are cut into tokens, down to single letters."""
    pieces = re.findall(pattern, TEXTS[name])
    ids = {piece: n for n, piece in enumerate(dict.fromkeys(pieces))}
    assert told([ids[piece] for piece in pieces]) == []


@pytest.mark.parametrize(
    "line", ["I am sorry. ", "the the ", "| | | |\n", "    return None\n", "And then he said that he was sure of it. "]
)
def test_what_never_stops_is_a_loop_whatever_it_looks_like(line: str) -> None:
    ids = [ord(character) for character in "Here it comes: " + line * 500]
    (_, loop), *others = told(ids)
    assert others == []
    assert len(line) % loop.period == 0


def test_thinking_is_a_runaway_when_it_takes_the_answers_room() -> None:
    assert [is_runaway(n, 100) for n in (0, 74, 75, 100)] == [False, False, True, True]
