from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_double import EngineDouble, Job

from tandem.contract.messages import (
    Finished,
    Generate,
    Health,
    Marks,
    Sampling,
    Started,
    Tokens,
)
from tandem.gateway.app import GONE_AFTER, bind
from tandem.gateway.engine_client import HUNG_AFTER, EngineAway, EngineClient, EngineState, engine_status
from tandem.gateway.inbox import Happening, Signal

pytestmark = pytest.mark.anyio


def health(**changes: Any) -> Health:
    return msgspec.structs.replace(Health(ready=True, state="ready", sentence="well"), **changes)


OLD = HUNG_AFTER + 0.1


@pytest.mark.parametrize(
    ("connected", "said", "age", "state"),
    [
        (False, None, 0, EngineState.AWAY),
        (False, health(), 0, EngineState.AWAY),
        (True, None, 0, EngineState.LOADING),
        (True, None, OLD, EngineState.HUNG),
        (True, health(ready=False, state="loading"), 0, EngineState.LOADING),
        (True, health(ready=False, state="ready"), 0, EngineState.LOADING),  # alive, but no token generated yet
        (True, health(), 0, EngineState.READY),
        (True, health(), OLD, EngineState.HUNG),  # stopped altogether: it does not answer
        (True, health(last_turn_age=OLD), 0, EngineState.READY),  # idle: its thread sleeps
        (True, health(last_turn_age=OLD, running=1), 0, EngineState.HUNG),
        (True, health(last_turn_age=OLD, queued=1), 0, EngineState.HUNG),
        (True, health(last_turn_age=OLD, waiting_memory=1), 0, EngineState.HUNG),
        (True, health(last_turn_age=HUNG_AFTER - 0.1, running=4), 0, EngineState.READY),
        (True, health(ready=False, state="loading", last_turn_age=OLD, queued=1), 0, EngineState.LOADING),
        (True, health(state="draining"), 0, EngineState.DRAINING),
        (True, health(ready=False, state="failed"), 0, EngineState.FAILED),
        (True, health(state="something new"), 0, EngineState.LOADING),
    ],
)
def test_what_the_engines_last_word_means(connected: bool, said: Health | None, age: float, state: EngineState) -> None:
    assert engine_status(connected, said, age).state is state


@asynccontextmanager
async def connected(path: Path, **options: Any) -> AsyncIterator[tuple[EngineClient, EngineDouble]]:
    double, client = EngineDouble(path, [5, 6, 7]), EngineClient(path, **options)
    await double.start()
    running = asyncio.create_task(client.run())
    await client_ready(client)
    try:
        yield client, double
    finally:
        running.cancel()
        double.die()


async def client_ready(client: EngineClient) -> None:
    while client.health is None:
        await asyncio.sleep(0.002)


def ask(id: str) -> Generate:
    return Generate(id, (1, 2), 8, (2,), Sampling(), Marks(1, 1))


async def test_answers_find_their_requests(tmp_path: Path) -> None:
    async with connected(tmp_path / "e.sock") as (client, _):
        heard: dict[str, list[Happening]] = {f"r{n}": [] for n in range(20)}
        for id, sink in heard.items():
            client.submit(ask(id), sink.append)
        while not all(sink and isinstance(sink[-1], Finished) for sink in heard.values()):
            await asyncio.sleep(0.002)
        for id, sink in heard.items():
            assert [type(message) for message in sink] == [Started, Tokens, Tokens, Tokens, Finished]
            assert {message.id for message in sink if not isinstance(message, Signal)} == {id}


async def test_a_closed_socket_is_seen_at_once_and_connected_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.gateway.engine_client.POLL_EVERY", 600.0)  # it is seen without a question
    async with connected(tmp_path / "e.sock") as (client, double):

        async def never(job: Job) -> None:
            await job.until_cancelled()

        double.script = never
        heard: list[Happening] = []
        client.submit(ask("r"), heard.append)
        await double.arrived.get()
        double.die()
        while not heard:
            await asyncio.sleep(0.001)
        assert heard == [Signal.ENGINE_LOST]
        assert client.status.state is EngineState.AWAY
        with pytest.raises(EngineAway):
            client.submit(ask("r2"), heard.append)
        client.cancel("r")  # of a request that is over: nothing
        await double.start()
        await client_ready(client)
        client.submit(ask("r3"), heard.append)
        assert (await double.arrived.get()).request.id == "r3"


async def test_an_engine_that_speaks_nonsense_is_left(tmp_path: Path) -> None:
    heard: list[Happening] = []

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"\x00\x00\x00\x03abc")

    server = await asyncio.start_unix_server(nonsense, str(tmp_path / "e.sock"))
    client = EngineClient(tmp_path / "e.sock")
    running = asyncio.create_task(client.run())
    while True:
        await asyncio.sleep(0.001)
        try:
            client.submit(ask("r"), heard.append)
            break
        except EngineAway:
            continue
    while not heard:
        await asyncio.sleep(0.001)
    assert heard == [Signal.ENGINE_LOST]
    assert not running.done()
    running.cancel()
    server.close()


async def test_a_refresh_asks_anew_and_does_not_wait_for_a_hung_engine(tmp_path: Path) -> None:
    now = [0.0]
    async with connected(tmp_path / "e.sock", clock=lambda: now[0]) as (client, double):
        double.health = {"queued": 3}
        now[0] = 1.0
        await client.refresh(max_age=0.5, timeout=5)
        assert client.health is not None and client.health.queued == 3
        double.answers_health = False
        now[0] = 3.0
        assert (await client.refresh(max_age=0.5, timeout=0.01)).state is EngineState.READY
        now[0] = 5.5
        assert (await client.refresh(max_age=0.5, timeout=0.01)).state is EngineState.HUNG


def test_a_client_that_vanishes_is_closed_by_the_kernel() -> None:
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            option = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert option == GONE_AFTER * 1000
