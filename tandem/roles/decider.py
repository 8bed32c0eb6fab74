"""The decider: typed questions answered with probabilities, in one pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from tandem.contract.messages import AskDecider, Decided, Question, QuestionKind, RoleRefusal, Undecided
from tandem.contract.plan import RolePlan
from tandem.roles.deciding import Backend
from tandem.roles.role import Ask

PROBE: Final = Question("probe", QuestionKind.CHOICE, "Is this a question?", (("question", ""), ("statement", "")))


class Decider:
    takes = AskDecider

    def __init__(self, backend: Backend, expected: Sequence[Question] = ()) -> None:
        """`expected` are asked once before anybody asks: what a backend keeps of a question is there for the first
        message, whose answer has as little time as any."""
        self._backend = backend
        self._expected = expected

    def perform(self, ask: Ask, until: float) -> Decided | Undecided:
        assert isinstance(ask, AskDecider)
        began = time.monotonic()
        try:
            said = self._backend.decide(ask.state, ask.questions, ask.max_len, ask.head_max_len)
        except ValueError as error:
            return Undecided(ask.id, RoleRefusal.BAD_QUESTION, str(error))
        counts = (said.input_tokens, said.state_tokens, said.state_tokens_dropped, said.truncated_questions)
        return Decided(ask.id, self._backend.model, said.answers, *counts, time.monotonic() - began)

    def warm_up(self) -> None:
        for question in (PROBE, *self._expected):
            with suppress(ValueError):  # one that cannot be asked says so when it is
                self._backend.decide("What time is it?", (question,), None, None)


def open_backend(role: RolePlan) -> Backend:
    """Raises `CannotStart` when the model is not here."""
    return BACKENDS[role.backend](role)


def _open_laya(role: RolePlan) -> Backend:
    from tandem.roles.laya import open_laya  # an extra that most appliances do without

    return open_laya(role)


def _open_lm_score(role: RolePlan) -> Backend:
    from tandem.roles.scoring import LmScore
    from tandem.roles.small_model import open_small_model

    return LmScore(open_small_model(role), role.model.rpartition("/")[2])


BACKENDS: Final[Mapping[str, Callable[[RolePlan], Backend]]] = {"laya": _open_laya, "lm-score": _open_lm_score}
