"""The `lm-score` backend on the embedded default model."""

from __future__ import annotations

import time

import pytest

from tandem.contract.messages import AskDecider, Decided, Question, QuestionKind
from tandem.roles.decider import Decider
from tandem.roles.deciding import softmax, text_of
from tandem.roles.scoring import LEAST_STATE, LmScore, ask
from tandem.roles.small_model import SmallModel

KIND = Question(
    "class",
    QuestionKind.CHOICE,
    "What does the last message of the user ask for?",
    (("talk", "small talk, or a short question of fact"), ("code", "writing, reading or repairing a program")),
)
LEVEL = Question("level", QuestionKind.SCORE, "How long is it?", (("0", "short"), ("1", "long")))
NOUL = Question("n", QuestionKind.NOUL, "It is about a computer program.", (("false", ""), ("true", "")))


@pytest.fixture(scope="module")
def backend(smollm: SmallModel) -> LmScore:
    return LmScore(smollm, "smollm2")


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_probabilities_in_the_order_of_the_criteria_and_the_same_every_time(backend: LmScore) -> None:
    questions = (KIND, LEVEL, NOUL)
    said = backend.decide(user("Why does def f(x): return x+1 raise TypeError?"), questions, None, None)
    for question, answer in zip(questions, said.answers, strict=True):
        assert [label for label, _ in answer.probabilities] == [label for label, _ in question.criteria]
        assert sum(p for _, p in answer.probabilities) == pytest.approx(1.0)
    again = backend.decide(user("Why does def f(x): return x+1 raise TypeError?"), questions, None, None)
    assert again == said


def test_what_a_decider_expects_is_read_without_a_state_before_anybody_asks(smollm: SmallModel) -> None:
    """Then the first message takes one pass over each question, as every other."""
    read: list[str] = []

    class Watched(LmScore):
        def _weigh(self, text: str, question: Question) -> list[float]:
            read.append(f"{question.id}: {text}")
            return super()._weigh(text, question)

    far_too_long = Question("long", QuestionKind.NOUL, "word " * 3000, (("false", ""), ("true", "")))
    decider = Decider(Watched(smollm, "smollm2"), (KIND, far_too_long, NOUL))
    decider.warm_up()
    assert {"class: ", "n: "} <= set(read)
    read.clear()
    said = decider.perform(AskDecider("a", "hi", (KIND, NOUL), 60.0), time.monotonic() + 60)
    assert isinstance(said, Decided) and read == ["class: hi", "n: hi"]


def test_a_state_moves_the_answer_and_none_moves_nothing(backend: LmScore) -> None:
    code = backend.decide(user("def f(x): return x + 1  # raises TypeError, repair it"), (KIND,), None, None)
    talk = backend.decide(user("hi, how are you today?"), (KIND,), None, None)
    assert dict(code.answers[0].probabilities)["code"] > dict(talk.answers[0].probabilities)["code"]
    empty = backend.decide("", (KIND,), None, None)
    assert [p for _, p in empty.answers[0].probabilities] == pytest.approx([0.5, 0.5], abs=1e-6)


def test_a_long_state_is_cut_where_it_matters_least_and_that_is_told(backend: LmScore) -> None:
    long = "word " * 3000
    said = backend.decide(long, (KIND, NOUL), 200, None)
    assert said.state_tokens < 200 and said.state_tokens + said.state_tokens_dropped == 3001
    assert said.truncated_questions == ("class", "n")
    seen: list[str] = []
    model = backend._model
    prompt = model.prompt
    model.prompt = lambda text: (seen.append(text), prompt(text))[1]  # type: ignore[method-assign]
    try:
        backend.decide(f"BEGIN {long} END", (NOUL,), 200, None)
        text = seen[-1]
        backend.decide([f"BEGIN {long} END"], (NOUL,), 200, None)
        conversation = seen[-1]
    finally:
        del model.prompt
    assert "BEGIN" in text and "END" not in text
    assert "BEGIN" not in conversation and "END" in conversation


def test_a_question_that_leaves_no_room_is_refused_in_words(backend: LmScore) -> None:
    with pytest.raises(ValueError, match=r"question `class` has \d+ tokens; this decider takes"):
        backend.decide("hello", (KIND,), LEAST_STATE + 20, None)


def test_states_read_as_people_would_write_them() -> None:
    assert text_of("plain") == "plain"
    assert text_of([*user("hi"), {"role": "assistant", "content": "hello"}]) == "user: hi\nassistant: hello"
    assert text_of({"a": "ü"}) == '{"a": "ü"}' and text_of(["x", 1]) == '["x", 1]'
    assert softmax([1000.0, 1000.0]) == [0.5, 0.5]
    assert ask("STATE", KIND).index("STATE") < ask("STATE", KIND).index("- code: writing")
