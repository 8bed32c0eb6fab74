"""One generation request, from its body to its last byte. `Exchange.__call__` is the whole path, in order."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final, Generic
from uuid import uuid4

from litestar.types import Receive, Scope, Send

from tandem.conductor.status import Line
from tandem.contract.messages import FinishReason, RefusalCode
from tandem.gateway import sse
from tandem.gateway.accounting import Account, remarks_of, timings_of, usage_of
from tandem.gateway.asgi import ClientLeft, caller_of, client_of, name_list, read_body, respond
from tandem.gateway.call import Begun, Call, Choice, Ended, Failed, Output, Piece, Said
from tandem.gateway.dialect import Chunks, Dialect, Ending, Gathered, Identity, Wanted
from tandem.gateway.errors import ApiError, our_fault
from tandem.gateway.hints import Hints, hints_of
from tandem.gateway.job import Job, make_job
from tandem.gateway.narration import narrate
from tandem.gateway.openai import ChatRequest, Generation
from tandem.gateway.reading import read
from tandem.gateway.running import RunningCall
from tandem.gateway.service import Service
from tandem.gateway.shaping import last_task, without_status
from tandem.text.tokenizer import Tokenizer

ASK_AGAIN: Final = 0.5  # seconds until a task asks again whether there is a place in the queue


class Exchange(Generic[Wanted]):
    """An ASGI application for one request."""

    def __init__(self, service: Service, dialect: Dialect[Wanted]) -> None:
        self._service = service
        self._dialect = dialect
        self._live = service.live
        self._identity = Identity(f"{dialect.prefix}{uuid4().hex}", int(time.time()), service.plan.gateway.model)
        self._account = Account(self._identity.id, dialect.route, time.time(), time.monotonic())
        self._headers: list[tuple[bytes, bytes]] = []
        self._task = ""  # what the user wants, where a narrator may tell of it
        self._unnoted: ChatRequest | None = None  # the client's messages, where the conductor has added to them

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._account.caller, self._account.client = caller_of(scope), client_of(scope)
        self._account.request_id = scope["state"].get("request_id", "")
        with self._service.counted(self._account):
            try:
                wanted, generation = await self._read(scope, receive)
                if (answer := self._dialect.at_once(wanted)) is not None:
                    self._account.was_at_once = True
                    await respond(send, 200, [(b"content-type", b"application/json"), *self._headers], answer)
                    return
                hints = hints_of(dict(scope["headers"]), generation.openings, self._account.caller, self._live.api)
                with self._within_quota(hints):
                    generation = await self._conduct(generation, hints)
                    job = await self._make_job(wanted, generation, hints)
                    run = self._run_task if hints.is_task else self._run
                    await run(wanted, job, bool(generation.stream), receive, send)
            except ApiError as error:
                self._account.error = error
                waited = wait_header(self._account.call) if self._account.call is not None else []
                headers = [*error.headers, *self._headers, *waited]
                await respond(send, error.status, headers, self._dialect.error(error))
            except ClientLeft:
                self._account.has_left = True
            except Exception:
                self._account.error = our_fault()  # for the books; the answer is written further out
                raise

    async def _read(self, scope: Scope, receive: Receive) -> tuple[Wanted, Generation]:
        body = await read_body(scope, receive, self._live.limits.max_body)
        self._arrived = time.perf_counter()
        wanted, unknown = read(self._dialect.request, body)
        generation = self._dialect.generation(wanted)
        generation.check()
        self._account.streamed = bool(generation.stream)
        if ignored := (*unknown, *generation.not_read, *self._dialect.not_read(wanted)):
            self._headers.append((b"x-tandem-ignored", name_list(ignored)))
        self._service.check_model(generation.model)
        await self._service.check_open()
        return wanted, generation

    def _within_quota(self, hints: Hints) -> AbstractContextManager[None]:
        quota, caller, limits = self._service.quota, self._account.caller, self._live.limits
        quota.arrive(caller, hints.is_task, limits, time.monotonic())
        return quota.running(caller, hints.is_task, limits)

    async def _run_task(self, wanted: Wanted, job: Job, is_streamed: bool, receive: Receive, send: Send) -> None:
        """A task waits outside of a full queue: a client that is told to come back keeps the answer it belongs to from
        its user until it has."""
        until = time.monotonic() + self._live.limits.queue_timeout
        while True:
            try:
                return await self._run(wanted, job, is_streamed, receive, send)
            except ApiError as error:
                if error.code != RefusalCode.QUEUE_FULL or time.monotonic() >= until:
                    raise
            await asyncio.sleep(ASK_AGAIN)

    async def _run(self, wanted: Wanted, job: Job, is_streamed: bool, receive: Receive, send: Send) -> None:
        service, limits = self._service, self._live.limits
        shows_status = is_streamed and self._live.api.status
        async with RunningCall(
            job, service.engine, service.prompts.tokenizer, limits, is_streamed, shows_status
        ) as running:
            self._account.call, self._account.job = running.call, job
            running.watch(receive)
            if shows_status and self._task and service.roles.loaded("narrator"):
                running.narrate(narrate(service.roles, running.call, self._identity.id, self._task, running.tell))
            answer = self._stream if is_streamed else self._answer
            await answer(running, wanted, job, send)
            await running.settle()

    async def _conduct(self, generation: Generation, hints: Hints) -> Generation:
        """A conversation as the conductor wants it served. A task beside one is served as it is."""
        if not isinstance(generation, ChatRequest):
            return generation
        generation = without_status(generation)
        if hints.is_task:
            return generation
        self._task = last_task(generation)
        if not self._live.conductor:
            return generation
        shaped, self._account.decision = await self._service.conductor.conduct(
            generation, self._identity.id, self._account.caller.scope, self._live.conducting
        )
        self._unnoted = generation if shaped.messages is not generation.messages else None
        return shaped

    async def _make_job(self, wanted: Wanted, generation: Generation, hints: Hints) -> Job:
        service = self._service
        prompts = await self._dialect.prompts(wanted, generation, service.prompts)
        if self._unnoted is not None:
            client = await service.prompts.rendered(self._unnoted)
            prompts = [replace(prompt, client=client) for prompt in prompts]
        job = make_job(
            generation,
            prompts,
            id=self._identity.id,
            defaults=self._live.sampling,
            limits=self._live.limits,
            vocabulary=service.prompts.tokenizer.vocabulary,
            window=service.plan.gateway.window,
            slots=len(service.plan.engine.slots),
            hints=hints,
        )
        service.metrics.reading.inc(time.perf_counter() - self._arrived)
        return job

    async def _stream(self, running: RunningCall, wanted: Wanted, job: Job, send: Send) -> None:
        """The status waits for the engine's first word, so that a refusal is a status and not an event."""
        call, chunks = running.call, self._dialect.chunks(wanted, self._identity, self._names(job))
        outputs = await running.outputs()
        if call.error is not None:
            raise call.error
        if call.client_left:
            return
        headers = [*sse.headers(self._dialect.stream_type), *self._headers, *told_in_headers(call, job)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = chunks.open()
        while outputs:
            began = time.perf_counter()
            body += b"".join(render(output, chunks, call, job) for output in outputs)
            if call.is_over and call.error is None:
                body += chunks.close(usage_of(call, job))
            self._service.metrics.writing.inc(time.perf_counter() - began)
            await send({"type": "http.response.body", "body": body, "more_body": not call.is_over})
            running.note_sent()
            outputs, body = await running.outputs(), b""

    async def _answer(self, running: RunningCall, wanted: Wanted, job: Job, send: Send) -> None:
        call = running.call
        gathered = [Gathered() for _ in call.choices]
        while outputs := await running.outputs():
            for output in outputs:
                if isinstance(output, Piece):
                    gathered[output.index].add(output.part, output.shown)
        if call.error is not None:
            raise call.error
        if call.client_left:
            return
        await running.settle()  # a choice cut at a stop string has its timings only now
        written = [gathered[choice.index].whole(choice.index, ending_of(choice, job)) for choice in call.choices]
        body = self._dialect.whole(wanted, self._identity, written, usage_of(call, job), self._names(job))
        headers = [(b"content-type", b"application/json"), *self._headers, *told_in_headers(call, job)]
        await respond(send, 200, headers, body)

    def _names(self, job: Job) -> Tokenizer | None:
        return self._service.prompts.tokenizer if job.wants_scores else None


def render(output: Output, chunks: Chunks, call: Call, job: Job) -> bytes:
    match output:
        case Piece():
            return chunks.piece(output.index, output.part, output.shown)
        case Begun():
            return chunks.begin(output.index, usage_of(call, job))
        case Ended():
            return chunks.end(output.index, ending_of(call.choices[output.index], job))
        case Said():
            return chunks.said(output.sentence)
        case Line():
            return chunks.status(output.sentence, output.done)
        case Failed():
            return chunks.failed(output.error)
        case _:
            return b""


def ending_of(choice: Choice, job: Job) -> Ending:
    """Of a choice that is whole."""
    reason = choice.reason or FinishReason.STOP
    return Ending(reason, choice.has_calls, choice.answer.stop, timings_of(choice), remarks_of(choice, job.asked))


def told_in_headers(call: Call, job: Job) -> list[tuple[bytes, bytes]]:
    """A limit that was cut to the room, as far as it is known by then: a slot's own room is told at the end."""
    rooms = [choice.started.max_tokens for choice in call.choices if choice.started is not None]
    room = max(rooms, default=job.room)
    is_cut = job.asked is not None and room < job.asked
    return [*wait_header(call), *([(b"x-tandem-max-tokens", b"%d" % room)] if is_cut else [])]


def wait_header(call: Call) -> list[tuple[bytes, bytes]]:
    """A stream's headers leave with its first words, which are why it waits; other answers say that they waited."""
    return [(b"x-tandem-wait", b"memory")] if call.waited_for_memory else []
