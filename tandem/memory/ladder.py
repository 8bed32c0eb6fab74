"""The pressure ladder: who gives memory back, in order, until enough is free. Pure but for what the rungs do.

A reclaim is one walk from the first rung. A rung is asked for what is still short after the one before it, so nobody
gives more than is needed for want of a second look, and the walk ends as soon as enough is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tandem.units import MIB


@dataclass(frozen=True, slots=True)
class Rung:
    """Something that can be given back. `give_back` is asked for bytes and returns how many it returned; all it has
    when it cannot give a part, 0 when it has nothing."""

    name: str
    give_back: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Step:
    """What one rung did."""

    rung: str
    asked: int  # bytes
    returned: int  # bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class Reclaim:
    """One walk. Every rung that was asked is among the steps, in order, also those that had nothing."""

    asked: int  # bytes short before it
    steps: tuple[Step, ...]
    short: int  # bytes still short after it; 0 when enough is free

    @property
    def returned(self) -> int:
        return sum(step.returned for step in self.steps)

    @property
    def sentence(self) -> str:
        """With numbers, for the log and for people."""
        gave = [
            f"{step.rung} {step.returned / MIB:,.1f} of {step.asked / MIB:,.1f} MiB in {step.seconds * 1e3:.1f} ms"
            for step in self.steps
            if step.returned
        ]
        end = f"{self.short / MIB:,.1f} MiB are still short" if self.short else "enough is free"
        return f"{self.asked / MIB:,.1f} MiB were short: {', '.join(gave) or 'nobody had any to give'}; {end}"


def reclaim(short: Callable[[], int], rungs: Iterable[Rung], clock: Callable[[], float]) -> Reclaim:
    """Walk down until `short()`, the bytes that are missing now, is no longer positive.

    It is asked anew after every rung: what the system has back is its word, not ours.
    """
    asked = left = max(0, short())
    steps: list[Step] = []
    for rung in rungs:
        if left <= 0:
            break
        began = clock()
        returned = rung.give_back(left)
        steps.append(Step(rung.name, left, returned, clock() - began))
        if returned:
            left = max(0, short())
    return Reclaim(asked, tuple(steps), left)
