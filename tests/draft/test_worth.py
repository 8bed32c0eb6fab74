"""Whether a drafter pays: what brings nothing is nearly never asked, and what starts to bring something is found."""

from __future__ import annotations

import pytest

from tandem.draft.worth import Worth


def asked_in(worth: Worth, rounds: int, saved: float, cost: float, round_ms: float = 15.0) -> int:
    asked = 0
    for _ in range(rounds):
        if worth.is_due(round_ms):
            asked += 1
            worth.learn(saved, cost)
    return asked


@pytest.mark.parametrize("cost", [0.5, 5.0, 50.0])
def test_asking_what_does_not_pay_takes_a_hundredth_of_the_time(cost: float) -> None:
    worth = Worth()
    asked_in(worth, 50, 0.0, cost)
    assert not worth.pays
    rounds = 40_000
    assert 0 < asked_in(worth, rounds, 0.0, cost) * cost <= 0.011 * rounds * 15.0


def test_what_pays_is_asked_every_round_and_what_starts_to_pay_is_found() -> None:
    worth = Worth()
    assert asked_in(worth, 100, 6.0, 5.0) == 100
    asked_in(worth, 2000, 0.0, 5.0)
    assert not worth.pays
    asked_in(worth, 500, 20.0, 5.0)
    assert worth.pays and asked_in(worth, 100, 20.0, 5.0) == 100


def test_what_costs_next_to_nothing_is_always_asked() -> None:
    worth = Worth()
    assert asked_in(worth, 1000, 0.0, 0.1) == 1000


def test_a_slow_first_ask_is_no_verdict() -> None:
    worth = Worth()
    worth.learn(0.0, 900.0)
    assert asked_in(worth, 100, 6.0, 5.0) == 100
