"""The order in which the bench measures must not favour anything."""

from __future__ import annotations

import pytest

from bench.__main__ import parse
from bench.prompts import TOPICS, prompt
from bench.turns import LEVELS, in_turns


def test_over_an_even_number_of_turns_everything_comes_first_as_often_as_last() -> None:
    orders = [list(in_turns(LEVELS, number)) for number in range(parse([]).repetitions)]
    for level in LEVELS:
        assert sum(order.index(level) for order in orders) == len(orders) * (len(LEVELS) - 1) / 2


def test_every_prompt_is_another() -> None:
    assert len({prompt(topic) for topic in TOPICS}) == len(TOPICS)


def test_more_repetitions_than_there_are_prompts_for_are_refused() -> None:
    with pytest.raises(SystemExit):
        parse(["--repetitions", str(len(TOPICS))])


def test_quick_is_quick() -> None:
    options = parse(["--quick"])
    assert (options.repetitions, options.max_tokens) == (2, 32)
