"""Asks, in order, whoever can tell what a new message is, and shapes its request. What is decided and what follows is
`conductor`'s; waiting is done here, and never for longer than the declared times."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import random
from typing import Final

from msgspec.structs import replace

from tandem.conductor.conductor import Deciding, Decision, Stage
from tandem.conductor.memory import DecisionMemory, digests
from tandem.conductor.questions import ask_model, choices, heard, state_of
from tandem.conductor.verdicts import Verdict, Verdicts, verdict_of
from tandem.contract.messages import Answer, AskDecider, Decided, Generate, Observe, Question, Sampling
from tandem.contract.plan import Conducting
from tandem.gateway.conversation import Message
from tandem.gateway.engine_client import EngineClient
from tandem.gateway.errors import ApiError
from tandem.gateway.openai import ChatRequest
from tandem.gateway.own_work import NotWritten, write
from tandem.gateway.prompts import Prompts
from tandem.gateway.role_client import RoleClient
from tandem.gateway.shaping import plain_text, shaped

_log = logging.getLogger("tandem.gateway.conductor")

CHECKED_WITHIN: Final = 30.0  # seconds; nobody waits for it
_ANSWER_TOKENS: Final = 32  # of the big model's word; the longest label has fewer
Turns = Sequence[tuple[str, str]]


class Conductor:
    """Belongs to one asyncio loop."""

    def __init__(self, roles: RoleClient, engine: EngineClient, prompts: Prompts, model: str, state: Path) -> None:
        """`state` is the folder of the journal."""
        self._roles = roles
        self._engine = engine
        self._prompts = prompts
        self._model = model
        self._memory = DecisionMemory()
        self._verdicts = Verdicts(state)
        self._numbers = count(1)
        self._checks: set[asyncio.Task[Sequence[Answer | str]]] = set()

    async def conduct(
        self, request: ChatRequest, id: str, scope: str, conducting: Conducting
    ) -> tuple[ChatRequest, Decision | None]:
        """The request as it is to be served, and what was decided about its last message of a user.

        A message is asked about once, when it is new and the last; what follows it in the same turn (results of tools)
        and every later turn go by what was decided then.
        """
        turns = [(message.role, plain_text(message)) for message in request.messages]
        kept = list(digests(scope, turns))
        last = max((n for n, (role, _) in enumerate(turns) if role == "user"), default=None)
        if last is None:
            return request, None
        decision = self._memory.find(kept[last])
        if decision is None and last == len(turns) - 1:
            decision = await self._decide(id, turns, conducting)
            self._memory.keep(kept[last], decision)
        decided = {n: self._memory.find(kept[n]) for n, (role, _) in enumerate(turns) if role == "user"}
        notes = {n: each.shape.note for n, each in decided.items() if each is not None and each.shape.note}
        return shaped(request, decision, notes), decision

    async def _decide(self, id: str, turns: Turns, conducting: Conducting) -> Decision:
        deciding = Deciding(conducting)
        if deciding.all:
            await self._ask_decider(id, turns, deciding)
        if deciding.open and conducting.model_within > 0:
            await self._ask_model(id, turns, deciding)
        decision = deciding.decide()
        if deciding.all:
            self._roles.observe(Observe(id, state_of(turns), deciding.all))
        if decision.stage is Stage.DECIDER and random() < conducting.checked:
            check = asyncio.create_task(self._ask_big(id, turns, deciding.all, CHECKED_WITHIN))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
        _log.info(
            "[conductor] %s: %s, package %s, effort %s, stage %s (A: %s; B: %s)",
            id,
            decision.kind,
            decision.package,
            decision.effort or "-",
            decision.stage,
            decision.decider.outcome or "-",
            decision.model.outcome or "-",
        )
        return decision

    async def _ask_decider(self, id: str, turns: Turns, deciding: Deciding) -> None:
        began, questions = time.monotonic(), deciding.all
        ask = AskDecider(id, state_of(turns), questions, deciding.conducting.decider_within)
        said = await self._roles.decide(ask)
        seconds = time.monotonic() - began
        if isinstance(said, Decided):
            deciding.take(Stage.DECIDER, said.answers, seconds)
            self._journal(id, "decider", said.model, questions, said.answers, seconds)
        else:
            deciding.take(Stage.DECIDER, (), seconds, str(said.reason))

    async def _ask_model(self, id: str, turns: Turns, deciding: Deciding) -> None:
        began = time.monotonic()
        said = await self._ask_big(id, turns, deciding.open, deciding.conducting.model_within)
        answers = [each for each in said if isinstance(each, Answer)]
        why_none = next((each for each in said if isinstance(each, str)), "")
        deciding.take(Stage.MODEL, answers, time.monotonic() - began, why_none)

    async def _ask_big(
        self, id: str, turns: Turns, questions: Sequence[Question], within: float
    ) -> Sequence[Answer | str]:
        """The big model's answers, for the journal too. All at once, each in a slot of its own while slots are free."""
        began = time.monotonic()
        said = await asyncio.gather(*(self._answer(question, turns, began + within) for question in questions))
        answers = {each.question: each for each in said if isinstance(each, Answer)}
        asked = [question for question in questions if question.id in answers]
        self._journal(id, "big-model", self._model, asked, list(answers.values()), time.monotonic() - began)
        return said

    async def _answer(self, question: Question, turns: Turns, until: float) -> Answer | str:
        """The big model's answer, or in one word why there is none."""
        asking = ChatRequest(messages=[Message("user", ask_model(question, turns))], max_reasoning_tokens=0)
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                prompt = await self._prompts.of_chat(asking)
        except TimeoutError:
            return "late"
        except ApiError as error:
            return error.detail.code
        generate = Generate(
            id=f"conductor-{next(self._numbers)}",
            tokens=prompt.tokens,
            max_tokens=_ANSWER_TOKENS,
            stop_tokens=self._prompts.tokenizer.vocabulary.stop_tokens,
            sampling=Sampling(),
            marks=prompt.marks,
            own_work=True,
            scope="conductor",
            grammar=choices(question),
            reasoning=None if prompt.reasoning is None else replace(prompt.reasoning, max_tokens=0),
        )
        try:
            tokens = await write(self._engine, generate, max(0.0, until - time.monotonic()))
        except NotWritten as reason:
            return str(reason)
        if prompt.reasoning is not None:
            tokens = behind(prompt.reasoning.close, tokens)
        text = b"".join(self._prompts.tokenizer.bytes_of[token] for token in tokens).decode(errors="replace")
        return heard(question, text) or "no answer"

    def _journal(
        self, id: str, by: str, model: str, questions: Sequence[Question], answers: Sequence[Answer], seconds: float
    ) -> None:
        verdicts: list[Verdict] = [
            verdict_of(id, by, model, question, answer, seconds)
            for question, answer in zip(questions, answers, strict=True)
        ]
        try:
            if verdicts:
                self._verdicts.write(*verdicts)
        except OSError as error:
            _log.warning("the journal cannot be written: %s", error)


def behind(mark: Sequence[int], tokens: list[int]) -> list[int]:
    """What follows the last `mark` among the tokens; all of them where it does not come."""
    starts = (n for n in range(len(tokens) - len(mark), -1, -1) if tuple(tokens[n : n + len(mark)]) == tuple(mark))
    return tokens[next((start + len(mark) for start in starts), 0) :]
