"""Decides class, package and effort of a request, from the answers that came in time. Pure.

Three stages, each asked only what the one before left open: A a decider, B the big model itself, C the default.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tandem.conductor.questions import question_of
from tandem.contract.messages import Answer, Question
from tandem.contract.plan import Asked, Conducting, PackagePlan


class Stage(StrEnum):
    DECIDER = "A"
    MODEL = "B"
    DEFAULT = "C"


@dataclass(frozen=True, slots=True)
class Report:
    """What a stage made of its questions: `class=code 0.91`, or why it said nothing. Never a text of a user."""

    outcome: str = ""
    seconds: float | None = None  # None: it was not asked


NOT_ASKED: Final = Report()


@dataclass(frozen=True, slots=True)
class Decision:
    """What a message is, and what follows. `effort` is a name, `thinking` its most tokens; None: as the model likes."""

    kind: str  # class
    package: str
    effort: str
    stage: Stage  # the last one that had to answer
    shape: PackagePlan
    thinking: int | None
    decider: Report
    model: Report


@dataclass(slots=True)
class Deciding:
    """One message on its way through the stages."""

    conducting: Conducting
    _answers: dict[str, Answer] = field(default_factory=dict)
    _reports: dict[Stage, Report] = field(default_factory=dict)

    @property
    def open(self) -> tuple[Question, ...]:
        """What decides something and is not answered yet."""
        return tuple(
            question_of(asked)
            for asked in self.conducting.questions
            if asked.decides != "nothing" and asked.id not in self._answers
        )

    @property
    def all(self) -> tuple[Question, ...]:
        """A decider answers them in one pass, those that decide nothing for the journal."""
        return tuple(map(question_of, self.conducting.questions))

    def take(self, stage: Stage, answers: Iterable[Answer], seconds: float, why_none: str = "") -> None:
        """What a stage said after `seconds`. A decider's answer counts when it is sure enough."""
        given = list(answers)
        least = self.conducting.confidence if stage is Stage.DECIDER else 0.0
        self._answers |= {each.question: each for each in given if each.confidence >= least}
        said = [_told(each) + (" unsure" if each.confidence < least else "") for each in given]
        self._reports[stage] = Report(", ".join(said) or why_none, seconds)

    def decide(self) -> Decision:
        """With what was answered so far; the default for the rest."""
        conducting = self.conducting
        kind = self._named("class", conducting.classes) or conducting.default
        plan = conducting.classes[kind]
        package = self._named("package", conducting.packages) or plan.package
        effort = self._named("effort", conducting.efforts) or plan.effort
        return Decision(
            kind,
            package,
            effort or "",
            self._stage,
            conducting.packages[package],
            conducting.efforts[effort] if effort is not None else None,
            self._reports.get(Stage.DECIDER, NOT_ASKED),
            self._reports.get(Stage.MODEL, NOT_ASKED),
        )

    @property
    def _stage(self) -> Stage:
        if self.open or not self._answers:
            return Stage.DEFAULT
        return Stage.MODEL if Stage.MODEL in self._reports else Stage.DECIDER

    def _named(self, what: str, known: Iterable[str]) -> str | None:
        """The name that the last answered question about `what` stands for."""
        names = [_stands_for(asked, self._answers[asked.id]) for asked in self._answered(what)]
        return next((name for name in reversed(names) if name in known), None)

    def _answered(self, what: str) -> list[Asked]:
        return [asked for asked in self.conducting.questions if asked.decides == what and asked.id in self._answers]


def _stands_for(asked: Asked, answer: Answer) -> str:
    return asked.then.get(answer.label, answer.label)


def _told(answer: Answer) -> str:
    return f"{answer.question}={answer.label} {answer.confidence:.2f}"
