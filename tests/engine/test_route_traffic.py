"""A week of two clients: an agent whose prompts are 103,000 tokens at the median and who asks for 65,536, and a chat
whose prompts are 19,000 and who asks for 32,768. How many of their requests does a side window take?

The reports give medians and shares. The samples are the quantiles of log-normal distributions with those medians; the
chat's spread is the one at which 57 % of it lie under what a window of 65,536 leaves when all that was asked for must
have room (with 8,256 rows of the conductor's), the agent's is narrow, as its sessions are long.
"""

from __future__ import annotations

from math import exp
from statistics import NormalDist, median

import pytest
from route_facts import CLIENT, ruled, slot

from tandem.contract.plan import Routing
from tandem.engine.facts import Ask, Grid, Take, Wait, WaitKind
from tandem.engine.route import route

SIZE = 1_000
LONGEST = 220_000  # tokens of a prompt: clients fold their history before the window of 262,144 is full
CONDUCTOR = 8_192 + 64  # rows it kept for itself
WHOLE = ruled(side_min_room=1_000_000)  # a side slot must have room for all that is asked for


def sample(middle: int, spread: float) -> list[int]:
    """Prompt lengths, the same ones every time."""
    at = NormalDist().inv_cdf
    return [min(LONGEST, round(middle * exp(spread * at((place + 0.5) / SIZE)))) for place in range(SIZE)]


AGENT = [Ask(prompt, 65_536, 7_400) for prompt in sample(103_000, 0.22)]
CHAT = [Ask(prompt, 32_768 + CONDUCTOR, 6_700) for prompt in sample(19_000, 1.44)]


def share_on_side_slots(requests: list[Ask], window: int, rules: Routing) -> float:
    """Of requests that find slot 0 busy, what part a free side slot takes; the others wait for slot 0."""
    answers = [
        route(ask, [slot(0, holder=CLIENT), slot(1, window=window)], (), rules, Grid(2_048, 2_048), 60.0)
        for ask in requests
    ]
    assert all(answer.kind is WaitKind.TOO_LONG for answer in answers if isinstance(answer, Wait))
    return sum(isinstance(answer, Take) for answer in answers) / len(answers)


def test_the_samples_have_the_medians_of_the_reports() -> None:
    assert median(ask.prompt for ask in AGENT) == pytest.approx(103_000, rel=0.01)
    assert median(ask.prompt for ask in CHAT) == pytest.approx(19_000, rel=0.01)


@pytest.mark.parametrize(("window", "share"), [(65_536, 0.57), (8_192, 0.0)])
def test_the_chats_share_that_a_side_window_takes_when_all_of_it_must_have_room(window: int, share: float) -> None:
    assert share_on_side_slots(CHAT, window, WHOLE) == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize(("window", "share"), [(65_536, 0.75), (8_192, 0.0)])
def test_it_takes_more_of_them_when_max_tokens_may_be_cut(window: int, share: float) -> None:
    """That is what `side_min_room` is for; and a window of 8,192 still takes none."""
    assert share_on_side_slots(CHAT, window, ruled()) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("window", [8_192, 65_536])
@pytest.mark.parametrize("rules", [WHOLE, ruled()], ids=["whole", "cut"])
def test_the_agent_always_needs_slot_0(window: int, rules: Routing) -> None:
    assert share_on_side_slots(AGENT, window, rules) == 0.0
