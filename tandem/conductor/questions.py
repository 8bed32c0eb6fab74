"""The conductor's questions, as deciders are asked them and as the big model is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from tandem.contract.messages import Answer, Grammar, GrammarKind, Question, QuestionKind
from tandem.contract.plan import Asked

TURNS: Final = 4  # messages of a conversation that are looked at, the newest last
TURN_CHARACTERS: Final = 2000  # of each, from both of its ends


def question_of(asked: Asked) -> Question:
    return Question(asked.id, QuestionKind(asked.kind), asked.instructions, asked.criteria)


def state_of(turns: Sequence[tuple[str, str]]) -> list[Any]:
    """What questions are about: the last (role, text) of a conversation."""
    return [{"role": role, "content": shortened(text)} for role, text in turns[-TURNS:] if text]


def shortened(text: str) -> str:
    """A long text says what it wants at its beginning or at its end."""
    if len(text) <= TURN_CHARACTERS:
        return text
    half = TURN_CHARACTERS // 2
    return f"{text[:half]} … {text[-half:]}"


def ask_model(question: Question, turns: Sequence[tuple[str, str]]) -> str:
    """What the big model reads as a message of a user; its answer is held to `choices`."""
    conversation = "\n\n".join(f"[{turn['role']}]\n{turn['content']}" for turn in state_of(turns))
    told = "\n".join(f"- {label}: {meaning}" if meaning else f"- {label}" for label, meaning in question.criteria)
    statement = "Does this hold? " if question.kind is QuestionKind.NOUL else ""
    return (
        f"This is the end of a conversation. Do not go on with it.\n\n{conversation}\n\n---\n\n"
        f"{statement}{question.instructions}\nAnswer with one of these words and nothing else:\n{told}"
    )


def choices(question: Question) -> Grammar:
    return Grammar(GrammarKind.CHOICE, json.dumps([label for label, _ in question.criteria]))


def heard(question: Question, text: str) -> Answer | None:
    """What the big model said; it tells no probabilities. None for what is no answer, as a text that was cut."""
    labels = [label for label, _ in question.criteria]
    if text.strip() not in labels:
        return None
    return Answer(question.id, tuple((label, float(label == text.strip())) for label in labels))
