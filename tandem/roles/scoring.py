"""The `lm-score` backend: a small causal model reads the question, and every possible answer is weighed as its next
words.

What a model would say anyway, whatever the state, is no answer to a question about it. So an answer's weight is how
much likelier the state made it: its log-probability less the one it has behind the same question without a state
(contextual calibration: Zhao et al. 2021, arXiv 2102.09690).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from tandem.contract.messages import Answer, Question, QuestionKind, State
from tandem.roles.deciding import Decision, softmax, text_of
from tandem.roles.small_model import SmallModel

MAX_LEN: Final = 512  # tokens of the state with one question; a state of more says little more to a small model
LEAST_STATE: Final = 16  # tokens of the state that a long question leaves
_KEPT_QUESTIONS: Final = 256


class LmScore:
    """Belongs to one thread."""

    def __init__(self, model: SmallModel, name: str) -> None:
        self._model = model
        self._name = name
        self._prior = lru_cache(_KEPT_QUESTIONS)(lambda question: self._weigh("", question))

    @property
    def model(self) -> str:
        return self._name

    def decide(
        self, state: State, questions: Sequence[Question], max_len: int | None, head_max_len: int | None
    ) -> Decision:
        """The state is read first, so that all questions share its rows."""
        limit = min(max_len or MAX_LEN, self._model.window - 1)
        room = {question.id: self._room(question, limit, head_max_len) for question in questions}
        tokens = self._model.tokenizer.encode(text_of(state))
        kept = min(len(tokens), *room.values())
        text = self._model.text_of(tokens[len(tokens) - kept :] if isinstance(state, list) else tokens[:kept])
        answers, read = [], 0
        for question in questions:
            read += len(self._model.prompt(ask(text, question)))
            pairs = zip(self._weigh(text, question), self._prior(question), strict=True)
            weights = [here - before for here, before in pairs]
            labels = [label for label, _ in question.criteria]
            answers.append(Answer(question.id, tuple(zip(labels, softmax(weights), strict=True))))
        cut = tuple(id for id, most in room.items() if most < len(tokens))
        return Decision(tuple(answers), read, kept, len(tokens) - kept, cut)

    def _weigh(self, text: str, question: Question) -> list[float]:
        """Each answer ends with the token that ends a turn, so that one that begins another is not always likelier."""
        words = [self._model.tokenizer.encode(word) + self._model.end for word in words_of(question)]
        return self._model.weigh(self._model.prompt(ask(text, question)), words)

    def _room(self, question: Question, limit: int, head_limit: int | None) -> int:
        """Tokens that the question leaves for the state. Raises `ValueError` for one that leaves too few."""
        head = len(self._model.prompt(ask("", question)))
        most = min(limit - LEAST_STATE, head_limit or limit)
        if head > most:
            raise ValueError(f"question `{question.id}` has {head:,} tokens; this decider takes {most:,}")
        return limit - head


def ask(text: str, question: Question) -> str:
    """The question in words, behind what it is about."""
    told = [
        f"- {word}: {meaning}" if meaning else f"- {word}"
        for word, (_, meaning) in zip(words_of(question), question.criteria, strict=True)
    ]
    return "\n".join([text, "", question.instructions, "Possible answers:", *told, "The answer is one of them."])


def words_of(question: Question) -> tuple[str, ...]:
    """What the model reads and writes for each label."""
    if question.kind is QuestionKind.NOUL:
        return question.names or ("no", "yes")
    return tuple(label for label, _ in question.criteria)
