"""Clients that leave or do not read, engines that wait, refuse, die or come back, and a gateway that stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from engine_double import Job
from gateway_appliance import MODEL, SOON, Appliance, Start, make_live

from tandem.contract.channel import Channel, serve
from tandem.contract.messages import (
    ApplianceState,
    FinishReason,
    RefusalCode,
    ReloadReport,
    RequestState,
    Subscribe,
)
from tandem.contract.plan import KeySource, Live, encode_plan
from tandem.gateway.inbox import MAX_BEHIND

pytestmark = pytest.mark.anyio
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def events_of(body: str) -> list[Any]:
    lines = (line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {"))
    return [json.loads(line) for line in lines]


async def silent(job: Job) -> None:
    """Queued, then nothing until it is cancelled."""
    job.progress(RequestState.QUEUED, "1 request is ahead", done=1)
    await job.until_cancelled()


async def reading(job: Job) -> None:
    job.start()
    job.progress(RequestState.READING, "read 256 of 4096", 256, 4096)
    await job.until_cancelled()


def writing(appliance: Appliance) -> Callable[[Job], Any]:
    async def script(job: Job) -> None:
        job.start()
        while not job.cancelled.is_set():
            job.tokens(appliance.engine.answer[0])
            await asyncio.sleep(0.001)
        job.finish(FinishReason.CANCELLED)

    return script


def ledger_rows(appliance: Appliance) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(appliance.service.plan.gateway.ledger)
    try:
        return connection.execute(
            "SELECT status, finish, prompt_tokens, completion_tokens, slot FROM requests"
        ).fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()


@pytest.mark.parametrize("stage", ["queued", "reading", "writing"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_slot_at_every_stage(start: Start, stage: str, stream: bool) -> None:
    async with start() as appliance:
        appliance.engine.script = {"queued": silent, "reading": reading, "writing": writing(appliance)}[stage]
        leaving = asyncio.create_task(appliance.http.post("/v1/chat/completions", json=BODY | {"stream": stream}))
        job = await appliance.engine.arrived.get()
        if stage == "writing":
            await appliance.until(lambda: job.num_sent > 3)
        leaving.cancel()
        assert await asyncio.wait_for(appliance.engine.cancels.get(), SOON) == job.request.id
        await appliance.until(lambda: appliance.service.in_flight == 0)
        await appliance.until(lambda: len(ledger_rows(appliance)) == 1)
        status, finish, _, written, slot = ledger_rows(appliance)[0]
        assert (status, finish) == (499, "cancelled")
        assert slot == (None if stage == "queued" else 0)
        assert (written > 0) == (stage == "writing")


async def test_fifty_clients_that_leave_leave_nothing_behind(start: Start) -> None:
    async with start() as appliance:
        normal = appliance.engine.script
        appliance.engine.script = writing(appliance)
        for n in range(50):
            leaving = asyncio.create_task(appliance.chat(stream=n % 2 == 0))
            await appliance.engine.arrived.get()
            await asyncio.sleep(n % 7 * 0.001)
            leaving.cancel()
        await appliance.until(lambda: appliance.service.in_flight == 0)
        appliance.engine.script = normal
        assert (await appliance.chat()).status_code == 200
        assert appliance.service.engine._sinks == {}
        assert len({task for task in asyncio.all_tasks() if "_watch" in str(task.get_coro())}) == 0


async def test_a_silent_engine_is_heard_of_by_the_clock(start: Start) -> None:
    async with start(make_live(keepalive=0.05)) as appliance:
        appliance.engine.script = silent
        async with appliance.http.stream("POST", "/v1/chat/completions", json=BODY | {"stream": True}) as response:
            lines = response.aiter_lines()
            seen = [line for _ in range(8) if (line := await anext(lines))]
        assert [line for line in seen if line.startswith(":")] == [": 1 request is ahead"] * 3
        (status,) = (line for line in seen if line.startswith("data:"))
        assert "1 request is ahead" in status, "a status line, once"


async def test_a_wait_for_memory_is_told_at_once_in_stream_and_header(start: Start) -> None:
    sentence = "waiting: memory is almost full (2.1 GiB needed, 1.0 free)"

    async def waits(job: Job) -> None:
        job.progress(RequestState.WAITING_MEMORY, sentence)
        await appliance.engine.say_answer(job)

    async with start() as appliance:
        appliance.engine.script = waits
        response = await appliance.chat(stream=True)
        assert response.headers["x-tandem-wait"] == "memory"
        assert response.text.startswith(f": {sentence}\n\ndata: ")
        events = [chunk for chunk in events_of(response.text) if "event" in chunk]
        assert [chunk["event"]["data"]["done"] for chunk in events] == [False, True]
        assert [chunk["event"]["data"].get("hidden") for chunk in events] == [None, True]
        assert all(chunk["choices"][0]["delta"] == {} for chunk in events)
        assert (await appliance.chat()).headers["x-tandem-wait"] == "memory"


async def test_waiting_ends_in_time_and_gives_the_place_back(start: Start) -> None:
    async def a_word(job: Job) -> None:
        job.start()
        job.tokens(appliance.engine.answer[0])
        await job.until_cancelled()

    async with start(make_live(queue_timeout=0.5, request_timeout=1.0)) as appliance:
        appliance.engine.script = silent
        response = await appliance.chat()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "queue_timeout")
        assert "1 request is ahead" in response.json()["error"]["message"]
        assert int(response.headers["retry-after"]) >= 1
        assert await appliance.engine.cancels.get()
        body = (await appliance.chat(stream=True)).text  # waits longer, is told in the stream
        assert '"code":"queue_timeout"' in body and body.endswith("data: [DONE]\n\n")
        appliance.engine.script = a_word
        whole = (await appliance.chat(max_tokens=None)).json()
        assert whole["choices"][0]["finish_reason"] == "length"  # what was written by then
        assert whole["choices"][0]["message"]["content"] == "Hello"


@pytest.mark.parametrize(
    ("code", "status", "has_retry"),
    [
        (RefusalCode.QUEUE_FULL, 429, True),
        (RefusalCode.TOO_LONG, 400, False),
        (RefusalCode.DRAINING, 503, True),
        (RefusalCode.QUEUE_TIMEOUT, 503, True),
        (RefusalCode.MEMORY_TIMEOUT, 503, True),
        (RefusalCode.TOO_BIG, 400, False),
        (RefusalCode.BAD_REQUEST, 400, False),
        (RefusalCode.FAILED, 500, False),
    ],
)
async def test_a_refusal_is_a_status_streamed_or_not(
    start: Start, code: RefusalCode, status: int, has_retry: bool
) -> None:
    async def refuses(job: Job) -> None:
        job.refuse(code, "no, because of 5")

    async with start() as appliance:
        appliance.engine.script = refuses
        for stream in (True, False):
            response = await appliance.chat(stream=stream)
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["source"]) == (status, code, "engine")
            assert "no, because of 5" in error["message"]
            assert ("retry-after" in response.headers) == has_retry


async def test_an_engine_that_dies_ends_every_stream_with_one_error(start: Start) -> None:
    async with start() as appliance:
        appliance.engine.script = writing(appliance)

        async def read() -> tuple[str, Exception | None]:
            text = ""
            try:
                stream: Any = await appliance.openai.chat.completions.create(
                    model=MODEL, messages=BODY["messages"], stream=True
                )
                async for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
            except openai.APIError as error:
                return text, error
            return text, None

        readers = [asyncio.create_task(read()) for _ in range(3)]
        raw = asyncio.create_task(appliance.chat(stream=True))
        whole = asyncio.create_task(appliance.chat())
        jobs = [await appliance.engine.arrived.get() for _ in range(5)]
        await appliance.until(lambda: all(job.num_sent > 3 for job in jobs))
        appliance.engine.die()
        for text, error in await asyncio.gather(*readers):
            assert text.startswith("Hello")
            assert isinstance(error, openai.APIError) and error.code == "engine_restarted"
        end = (await raw).text
        assert end.count("engine_restarted") == 1
        assert end.endswith("data: [DONE]\n\n")
        response = await whole
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_restarted")

        away = await appliance.chat()
        assert (away.status_code, away.json()["error"]["code"]) == (503, "loading")
        appliance.engine.script = appliance.engine.say_answer
        await appliance.engine.start()
        await appliance.until(lambda: appliance.service.engine.health is not None)
        assert (await appliance.chat()).status_code == 200


async def test_loading_is_told_with_progress_until_the_engine_is_ready(start: Start) -> None:
    async with start(engine_runs=False) as appliance:
        for state in ("away", "loading"):
            response = await appliance.chat()
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["source"]) == (503, "loading", "engine")
            assert int(response.headers["retry-after"]) >= 1
            assert (await appliance.http.get("/v1/models")).json()["data"][0]["status"] == state
            assert (await appliance.http.get("/livez")).status_code == 200
            assert (await appliance.http.get("/readyz")).status_code == 503
            health = await appliance.http.get("/health")
            assert health.status_code == 503
            assert health.json()["error"] == {"code": 503, "message": "Loading model", "type": "unavailable_error"}
            assert health.json()["progress"] == (0.4 if state == "loading" else 0.0)
            appliance.engine.health = {"ready": False, "state": "loading", "progress": 0.4, "sentence": "40 %"}
            if state == "away":
                await appliance.engine.start()
                await appliance.until(lambda: appliance.service.engine.health is not None)
        appliance.engine.health = {}
        await appliance.until(lambda: appliance.service.engine.status.state == "ready")
        assert (await appliance.chat()).status_code == 200


async def test_an_engine_that_has_just_become_ready_is_not_said_to_load(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.gateway.engine_client.POLL_EVERY", 600.0)
    async with start(engine_runs=False) as appliance:
        appliance.engine.health = {"ready": False, "state": "loading"}
        await appliance.engine.start()
        await appliance.until(lambda: appliance.service.engine.health is not None)
        appliance.engine.health = {}
        assert appliance.service.engine.status.state == "loading"  # its last word; the next poll is far away
        assert (await appliance.chat()).status_code == 200


async def test_a_reader_that_stalls_is_given_up(start: Start) -> None:
    async def flood(job: Job) -> None:
        job.start()
        while not job.cancelled.is_set():
            for _ in range(200):
                job.tokens(appliance.engine.answer[0])
            await asyncio.sleep(0)
        job.finish(FinishReason.CANCELLED)

    async with start(make_live(request_timeout=600.0)) as appliance:
        appliance.engine.script = flood
        request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
        body = json.dumps(BODY | {"stream": True}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", int(appliance.url.rpartition(":")[2]), limit=1024)
        writer.write(request % (len(body), body))
        job = await appliance.engine.arrived.get()
        assert await appliance.engine.cancels.get() == job.request.id
        writer.transport.abort()
        await appliance.until(lambda: appliance.service.in_flight == 0)
        assert job.num_sent > MAX_BEHIND


@contextlib.asynccontextmanager
async def director(appliance: Appliance) -> AsyncIterator[Callable[..., None]]:
    """Says what the appliance's state is, to whoever subscribed."""
    channels: list[Channel] = []

    async def converse(channel: Channel) -> None:
        assert isinstance(await channel.receive(), Subscribe)
        channels.append(channel)
        await channel.receive()

    def say(phase: str = "serving", live: Live | None = None, reload: ReloadReport | None = None) -> None:
        data = msgspec.json.encode(live or appliance.service.live)
        for channel in channels:
            channel.send(ApplianceState("plan-2", phase, (), data, 5 << 30, 8 << 30, 1.0, reload))

    server = await serve(Path(appliance.service.plan.paths.director_socket), converse)
    await appliance.until(lambda: len(channels) == 1)
    yield say
    server.close()
    for channel in channels:
        channel.close()


async def test_draining_refuses_the_new_and_finishes_the_running(start: Start) -> None:
    async with start() as appliance:
        go_on = asyncio.Event()

        async def slow(job: Job) -> None:
            job.start()
            job.tokens(appliance.engine.answer[0])
            await go_on.wait()
            job.tokens(*appliance.engine.answer[1:])
            job.finish()

        appliance.engine.script = slow
        running = asyncio.create_task(appliance.chat(stream=True))
        await appliance.engine.arrived.get()
        async with director(appliance) as say:
            say("draining")
            await appliance.until(lambda: appliance.service.is_draining)
            refused = await appliance.chat()
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert "retry-after" in refused.headers
            assert (await appliance.http.get("/readyz")).json()["status"] == "draining"
            go_on.set()
            assert (await running).text.endswith("data: [DONE]\n\n")
            say("serving")
            await appliance.until(lambda: not appliance.service.is_draining)
            assert (await appliance.chat()).status_code == 200


async def test_live_limits_act_on_the_next_request(start: Start, tmp_path: Path) -> None:
    async with start() as appliance, director(appliance) as say:
        say(live=make_live(default_max_tokens=7, max_body=100), reload=ReloadReport(1.0, "applied", "live", "2 keys"))
        await appliance.until(lambda: appliance.service.live.limits.default_max_tokens == 7)
        await appliance.chat()
        assert appliance.engine.requests[-1].max_tokens == 7
        assert (await appliance.chat("x" * 200)).status_code == 413
        health = (await appliance.http.get("/health")).json()
        assert (health["plan"], health["phase"]) == ("plan-2", "serving")
        assert health["reload"]["sentence"] == "2 keys"
        assert health["memory"]["available"] == 5 << 30
        assert health["engine"]["counters"]["rounds_by_size"] == {"1": 5, "3": 7}
        assert health["engine"]["slots"][0]["rows"] == 12
        assert health["limits"]["max_queue"] == 4


async def test_new_keys_and_a_new_retention_act_at_once(start: Start, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("anna:sesame\n")
    async with start() as appliance, director(appliance) as say:
        assert (await appliance.chat()).status_code == 200
        live = msgspec.structs.replace(make_live(KeySource(file=str(tmp_path / "keys"))), ledger_days=7)
        say(live=live)
        await appliance.until(lambda: appliance.service.live == live)
        assert (await appliance.chat()).status_code == 401
        appliance.http.headers["x-api-key"] = "sesame"
        assert (await appliance.chat()).status_code == 200
        assert appliance.service.ledger.days == 7


async def test_the_last_word_stands_when_the_director_is_gone(start: Start) -> None:
    async with start() as appliance:
        async with director(appliance) as say:
            say(live=make_live(default_max_tokens=7))
            await appliance.until(lambda: appliance.service.live.limits.default_max_tokens == 7)
        await appliance.chat()
        assert appliance.engine.requests[-1].max_tokens == 7


async def test_a_hung_device_thread_turns_readiness_off_and_not_liveness(start: Start) -> None:
    async with start() as appliance:
        appliance.engine.health = {"last_turn_age": 9.0, "running": 0}
        await appliance.service.engine.refresh(0, 1)
        assert (await appliance.http.get("/readyz")).status_code == 200  # idle threads may sleep
        appliance.engine.health = {"last_turn_age": 9.0, "running": 1}
        await appliance.service.engine.refresh(0, 1)
        ready = await appliance.http.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "hung")
        assert (await appliance.http.get("/livez")).status_code == 200
        assert (await appliance.chat()).status_code == 200  # it may only be slow: whoever asks may wait


async def test_a_signal_lets_running_requests_finish(start: Start) -> None:
    async with start() as appliance:
        go_on = asyncio.Event()

        async def slow(job: Job) -> None:
            job.start()
            await go_on.wait()
            job.tokens(*appliance.engine.answer)
            job.finish()

        appliance.engine.script = slow
        running = asyncio.create_task(appliance.chat())
        await appliance.engine.arrived.get()
        appliance.server.handle_exit(signal.SIGTERM, None)
        await appliance.until(lambda: appliance.service.is_stopping)
        async with httpx.AsyncClient(base_url=appliance.url) as other:
            refused = await other.post("/v1/chat/completions", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert not appliance.server.should_exit
        go_on.set()
        assert (await running).status_code == 200
        await appliance.until(lambda: appliance.server.should_exit)


async def test_every_request_is_a_row_and_a_count_and_no_text(start: Start) -> None:
    async with start() as appliance:
        await appliance.chat("a secret word", user="x")
        await appliance.chat(max_tokens=0)
        await appliance.chat(stream=True, stop=["world"])
        await appliance.until(lambda: len(ledger_rows(appliance)) == 3)
        metrics = (await appliance.http.get("/metrics")).text
        path = Path(appliance.service.plan.gateway.ledger)
    rows = ledger_rows(appliance)
    assert [row[:2] for row in rows] == [(200, "stop"), (400, "invalid_value"), (200, "stop")]
    assert rows[0][2] > 30 and rows[0][4] == 0
    assert 0 < rows[2][3] < rows[0][3]
    content = b"".join(file.read_bytes() for file in path.parent.glob("ledger.sqlite*"))
    assert b"secret" not in content and b"Hello" not in content
    assert 'tandem_requests_total{outcome="stop",route="/v1/chat/completions"} 2.0' in metrics
    assert 'tandem_rounds_total{size="3"} 7.0' in metrics
    assert "tandem_ttft_seconds_count 2.0" in metrics
    assert 'tandem_gateway_seconds_total{part="writing"}' in metrics


async def test_the_ledger_tells_tasks_from_turns(start: Start) -> None:
    async with start() as appliance:
        await appliance.chat()
        await appliance.http.post("/v1/chat/completions", json=BODY, headers={"X-Task": "title"})
        await appliance.until(lambda: len(ledger_rows(appliance)) == 2)
        connection = sqlite3.connect(appliance.service.plan.gateway.ledger)
        assert connection.execute("SELECT task FROM requests ORDER BY at").fetchall() == [(0,), (1,)]
        connection.close()


async def test_a_ledger_that_cannot_be_written_fails_no_request(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with start(ledger=str(tmp_path / "file" / "ledger.sqlite")) as appliance:
        assert (await appliance.chat()).status_code == 200
        await appliance.until(lambda: appliance.service.ledger.num_lost == 1)
        assert (await appliance.http.get("/health")).json()["ledger_rows_lost"] == 1


async def test_choices_that_can_never_be_here_at_once_are_no_matter_of_patience(start: Start) -> None:
    async with start() as appliance:  # two slots, and four may wait
        assert (await appliance.chat(n=6)).status_code == 200
        refused = await appliance.chat(n=7)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        assert "retry-after" not in refused.headers


async def test_health_says_the_warnings_of_the_plan_that_holds_now(start: Start, tmp_path: Path) -> None:
    async with start() as appliance:
        plan = appliance.service.plan
        assert (await appliance.http.get("/health")).json()["warnings"] == []
        edited = msgspec.structs.replace(plan, warnings=("the API answers on 0.0.0.0 without keys",))
        plan.paths.plan.write_bytes(encode_plan(edited))  # as the director does at every edit it takes
        assert (await appliance.http.get("/health")).json()["warnings"] == list(edited.warnings)
        plan.paths.plan.write_text("{")
        assert (await appliance.http.get("/health")).json()["warnings"] == []


async def test_health_says_what_the_key_file_is_now(start: Start, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("ann:key\n")
    headers = {"authorization": "Bearer key"}
    async with start(live=make_live(KeySource(file=str(tmp_path / "keys")))) as appliance:
        assert (await appliance.http.get("/health", headers=headers)).json()["warnings"] == []
        (tmp_path / "keys").write_text("ann:key\nben\n")
        (said,) = (await appliance.http.get("/health", headers=headers)).json()["warnings"]
        assert "on line 2:" in said
