"""Drives one call: brings the engine's, the client's and the clock's words to it, and carries out its cancels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from types import TracebackType
from typing import Final, Self

from litestar.types import Receive

from tandem.contract.messages import Cancel, Narrated
from tandem.contract.plan import Limits
from tandem.gateway.call import Call, Choice, Output
from tandem.gateway.engine_client import EngineAway, EngineClient
from tandem.gateway.errors import engine_restarted
from tandem.gateway.inbox import Inbox, Signal
from tandem.gateway.job import Job
from tandem.text.answer import Answer
from tandem.text.tokenizer import Tokenizer

CONFIRM_WITHIN: Final = 5.0  # seconds the engine may take to confirm a cancel before nobody waits for it any more


class RunningCall:
    """`async with`: inside, the requests are at the engine; on the way out, those that are not over are given up.

    A client that leaves is seen by a task that listens for it from the start: its slot comes free also while it
    waits, while its prompt is read, and when nothing is streamed.
    """

    def __init__(
        self,
        job: Job,
        engine: EngineClient,
        tokenizer: Tokenizer,
        limits: Limits,
        is_streamed: bool,
        shows_status: bool = False,
    ) -> None:
        self.call = Call(
            [
                Choice(n, request.id, Answer(tokenizer, job.stops, reading), request.reasoning)
                for n, (request, reading) in enumerate(zip(job.requests, job.readings, strict=True))
            ],
            shows_status,
        )
        self._job = job
        self._engine = engine
        self._limits = limits
        self._is_streamed = is_streamed
        self._inbox = Inbox(on_stalled=self._cancel_all)
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self._timers: dict[Signal, asyncio.TimerHandle] = {}
        self._watcher: asyncio.Task[None] | None = None
        self._narration: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Raises `ApiError` when the engine is not there."""
        try:
            for request in self._job.requests:
                self._engine.submit(request, self._inbox.put)
        except EngineAway as error:
            self._give_up()
            raise engine_restarted() from error
        self._wake_after(self._limits.request_timeout, Signal.TOOK_TOO_LONG)
        if self._is_streamed:
            self._timers[Signal.SILENCE] = self._loop.call_later(self._limits.keepalive, self._check_silence)
        else:
            self._wake_after(self._limits.queue_timeout, Signal.WAITED_TOO_LONG)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (self._watcher, self._narration):
            if task is not None:
                task.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self._give_up()

    def watch(self, receive: Receive) -> None:
        self._watcher = asyncio.create_task(self._watch(receive))

    def narrate(self, narration: Coroutine[None, None, None]) -> None:
        """Runs beside the call until it ends, or the call does."""
        self._narration = asyncio.create_task(narration)

    def tell(self, line: Narrated) -> None:
        """The narrator's word."""
        self._inbox.put(line)

    async def outputs(self) -> list[Output]:
        """What follows from what has happened since the last time; waits for something. Empty: the client left."""
        outputs: list[Output] = []
        while not outputs and not self.call.is_over:
            outputs = await self._take()
        return outputs

    async def settle(self) -> None:
        """Wait for the engine's last word on every choice, for the books; not for long."""
        self._wake_after(CONFIRM_WITHIN, Signal.UNSETTLED)
        while not self.call.is_settled:
            await self._take()

    def note_sent(self) -> None:
        """Something was sent: the silence is broken."""
        self._sent_at = self._loop.time()

    async def _take(self) -> list[Output]:
        happenings = await self._inbox.take()
        now = time.monotonic()
        outputs = [output for happening in happenings for output in self.call.apply(happening, now)]
        for output in outputs:
            if isinstance(output, Cancel):
                self._engine.cancel(output.id)
        return [output for output in outputs if not isinstance(output, Cancel)]

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._inbox.put(Signal.CLIENT_LEFT)

    def _wake_after(self, seconds: float, signal: Signal) -> None:
        self._timers[signal] = self._loop.call_later(seconds, self._inbox.put, signal)

    def _check_silence(self) -> None:
        """By the wall clock and whatever the engine does; one timer a stream, not one a token."""
        silent = self._loop.time() - self._sent_at
        if silent >= self._limits.keepalive:
            self._inbox.put(Signal.SILENCE)
            silent = 0.0
        self._timers[Signal.SILENCE] = self._loop.call_later(self._limits.keepalive - silent, self._check_silence)

    def _cancel_all(self) -> None:
        for request in self._job.requests:
            self._engine.cancel(request.id)

    def _give_up(self) -> None:
        for request in self._job.requests:
            self._engine.abandon(request.id)
