"""What counts when roles work beside an answer: pairs of one turn, and texts that stay the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench import roles
from bench.prompts import TOPICS
from bench.roles import WAYS, Roles, Sample, parse, summarize, table
from bench.turns import in_turns
from tandem.contract.messages import AskDecider, Narrate


def sample(way: str, rate: float, **more: object) -> Sample:
    return replace(Sample(way, 100, 100 / rate, 20.0, (0.1, 0.2, 0.3)), **more)  # type: ignore[arg-type]


def test_the_ratio_is_of_turns_not_of_medians() -> None:
    """The machine grew twice as slow from turn to turn; the roles cost a tenth in each."""
    alone = [sample("alone", rate) for rate in (100, 50, 25)]
    beside = [sample("roles", rate * 0.9, lines=2, decisions=4, role_cpu=1.0) for rate in (100, 50, 25)]
    found = summarize(beside, alone)
    assert found.ratio == pytest.approx(0.9) and found.rate == pytest.approx(45)
    assert (found.lines, found.decisions, found.role_cpu) == (6, 12, pytest.approx(0.05))
    assert (found.first_token, found.worst_first_token) == (0.2, 0.3)
    assert summarize(alone, alone).ratio == 1.0


def test_another_text_is_told() -> None:
    alone = [sample("alone", 100)]
    same = table([summarize([sample("roles", 95)], alone)])
    other = table([summarize([sample("roles", 95, different=(1, 3))], alone)])
    assert "!" not in same and "! roles: 2 answers" in other


def test_every_way_comes_first_as_often_as_last_and_no_prompt_comes_twice() -> None:
    options = parse([])
    orders = [list(in_turns(WAYS, turn)) for turn in range(options.turns)]
    assert options.turns >= 5 and options.turns % 2 == 0
    for way in WAYS:
        assert sum(order.index(way) for order in orders) == len(orders) * (len(WAYS) - 1) / 2
    assert options.turns * 2 * roles.REQUESTS <= len(TOPICS)
    with pytest.raises(SystemExit):
        parse(["--turns", "7"])


class Heard(Roles):
    """Roles of no appliance, which answer every second question in time."""

    def __init__(self, enough: Callable[[int], None]) -> None:
        self.asked: list[tuple[str, Narrate | AskDecider]] = []
        self.enough = enough

    async def ask(self, name: str, message: Narrate | AskDecider) -> bool:
        self.asked.append((name, message))
        self.enough(len(self.asked))
        return len(self.asked) % 2 == 1


def test_the_narrator_is_asked_at_the_gateway_s_pace_about_what_was_written_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(roles.asyncio, "sleep", sleep)
    heard, said = ["first"], Counter[bool]()

    def enough(asked: int) -> None:
        heard.append(f"answer {asked}")
        if asked == 3:
            raise asyncio.CancelledError

    working = Heard(enough)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(working.narrate(heard, said))
    assert slept == [roles.FIRST, roles.EVERY, roles.EVERY] and said == {True: 1, False: 1}
    lines = [message for name, message in working.asked if name == "narrator" and isinstance(message, Narrate)]
    assert [line.heard for line in lines] == ["first", "answer 1", "answer 2"]
    assert all(line.within == roles.WITHIN for line in lines)
