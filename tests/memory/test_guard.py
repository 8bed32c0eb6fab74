"""When the guard acts: memory under the hard floor that is nearly gone, or soon will be. No clock, no sleep."""

from __future__ import annotations

import pytest

from tandem.memory.guard import SETTLE, Guard

FLOOR = 1000


@pytest.mark.parametrize(
    ("readings", "acts"),
    [
        ([2000, 1001, 1000], False),  # never under the floor
        ([999, 999, 999], False),  # under it, and standing
        ([999, 900, 800], False),  # 100 a second: gone in eight
        ([2000, 900], True),  # 1,100 a second: gone in one
        ([999, 700], True),  # 299 a second: gone in 2.3
        ([250, 250], False),  # a quarter, and standing
        ([249], True),  # under a quarter, however slowly
        ([500, 999], False),  # it rises
    ],
)
def test_it_acts_only_when_there_is_no_time_for_another_look(readings: list[int], acts: bool) -> None:
    guard = Guard()
    answers = [guard.must_act(available, FLOOR, float(second)) for second, available in enumerate(readings)]
    assert answers[-1] is acts
    assert not any(answers[:-1])


def test_after_an_act_it_waits_until_that_can_be_seen() -> None:
    guard = Guard()
    assert guard.must_act(100, FLOOR, 0.0)
    guard.acted(0.0)
    assert not guard.must_act(50, FLOOR, SETTLE / 2)
    assert guard.must_act(40, FLOOR, SETTLE)
