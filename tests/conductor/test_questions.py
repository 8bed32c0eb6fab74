from __future__ import annotations

import json

from tandem.conductor.questions import TURN_CHARACTERS, TURNS, ask_model, choices, heard, question_of, state_of
from tandem.contract.messages import GrammarKind, Question, QuestionKind
from tandem.contract.plan import Asked

CHOICE = Question("class", QuestionKind.CHOICE, "What is it?", (("talk", "small talk"), ("code", "")))


def test_the_state_is_the_end_of_the_conversation_and_long_messages_keep_both_ends() -> None:
    turns = [("user", f"message {n}") for n in range(10)] + [("assistant", "")]
    turns.append(("user", "begin " + "x" * 50_000 + " end"))
    state = state_of(turns)
    assert [turn["role"] for turn in state] == ["user"] * (TURNS - 1)  # one had no text
    assert state[0]["content"] == "message 8"
    last = state[-1]["content"]
    assert last.startswith("begin ") and last.endswith(" end") and len(last) < TURN_CHARACTERS + 10


def test_the_model_reads_the_question_last_and_may_answer_one_label_only() -> None:
    text = ask_model(CHOICE, [("user", "Fix parser.py")])
    assert text.index("Fix parser.py") < text.index("What is it?") < text.index("- talk: small talk\n- code")
    grammar = choices(CHOICE)
    assert grammar.kind is GrammarKind.CHOICE and json.loads(grammar.text) == ["talk", "code"]


def test_what_the_model_says_is_heard_when_it_is_a_label_and_else_is_no_answer() -> None:
    said = heard(CHOICE, " code\n")
    assert said is not None and (said.label, said.confidence) == ("code", 1.0)
    assert heard(CHOICE, "cod") is None and heard(CHOICE, "") is None


def test_a_declared_question_becomes_the_one_that_travels() -> None:
    asked = Asked("n", "noul", "It rains.", (("false", ""), ("true", "drops fall")), "nothing")
    assert question_of(asked) == Question("n", QuestionKind.NOUL, "It rains.", (("false", ""), ("true", "drops fall")))
