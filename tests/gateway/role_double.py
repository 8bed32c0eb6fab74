"""Roles that do what a test tells them: real unix sockets, real frames, no model; and the director's word on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway_appliance import Appliance

from tandem.contract.channel import Channel, serve
from tandem.contract.messages import Answer as RoleAnswer
from tandem.contract.messages import (
    AnyMessage,
    ApplianceState,
    AskDecider,
    Decided,
    Message,
    Narrate,
    Observe,
    RoleState,
    RoleStatus,
)

Behaviour = Callable[[AnyMessage], Awaitable[Message | None]]


def sure_of(*labels: str, confidence: float = 0.9) -> Behaviour:
    """A decider that gives the questions these labels, in order."""

    async def answer(ask: AnyMessage) -> Message:
        assert isinstance(ask, AskDecider)
        answers = []
        for question, label in zip(ask.questions, labels, strict=True):
            others = [each for each, _ in question.criteria if each != label]
            rest = (1 - confidence) / len(others)
            answers.append(RoleAnswer(question.id, ((label, confidence), *((other, rest) for other in others))))
        return Decided(ask.id, "double", tuple(answers), 7, 3, 0)

    return answer


async def hangs(ask: AnyMessage) -> None:
    await asyncio.Event().wait()


@dataclass
class RoleDouble:
    name: str
    kind: str
    asked: list[AskDecider | Narrate | Observe] = field(default_factory=list)

    @asynccontextmanager
    async def listening(self, run: Path, behaviour: Behaviour) -> AsyncIterator[RoleDouble]:
        async def converse(channel: Channel) -> None:
            while (message := await channel.receive()) is not None:
                if isinstance(message, AskDecider | Narrate | Observe):
                    self.asked.append(message)
                if (answer := await behaviour(message)) is not None:
                    channel.send(answer)

        server = await serve(run / f"{self.name}.sock", converse)
        try:
            yield self
        finally:
            server.close()


def publish(appliance: Appliance, **states: RoleState) -> None:
    """The director says where roles stand: `decider_0=RoleState.LOADED`."""
    named = {name.replace("_", "-"): state for name, state in states.items()}
    roles = tuple(
        RoleStatus(name, name.removesuffix("-0").removesuffix("-1"), state, f"{name} is {state}", 1 << 30, 0.0)
        for name, state in named.items()
    )
    live = b"{}"  # the view is set, not heard
    appliance.service.director.state = ApplianceState("plan-1", "serving", (), live, 1 << 32, 1 << 33, 0.0, roles=roles)
