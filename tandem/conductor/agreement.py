"""How far those who answer the conductor's questions agree, and whether their probabilities mean what they say. Pure.

Nobody knows the right answer: each answerer is held against each other one, on the messages that both were asked about.
The big model's word tells no probability, so it is only ever what others are held against.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Final

from msgspec import Struct

from tandem.conductor.verdicts import Verdict

BINS: Final = 10
NO_PROBABILITY: Final = "big-model"


class Bin(Struct, frozen=True):
    """Answers of one stretch of confidence, `low` to `low + 1 / BINS`."""

    low: float
    number: int
    confidence: float  # mean
    agreed: float  # share


class Calibration(Struct, frozen=True):
    """`error` is the expected calibration error: how far confidence and agreement lie apart, weighed by answers."""

    bins: tuple[Bin, ...]  # those that hold any
    error: float


class Labelled(Struct, frozen=True):
    """Of the messages that the other one gave this label."""

    label: str
    number: int
    agreed: int


class Agreement(Struct, frozen=True):
    """Of `by` with `other` on one question. `calibration` is of `by`."""

    question: str
    by: str
    other: str
    number: int
    agreed: int
    labels: tuple[Labelled, ...]
    calibration: Calibration

    @property
    def share(self) -> float:
        return self.agreed / self.number


Answered = dict[str, Verdict]  # one message's, by answerer


def gather(verdicts: Iterable[Verdict]) -> dict[str, dict[str, Answered]]:
    """By question, then by request. The last word counts where somebody answered twice."""
    found: dict[str, dict[str, Answered]] = defaultdict(lambda: defaultdict(dict))
    for verdict in verdicts:
        found[verdict.question][verdict.request][verdict.by] = verdict
    return {question: dict(requests) for question, requests in found.items()}


def agreements(verdicts: Iterable[Verdict]) -> list[Agreement]:
    """Of every pair that was asked about the same messages, by question."""
    result = []
    for question, requests in sorted(gather(verdicts).items()):
        answerers = sorted({by for answered in requests.values() for by in answered})
        for by, other in permutations(answerers, 2):
            pairs = [(each[by], each[other]) for each in requests.values() if by in each and other in each]
            if pairs and by != NO_PROBABILITY:
                result.append(_agreement(question, by, other, pairs))
    return result


def _agreement(question: str, by: str, other: str, pairs: Sequence[tuple[Verdict, Verdict]]) -> Agreement:
    labels: dict[str, list[bool]] = defaultdict(list)
    for mine, theirs in pairs:
        labels[theirs.answer].append(mine.answer == theirs.answer)
    return Agreement(
        question,
        by,
        other,
        number=len(pairs),
        agreed=sum(map(sum, labels.values())),
        labels=tuple(Labelled(label, len(each), sum(each)) for label, each in sorted(labels.items())),
        calibration=calibrate([(mine.confidence, mine.answer == theirs.answer) for mine, theirs in pairs]),
    )


def calibrate(answers: Sequence[tuple[float, bool]]) -> Calibration:
    """`answers` are confidences, each with whether the answer was agreed with; at least one."""
    held: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for confidence, agreed in answers:
        held[min(BINS - 1, int(confidence * BINS))].append((confidence, agreed))
    bins = tuple(
        Bin(number / BINS, len(each), _mean([c for c, _ in each]), _mean([float(agreed) for _, agreed in each]))
        for number, each in sorted(held.items())
    )
    error = sum(each.number * abs(each.confidence - each.agreed) for each in bins) / len(answers)
    return Calibration(bins, error)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
