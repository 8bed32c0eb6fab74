"""The stages driven by hand: deliver answers, read the decision."""

from __future__ import annotations

import msgspec
import pytest

from tandem.conductor.conductor import NOT_ASKED, Deciding, Stage
from tandem.contract.messages import Answer
from tandem.contract.plan import Asked, ClassPlan, Conducting, PackagePlan

CLASS = Asked("class", "choice", "What is it?", (("talk", "small talk"), ("code", "a program")), "class")
DEPTH = Asked(
    "depth", "score", "How deep?", (("0", "flat"), ("1", ""), ("2", "deep")), "effort", {"0": "low", "2": "high"}
)
URGENT = Asked("urgent", "noul", "It is urgent.", (("false", ""), ("true", "")), "package", {"true": "swift"})
MOOD = Asked("mood", "choice", "Which mood?", (("sunny", ""), ("grey", "")))
CONDUCTING = Conducting(
    confidence=0.6,
    questions=(CLASS, DEPTH, URGENT, MOOD),
    classes={"talk": ClassPlan("plain", "low"), "code": ClassPlan("exact", "high"), "other": ClassPlan("plain")},
    default="other",
    packages={
        "plain": PackagePlan(),
        "exact": PackagePlan("Be exact.", {"temperature": 0.0}),
        "swift": PackagePlan("Be quick."),
    },
    efforts={"low": 100, "high": 5000},
)


def answer(question: str, sure: float, *labels: str) -> Answer:
    """The first label has the probability, the others share the rest."""
    rest = (1 - sure) / max(1, len(labels) - 1)
    return Answer(question, tuple((label, sure if n == 0 else rest) for n, label in enumerate(labels)))


def test_a_sure_decider_decides_everything_and_nobody_else_is_asked() -> None:
    deciding = Deciding(CONDUCTING)
    assert [question.id for question in deciding.open] == ["class", "depth", "urgent"]
    said = [
        answer("class", 0.9, "code", "talk"),
        answer("depth", 0.7, "0", "1", "2"),
        answer("urgent", 0.8, "false", "true"),
        answer("mood", 0.9, "sunny", "grey"),
    ]
    deciding.take(Stage.DECIDER, said, 0.12)
    assert deciding.open == ()
    decision = deciding.decide()
    assert (decision.kind, decision.package, decision.effort, decision.thinking) == ("code", "exact", "low", 100)
    assert decision.stage is Stage.DECIDER and decision.shape.note == "Be exact."
    assert decision.decider.outcome == "class=code 0.90, depth=0 0.70, urgent=false 0.80, mood=sunny 0.90"
    assert (decision.decider.seconds, decision.model) == (0.12, NOT_ASKED)


def test_what_a_decider_is_unsure_of_is_asked_of_the_model_and_only_that() -> None:
    deciding = Deciding(CONDUCTING)
    said = [
        answer("class", 0.9, "talk", "code"),
        answer("depth", 0.4, "1", "0", "2"),
        answer("urgent", 0.9, "true", ""),
    ]
    deciding.take(Stage.DECIDER, said, 0.1)
    assert [question.id for question in deciding.open] == ["depth"]
    deciding.take(Stage.MODEL, [answer("depth", 1.0, "2")], 0.5)
    decision = deciding.decide()
    assert (decision.kind, decision.package, decision.effort) == ("talk", "swift", "high")
    assert decision.stage is Stage.MODEL
    assert "depth=1 0.40 unsure" in decision.decider.outcome and decision.model.outcome == "depth=2 1.00"


@pytest.mark.parametrize("why", ["late", "unloaded_for_memory", "busy", "away"])
def test_when_nobody_answers_the_default_stands_and_the_reasons_are_kept(why: str) -> None:
    deciding = Deciding(CONDUCTING)
    deciding.take(Stage.DECIDER, (), 0.4, why)
    deciding.take(Stage.MODEL, (), 2.0, "busy")
    decision = deciding.decide()
    assert (decision.kind, decision.package, decision.effort, decision.thinking) == ("other", "plain", "", None)
    assert decision.stage is Stage.DEFAULT and decision.shape == PackagePlan()
    assert (decision.decider.outcome, decision.model.outcome) == (why, "busy")


def test_part_of_the_answers_is_used_and_the_stage_says_that_the_default_had_to_help() -> None:
    deciding = Deciding(CONDUCTING)
    deciding.take(Stage.DECIDER, [answer("class", 0.9, "code", "talk")], 0.1)
    deciding.take(Stage.MODEL, (), 2.0, "late")
    decision = deciding.decide()
    assert (decision.kind, decision.package, decision.effort) == ("code", "exact", "high")
    assert decision.stage is Stage.DEFAULT


def test_an_answer_that_stands_for_nothing_leaves_it_to_the_class() -> None:
    deciding = Deciding(CONDUCTING)
    deciding.take(Stage.DECIDER, [answer("class", 0.9, "code", "talk"), answer("depth", 0.9, "1", "0")], 0.1)
    assert deciding.decide().effort == "high"


def test_without_questions_everything_is_the_default() -> None:
    decision = Deciding(msgspec.structs.replace(CONDUCTING, questions=())).decide()
    assert (decision.kind, decision.stage) == ("other", Stage.DEFAULT)
