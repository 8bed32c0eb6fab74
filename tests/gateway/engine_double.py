"""An engine that does what a test tells it: a real unix socket, real frames, no model.

By default it answers each request with the ids of `text`, one frame a token. A test may replace `script`, a
coroutine run for each request, and look at what came in `requests` and `cancels`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from tandem.contract.channel import Channel, serve
from tandem.contract.messages import (
    AskHealth,
    Cancel,
    Counters,
    Finished,
    FinishReason,
    Generate,
    Health,
    Message,
    Progress,
    RefusalCode,
    Refused,
    RequestState,
    SlotView,
    Started,
    Tokens,
    TokenScore,
)

Script = Callable[["Job"], Awaitable[None]]


class Job:
    """One request at the double, and the words a script may say about it."""

    def __init__(self, request: Generate, channel: Channel) -> None:
        self.request = request
        self.cancelled = asyncio.Event()
        self._channel = channel
        self.num_sent = 0
        self.cached = 0

    def say(self, message: Message) -> None:
        self._channel.send(message)

    def progress(self, state: RequestState, sentence: str, done: int = 0, total: int = 0) -> None:
        self.say(Progress(self.request.id, state, done, total, sentence))

    def start(self, slot: int = 0, cached: int = 0) -> None:
        source = "resident" if cached else "none"
        limit = self.request.max_tokens
        self.say(Started(self.request.id, slot, f"slot {slot} is free", limit, cached, source))
        self.cached = cached

    def tokens(self, *ids: int) -> None:
        """With scores where the request wants them: each token's own is minus its id in thousandths."""
        self.num_sent += len(ids)
        num_top = self.request.top_logprobs
        scores = () if num_top is None else tuple(score_of(id, num_top) for id in ids)
        self.say(Tokens(self.request.id, ids, scores))

    def finish(self, reason: FinishReason = FinishReason.STOP, **facts: Any) -> None:
        counts = (len(self.request.tokens), self.cached, self.num_sent)
        self.say(Finished(self.request.id, reason, *counts, 0.001, 0.01, 0.1, **facts))

    def refuse(self, code: RefusalCode, sentence: str, retry_after: float | None = None) -> None:
        self.say(Refused(self.request.id, code, sentence, retry_after))

    async def until_cancelled(self) -> None:
        await self.cancelled.wait()
        self.finish(FinishReason.CANCELLED)


def score_of(token: int, num_top: int) -> TokenScore:
    """The best tokens are 100, 101 and so on, a tenth apart."""
    return TokenScore(-token / 1000, tuple((100 + n, -0.1 * (n + 1)) for n in range(num_top)))


class EngineDouble:
    def __init__(self, path: Path, answer: list[int]) -> None:
        self.answer = answer
        self.script: Script = self.say_answer
        self.requests: list[Generate] = []
        self.cancels: asyncio.Queue[str] = asyncio.Queue()
        self.arrived: asyncio.Queue[Job] = asyncio.Queue()
        self.health: dict[str, Any] = {}  # fields that differ from those of an engine that is well
        self.answers_health = True
        self._path = path
        self._server: asyncio.Server | None = None
        self._channels: set[Channel] = set()
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await serve(self._path, self._converse)

    def die(self) -> None:
        """As after `kill -9`: every connection is closed and nobody listens."""
        if self._server is not None:
            self._server.close()
        self._path.unlink(missing_ok=True)
        for channel in self._channels:
            channel.close()
        for task in self._tasks:
            task.cancel()
        self._jobs.clear()

    async def say_answer(self, job: Job) -> None:
        job.start(cached=3)
        for token in self.answer[: job.request.max_tokens]:
            job.tokens(token)
            await asyncio.sleep(0)
            if job.cancelled.is_set():
                job.finish(FinishReason.CANCELLED)
                return
        is_cut = len(self.answer) > job.request.max_tokens
        job.finish(FinishReason.LENGTH if is_cut else FinishReason.STOP)

    async def _converse(self, channel: Channel) -> None:
        self._channels.add(channel)
        try:
            while (message := await channel.receive()) is not None:
                match message:
                    case Generate():
                        self._take(message, channel)
                    case Cancel():
                        self.cancels.put_nowait(message.id)
                        if job := self._jobs.get(message.id):
                            job.cancelled.set()
                    case AskHealth() if self.answers_health:
                        channel.send(self._health())
        finally:
            self._channels.discard(channel)

    def _take(self, request: Generate, channel: Channel) -> None:
        self.requests.append(request)
        job = self._jobs[request.id] = Job(request, channel)
        self.arrived.put_nowait(job)
        task = asyncio.create_task(self._run(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Job) -> None:
        await self.script(job)
        self._jobs.pop(job.request.id, None)

    def _health(self) -> Health:
        counters = Counters({1: 5, 3: 7}, 26, 26, 100, 9, 3, 0, 1, 3, 0.5, 0.1)
        slots = (SlotView(0, 8192, 12, "idle"),)
        health = Health(True, "ready", "ready", slots=slots, counters=counters, running=len(self._jobs))
        return msgspec.structs.replace(health, **self.health)
