"""The gateway's one connection to the engine: requests by id, over a channel that comes back by itself.

The engine may restart at any time. Its death is seen at once (end of file), every request then running is told, and
the connection is made again as soon as somebody listens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from tandem.contract.channel import Channel, ChannelClosed, connect
from tandem.contract.messages import (
    AnyMessage,
    AskHealth,
    Cancel,
    Finished,
    Generate,
    Health,
    Progress,
    Refused,
    Started,
    Tokens,
)
from tandem.gateway.inbox import Happening, Signal

_log = logging.getLogger("tandem.gateway.engine")

FIRST_DELAY: Final = 0.05
LONGEST_DELAY: Final = 0.5
POLL_EVERY: Final = 1.0
HUNG_AFTER: Final = 4.0  # seconds without life while there is work; with one poll it shows within five

Sink: TypeAlias = Callable[[Happening], None]


class EngineAway(ConnectionError):
    """Nobody listens on the engine's socket."""


class EngineState(StrEnum):
    AWAY = "away"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    HUNG = "hung"


_STATES: Final = {str(state): state for state in EngineState}


@dataclass(frozen=True, slots=True)
class EngineStatus:
    state: EngineState
    sentence: str
    progress: float


def engine_status(is_connected: bool, health: Health | None, age: float) -> EngineStatus:
    """What the engine's last word means, `age` seconds after it was heard.

    A device thread is only expected to show life while there is work; an engine that does not answer at all is hung
    whatever it last said.
    """
    if not is_connected:
        return EngineStatus(EngineState.AWAY, "the engine is not running; it starts by itself", 0.0)
    if age > HUNG_AFTER:
        return EngineStatus(EngineState.HUNG, f"the engine has not answered for {age:.0f} s", 0.0)
    if health is None:
        return EngineStatus(EngineState.LOADING, "the engine has not spoken yet", 0.0)
    has_work = health.queued + health.running + health.waiting_memory > 0
    if health.ready and has_work and health.last_turn_age > HUNG_AFTER:
        sentence = f"the engine has work and showed no progress for {health.last_turn_age:.0f} s"
        return EngineStatus(EngineState.HUNG, sentence, health.progress)
    state = _STATES.get(health.state, EngineState.LOADING)
    if state is EngineState.READY and not health.ready:
        state = EngineState.LOADING
    return EngineStatus(state, health.sentence, health.progress)


class EngineClient:
    """Belongs to one asyncio loop. `run` keeps the connection; everything else is called from the same loop."""

    def __init__(self, socket: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.health: Health | None = None
        self._socket = socket
        self._clock = clock
        self._channel: Channel | None = None
        self._sinks: dict[str, Sink] = {}
        self._heard_at = clock()
        self._asked: list[asyncio.Future[None]] = []

    @property
    def status(self) -> EngineStatus:
        return engine_status(self._channel is not None, self.health, self._clock() - self._heard_at)

    async def run(self) -> None:
        delay = FIRST_DELAY
        while True:
            try:
                channel = await connect(self._socket)
            except OSError:
                await asyncio.sleep(delay)
                delay = min(delay * 2, LONGEST_DELAY)
                continue
            _log.info("connected to the engine")
            await self._converse(channel)
            lost = self._lost()
            _log.log(logging.WARNING if lost else logging.INFO, "the engine is gone; %d requests were told", lost)
            delay = FIRST_DELAY
            await asyncio.sleep(delay)

    def submit(self, request: Generate, sink: Sink) -> None:
        """Hand a request over; `sink` gets all that happens to it, the last being `Finished`, `Refused` or the
        engine's loss. Raises `EngineAway`."""
        try:
            self._send(request)
        except ChannelClosed as error:
            raise EngineAway(str(error)) from error
        self._sinks[request.id] = sink

    def cancel(self, id: str) -> None:
        """Does nothing for a request that is over."""
        if id in self._sinks:
            with suppress(ChannelClosed):
                self._send(Cancel(id))

    def abandon(self, id: str) -> None:
        """Cancel, and hear no more of it."""
        self.cancel(id)
        self._sinks.pop(id, None)

    async def refresh(self, max_age: float, timeout: float) -> EngineStatus:
        """The status, asked anew when the last word is older than `max_age`; after `timeout` the old word stands."""
        if self._channel is not None and (self.health is None or self._clock() - self._heard_at > max_age):
            heard = asyncio.get_running_loop().create_future()
            self._asked.append(heard)
            with suppress(ChannelClosed, TimeoutError):
                self._send(AskHealth())
                await asyncio.wait_for(heard, timeout)
        return self.status

    def _send(self, message: Generate | Cancel | AskHealth) -> None:
        if self._channel is None:
            raise ChannelClosed("the engine is not running")
        self._channel.send(message)

    async def _converse(self, channel: Channel) -> None:
        """Read until the engine closes, asking for its health once a second."""
        self._channel, self._heard_at = channel, self._clock()
        poll = asyncio.create_task(self._poll())
        try:
            await channel.receive_all(self._take)
        except (msgspec.MsgspecError, ChannelClosed) as error:
            _log.error("the engine's message cannot be read: %s", error)
        finally:
            poll.cancel()
            channel.close()

    def _take(self, message: AnyMessage) -> None:
        match message:
            case Tokens() | Progress() | Started():
                if sink := self._sinks.get(message.id):
                    sink(message)
            case Finished() | Refused():
                if sink := self._sinks.pop(message.id, None):
                    sink(message)
            case Health():
                self._hear(message)
            case _:
                _log.error("the engine said %s, which is not for us", type(message).__name__)

    async def _poll(self) -> None:
        while True:
            with suppress(ChannelClosed):
                self._send(AskHealth())
            await asyncio.sleep(POLL_EVERY)

    def _hear(self, health: Health) -> None:
        self.health, self._heard_at = health, self._clock()
        asked, self._asked = self._asked, []
        for waiting in asked:
            if not waiting.done():
                waiting.set_result(None)

    def _lost(self) -> int:
        self._channel, self.health = None, None
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink(Signal.ENGINE_LOST)
        return len(sinks)
