"""The shadow reader: answers what the conductor asks on a model of its own, into the journal and to nobody.

Its verdicts beside the deciders' and the big model's are how an owner sees which of them to trust.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tandem.conductor.verdicts import Verdict, verdict_of
from tandem.contract.messages import Observe
from tandem.roles.decider import PROBE
from tandem.roles.deciding import Backend
from tandem.roles.role import Ask


class ShadowReader:
    takes = Observe

    def __init__(self, backend: Backend, write: Callable[[Verdict], None]) -> None:
        """`write` puts a verdict into the journal; it raises `OSError` when it cannot."""
        self._backend = backend
        self._write = write

    def perform(self, ask: Ask, until: float) -> None:
        assert isinstance(ask, Observe)
        began = time.monotonic()
        said = self._backend.decide(ask.state, ask.questions, None, None)
        seconds = time.monotonic() - began
        for question, answer in zip(ask.questions, said.answers, strict=True):
            self._write(verdict_of(ask.id, "shadow-reader", self._backend.model, question, answer, seconds))

    def warm_up(self) -> None:
        self._backend.decide("What time is it?", (PROBE,), None, None)
