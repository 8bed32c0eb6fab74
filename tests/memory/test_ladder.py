"""The ladder: in order, no further than needed, and every rung measured."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from tandem.memory.ladder import Reclaim, Rung, Step, reclaim
from tandem.units import MIB


class Box:
    """So much is short, and each holder has so much."""

    def __init__(self, short: int, **held: int) -> None:
        self.short = short
        self.held = held

    def rungs(self) -> list[Rung]:
        return [Rung(name, lambda size, name=name: self.give(name, size)) for name in self.held]

    def give(self, name: str, size: int) -> int:
        given = min(size, self.held[name])
        self.held[name] -= given
        self.short -= given
        return given

    def walk(self) -> Reclaim:
        return reclaim(lambda: self.short, self.rungs(), count().__next__)


def test_rungs_are_asked_in_order_for_what_is_still_short_and_no_further() -> None:
    box = Box(10, store=4, anchors=0, end=8, stash=9)
    assert box.walk() == Reclaim(10, (Step("store", 10, 4, 1), Step("anchors", 6, 0, 1), Step("end", 6, 6, 1)), 0)
    assert box.held == {"store": 0, "anchors": 0, "end": 2, "stash": 9}


def test_nobody_is_asked_when_enough_is_free() -> None:
    assert Box(0, store=4).walk() == Box(-3, store=4).walk() == Reclaim(0, (), 0)


def test_what_the_system_has_back_is_its_word() -> None:
    """A rung that says it returned ten while the system got none of it does not end the walk."""
    done = reclaim(lambda: 10, [Rung("says so", lambda size: size), Rung("next", lambda size: 0)], lambda: 0.0)
    assert [step.rung for step in done.steps] == ["says so", "next"]
    assert done.short == 10


def test_a_walk_is_told_with_its_numbers() -> None:
    done = Reclaim(10 * MIB, (Step("store", 10 * MIB, 0, 0.1), Step("end", 10 * MIB, 4 * MIB, 0.0025)), 6 * MIB)
    assert done.sentence == "10.0 MiB were short: end 4.0 of 10.0 MiB in 2.5 ms; 6.0 MiB are still short"
    assert Reclaim(MIB, (), MIB).sentence == "1.0 MiB were short: nobody had any to give; 1.0 MiB are still short"


@given(st.integers(0, 100), st.lists(st.integers(0, 30), max_size=8))
def test_the_lowest_rungs_give_and_together_no_more_than_is_short(short: int, held: list[int]) -> None:
    box = Box(short, **{str(index): size for index, size in enumerate(held)})
    done = box.walk()
    assert done.returned == min(short, sum(held))
    assert done.short == max(0, short - sum(held))
    left = list(box.held.values())
    first = next((index for index, size in enumerate(left) if size), len(left))
    assert left[first + 1 :] == held[first + 1 :]  # above the first that has some left, all have all
