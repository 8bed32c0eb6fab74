"""What a decider needs of whatever runs its model, and what every backend makes of questions alike."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.contract.messages import Answer, Question, State


@dataclass(frozen=True, slots=True)
class Decision:
    """Answers in the order of the questions; counts are tokens."""

    answers: tuple[Answer, ...]
    input_tokens: int
    state_tokens: int
    state_tokens_dropped: int
    truncated_questions: tuple[str, ...] = ()


class Backend(Protocol):
    @property
    def model(self) -> str:
        """Its name, as clients hear it."""
        ...

    def decide(
        self, state: State, questions: Sequence[Question], max_len: int | None, head_max_len: int | None
    ) -> Decision:
        """Raises `ValueError`, with a sentence for the caller, for questions that this model cannot be asked."""
        ...


def text_of(state: State) -> str:
    """A conversation of messages reads as one; anything else that is no text, as JSON."""
    if isinstance(state, str):
        return state
    if isinstance(state, list) and all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in state):
        return "\n".join(f"{turn['role']}: {turn['content']}" for turn in state)
    return json.dumps(state, ensure_ascii=False)


def softmax(logits: Sequence[float]) -> list[float]:
    highest = max(logits)
    weights = [math.exp(logit - highest) for logit in logits]
    return [weight / sum(weights) for weight in weights]
