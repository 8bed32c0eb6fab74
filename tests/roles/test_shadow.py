from __future__ import annotations

import pytest

from tandem.conductor.verdicts import Verdict
from tandem.contract.messages import Answer, Observe, Question, QuestionKind
from tandem.roles.deciding import Decision
from tandem.roles.shadow import ShadowReader

QUESTION = Question("class", QuestionKind.CHOICE, "What?", (("talk", ""), ("code", "")))


class Backend:
    model = "shadow-model"

    def decide(self, state: object, questions: tuple[Question, ...], *_: object) -> Decision:
        return Decision(tuple(Answer(each.id, (("talk", 0.3), ("code", 0.7))) for each in questions), 5, 3, 0)


def test_what_it_thinks_goes_into_the_journal_and_to_nobody() -> None:
    written: list[Verdict] = []
    reader = ShadowReader(Backend(), written.append)
    reader.warm_up()
    assert written == []
    assert reader.perform(Observe("r1", "SECRET", (QUESTION,)), 0.0) is None  # type: ignore[func-returns-value]
    (verdict,) = written
    assert (verdict.request, verdict.by, verdict.model) == ("r1", "shadow-reader", "shadow-model")
    assert (verdict.answer, verdict.confidence) == ("code", pytest.approx(0.7))
