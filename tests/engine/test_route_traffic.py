"""A week of two clients: how many of their requests does a side window take?"""

from __future__ import annotations

from statistics import median

import pytest
from route_facts import CLIENT, ruled, slot

from tandem.contract.plan import Routing
from tandem.engine.facts import Ask, Grid, Take, Wait, WaitKind
from tandem.engine.route import route
from tandem.engine.traffic import AGENT, CHAT, lengths

SIZE = 1_000
WHOLE = ruled(side_min_room=1_000_000)  # a side slot must have room for all that is asked for
AGENTS = [Ask(prompt, AGENT.max_tokens, AGENT.head) for prompt in lengths(AGENT, SIZE)]
CHATS = [Ask(prompt, CHAT.max_tokens, CHAT.head) for prompt in lengths(CHAT, SIZE)]


def share_on_side_slots(requests: list[Ask], window: int, rules: Routing) -> float:
    """Of requests that find slot 0 busy, what part a free side slot takes; the others wait for slot 0."""
    answers = [
        route(ask, [slot(0, holder=CLIENT), slot(1, window=window)], (), rules, Grid(2_048, 2_048), 60.0)
        for ask in requests
    ]
    assert all(answer.kind is WaitKind.TOO_LONG for answer in answers if isinstance(answer, Wait))
    return sum(isinstance(answer, Take) for answer in answers) / len(answers)


def test_the_samples_have_the_medians_of_the_reports() -> None:
    assert median(ask.prompt for ask in AGENTS) == pytest.approx(103_000, rel=0.01)
    assert median(ask.prompt for ask in CHATS) == pytest.approx(19_000, rel=0.01)


@pytest.mark.parametrize(("window", "share"), [(65_536, 0.57), (8_192, 0.0)])
def test_the_chats_share_that_a_side_window_takes_when_all_of_it_must_have_room(window: int, share: float) -> None:
    assert share_on_side_slots(CHATS, window, WHOLE) == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize(("window", "share"), [(65_536, 0.75), (8_192, 0.0)])
def test_it_takes_more_of_them_when_max_tokens_may_be_cut(window: int, share: float) -> None:
    """That is what `side_min_room` is for; and a window of 8,192 still takes none."""
    assert share_on_side_slots(CHATS, window, ruled()) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("window", [8_192, 65_536])
@pytest.mark.parametrize("rules", [WHOLE, ruled()], ids=["whole", "cut"])
def test_the_agent_always_needs_slot_0(window: int, rules: Routing) -> None:
    assert share_on_side_slots(AGENTS, window, rules) == 0.0
