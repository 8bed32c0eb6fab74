"""One generation request, from its body to its last byte. `Exchange.__call__` is the whole path, in order."""

from __future__ import annotations

import time
from typing import Generic
from uuid import uuid4

from litestar.types import Receive, Scope, Send

from tandem.contract.messages import FinishReason
from tandem.gateway import sse
from tandem.gateway.accounting import Account, remarks_of, timings_of, usage_of
from tandem.gateway.asgi import ClientLeft, caller_of, client_of, name_list, read_body, respond
from tandem.gateway.call import Begun, Call, Choice, Ended, Failed, Noted, Output, Piece, Said
from tandem.gateway.dialect import Chunks, Dialect, Ending, Gathered, Identity, Wanted
from tandem.gateway.errors import ApiError
from tandem.gateway.job import Job, make_job
from tandem.gateway.openai import Generation
from tandem.gateway.reading import read
from tandem.gateway.running import RunningCall
from tandem.gateway.service import Service
from tandem.text.tokenizer import Tokenizer


class Exchange(Generic[Wanted]):
    """An ASGI application for one request."""

    def __init__(self, service: Service, dialect: Dialect[Wanted]) -> None:
        self._service = service
        self._dialect = dialect
        self._live = service.live
        self._identity = Identity(f"{dialect.prefix}{uuid4().hex}", int(time.time()), service.plan.gateway.model)
        self._account = Account(self._identity.id, dialect.route, time.time(), time.monotonic())
        self._headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._account.caller, self._account.client = caller_of(scope), client_of(scope)
        with self._service.counted(self._account):
            try:
                wanted, generation = await self._read(scope, receive)
                job = await self._make_job(wanted, generation)
                is_streamed = bool(generation.stream)
                async with RunningCall(
                    job, self._service.engine, self._service.prompts.tokenizer, self._live.limits, is_streamed
                ) as running:
                    self._account.call, self._account.job = running.call, job
                    running.watch(receive)
                    if is_streamed:
                        await self._stream(running, wanted, job, send)
                    else:
                        await self._answer(running, wanted, job, send)
                    await running.settle()
            except ApiError as error:
                self._account.error = error
                waited = wait_header(self._account.call) if self._account.call is not None else []
                headers = [*error.headers, *self._headers, *waited]
                await respond(send, error.status, headers, self._dialect.error(error))
            except ClientLeft:
                self._account.has_left = True

    async def _read(self, scope: Scope, receive: Receive) -> tuple[Wanted, Generation]:
        body = await read_body(scope, receive, self._live.limits.max_body)
        self._arrived = time.perf_counter()
        wanted, unknown = read(self._dialect.request, body)
        generation = self._dialect.generation(wanted)
        generation.check()
        self._account.streamed = bool(generation.stream)
        if ignored := (*unknown, *generation.not_read):
            self._headers.append((b"x-tandem-ignored", name_list(ignored)))
        self._service.check_model(generation.model)
        await self._service.check_open()
        return wanted, generation

    async def _make_job(self, wanted: Wanted, generation: Generation) -> Job:
        service = self._service
        job = make_job(
            generation,
            await self._dialect.prompts(wanted, service.prompts),
            id=self._identity.id,
            defaults=self._live.sampling,
            limits=self._live.limits,
            vocabulary=service.prompts.tokenizer.vocabulary,
            window=service.plan.gateway.window,
            slots=len(service.plan.engine.slots),
            scope=self._account.caller.scope,
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
        headers = [*sse.headers(self._dialect.stream_type), *self._headers, *wait_header(call)]
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
        written = [gathered[choice.index].whole(choice.index, ending_of(choice)) for choice in call.choices]
        body = self._dialect.whole(wanted, self._identity, written, usage_of(call, job), self._names(job))
        await respond(send, 200, [(b"content-type", b"application/json"), *self._headers, *wait_header(call)], body)

    def _names(self, job: Job) -> Tokenizer | None:
        return self._service.prompts.tokenizer if job.wants_scores else None


def render(output: Output, chunks: Chunks, call: Call, job: Job) -> bytes:
    match output:
        case Piece():
            return chunks.piece(output.index, output.part, output.shown)
        case Begun():
            return chunks.begin(output.index, usage_of(call, job))
        case Ended():
            return chunks.end(output.index, ending_of(call.choices[output.index]))
        case Said():
            return chunks.said(output.sentence)
        case Noted():
            return chunks.status(output.sentence, output.done)
        case Failed():
            return chunks.failed(output.error)
        case _:
            return b""


def ending_of(choice: Choice) -> Ending:
    """Of a choice that is whole."""
    reason = choice.reason or FinishReason.STOP
    return Ending(reason, choice.has_calls, choice.text.stop, timings_of(choice), remarks_of(choice))


def wait_header(call: Call) -> list[tuple[bytes, bytes]]:
    """A stream's headers leave with its first words, which are why it waits; other answers say that they waited."""
    return [(b"x-tandem-wait", b"memory")] if call.waited_for_memory else []
