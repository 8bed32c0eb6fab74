"""The gateway's word with the roles: who may be asked now, and one question at a time, answered within its deadline.

What the director publishes says who is loaded. One that is on hold for memory is never asked: its callers hear so at
once. A connection is made for each question, so that a role that was restarted is simply the next one asked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tandem.contract.channel import ChannelClosed, connect
from tandem.contract.messages import (
    ApplianceState,
    AskDecider,
    Decided,
    Narrate,
    Narrated,
    Observe,
    RoleRefusal,
    RoleState,
    RoleStatus,
    Undecided,
)

_log = logging.getLogger("tandem.gateway.roles")

_TRIED_AGAIN: Final = frozenset({RoleRefusal.AWAY, RoleRefusal.BUSY, RoleRefusal.FAILED})  # by another of its kind
_OBSERVE_WITHIN: Final = 1.0  # seconds for the shadow reader to take a question


class RoleClient:
    """Belongs to one asyncio loop."""

    def __init__(self, run: Path, picture: Callable[[], ApplianceState | None]) -> None:
        """`picture` is the director's last word."""
        self._run = run
        self._picture = picture
        self._asking = Counter[str]()  # questions each role has before it
        self._observing: set[asyncio.Task[None]] = set()

    def loaded(self, kind: str) -> list[str]:
        """Names, the least busy first."""
        names = [role.name for role in self._of(kind) if role.state is RoleState.LOADED]
        return sorted(names, key=lambda name: self._asking[name])

    async def decide(self, ask: AskDecider) -> Decided | Undecided:
        answer = await self._ask_any("decider", ask, ask.within)
        assert isinstance(answer, Decided | Undecided)
        return answer

    async def narrate(self, ask: Narrate) -> Narrated | Undecided:
        """One line at a time: who comes meanwhile has a line of our own."""
        if any(self._asking[name] for name in self.loaded("narrator")):
            return Undecided(ask.id, RoleRefusal.BUSY, "the narrator writes another line")
        answer = await self._ask_any("narrator", ask, ask.within)
        assert isinstance(answer, Narrated | Undecided)
        return answer

    def observe(self, ask: Observe) -> None:
        """Nobody waits for it, and nothing comes back."""
        for name in self.loaded("shadow-reader"):
            task = asyncio.create_task(self._tell(name, ask))
            self._observing.add(task)
            task.add_done_callback(self._observing.discard)

    async def _ask_any(self, kind: str, ask: AskDecider | Narrate, within: float) -> Decided | Narrated | Undecided:
        """The first that answers of those that are loaded, within one deadline for all of them."""
        until = time.monotonic() + within
        answer: Decided | Narrated | Undecided = self._why_none(kind, ask.id)
        for name in self.loaded(kind):
            answer = await self._ask(name, ask, until - time.monotonic())
            if not isinstance(answer, Undecided) or answer.reason not in _TRIED_AGAIN:
                break
        return answer

    async def _ask(self, name: str, ask: AskDecider | Narrate, within: float) -> Decided | Narrated | Undecided:
        self._asking[name] += 1
        try:
            async with asyncio.timeout(within):
                channel = await connect(self._socket(name))
                try:
                    answer = await channel.ask(ask, within)
                finally:
                    channel.close()
        except TimeoutError:
            return Undecided(ask.id, RoleRefusal.LATE, f"{name} did not answer in time")
        except (OSError, ChannelClosed, msgspec.MsgspecError) as error:
            return Undecided(ask.id, RoleRefusal.AWAY, f"{name} does not answer ({type(error).__name__})")
        finally:
            self._asking[name] -= 1
        if isinstance(answer, Undecided | (Decided if isinstance(ask, AskDecider) else Narrated)):
            return answer
        return Undecided(ask.id, RoleRefusal.FAILED, f"{name} speaks of something else")

    async def _tell(self, name: str, ask: Observe) -> None:
        try:
            async with asyncio.timeout(_OBSERVE_WITHIN):
                channel = await connect(self._socket(name))
                channel.send(ask)
                channel.close()
                await channel.wait_closed()
        except (OSError, TimeoutError, ChannelClosed) as error:
            _log.info("%s was not told: %s", name, type(error).__name__)

    def _why_none(self, kind: str, id: str) -> Undecided:
        roles = self._of(kind)
        if not roles:
            return Undecided(id, RoleRefusal.AWAY, f"no {kind} is declared")
        held = next((role for role in roles if role.state is RoleState.UNLOADED_FOR_MEMORY), None)
        if held is not None:
            return Undecided(id, RoleRefusal.UNLOADED, held.sentence)
        return Undecided(id, RoleRefusal.AWAY, roles[0].sentence or f"the {kind} is not loaded")

    def _of(self, kind: str) -> list[RoleStatus]:
        picture = self._picture()
        return [role for role in picture.roles if role.kind == kind] if picture is not None else []

    def _socket(self, name: str) -> Path:
        return self._run / f"{name}.sock"
