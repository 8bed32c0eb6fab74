"""Every kind of client at once for a while: those that read, leave, dawdle, stall, and send what is no request.

Afterwards nothing of them is left: no request in the gateway or the engine, no file, no memory. Which clients come, and
in which order, is drawn from a seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from engine_double import Job
from gateway_process import GatewayProcess, gateway_process
from spoken import CLOCK

from tandem.contract.messages import FinishReason, RefusalCode
from tandem.text.tokenizer import Tokenizer

AT_ONCE = 24
MOST_TOKENS = 60
MAY_GROW = 12 << 20  # bytes, for allocators and caches that have not seen everything yet


@pytest.fixture
def gateway(tmp_path: Path, weights: Path, tokenizer: Tokenizer) -> Iterator[GatewayProcess]:
    with gateway_process(tmp_path, weights, tokenizer.encode(" one two three four five six seven")) as running:
        yield running


class Clients:
    def __init__(self, gateway: GatewayProcess, draw: random.Random) -> None:
        self._port = int(gateway.url.rpartition(":")[2])
        self._draw = draw
        self.sent_at: dict[str, list[float]] = defaultdict(list)  # by the answer's id: when the engine sent each token
        self.delays: list[float] = []  # of tokens, from the engine's socket to the client
        self.num_whole = 0

    async def one(self) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.reads, self.reads, self.reads, self.wants_all, self.leaves, self.leaves_at_once, self.dawdles,
            self.stalls, self.sends_nonsense, self.breaks_off,
        ]  # fmt: skip
        await self._draw.choice(kinds)()

    async def reads(self) -> None:
        reader, writer = await self._ask(stream=True)
        body, heard = b"", []
        while piece := await reader.read(1 << 16):
            body += piece
            heard += [time.monotonic()] * piece.count(b'"delta":{"content":" ')
        writer.close()
        if b" 200 OK" in body:
            assert b"data: [DONE]" in body
            self.num_whole += 1
            found = re.search(rb'"id":"(chatcmpl-\w+)"', body)
            sent = self.sent_at[found[1].decode()] if found is not None else []
            self.delays += [at - before for before, at in zip(sent, heard, strict=False)]

    async def wants_all(self) -> None:
        reader, writer = await self._ask(tools=[CLOCK], stop=[" seven"])
        body = await reader.read()
        writer.close()
        assert body.startswith(b"HTTP/1.1 ")

    async def leaves(self) -> None:
        reader, writer = await self._ask(stream=True)
        await reader.read(self._draw.randrange(1, 3000))
        writer.transport.abort()

    async def leaves_at_once(self) -> None:
        _, writer = await self._ask(stream=self._draw.random() < 0.5)
        writer.transport.abort()

    async def dawdles(self) -> None:
        reader, writer = await self._ask(stream=True)
        for _ in range(10):
            await reader.read(200)
            await asyncio.sleep(0.01)
        writer.close()

    async def stalls(self) -> None:
        _, writer = await self._ask(stream=True)
        await asyncio.sleep(0.2)
        writer.transport.abort()

    async def sends_nonsense(self) -> None:
        body = self._draw.choice([b"{", b"[]", b'{"messages":[{}]}', b"\xff\xfe", b'{"messages":' + b"[" * 9000, b""])
        reader, writer = await self._send(body, len(body))
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()

    async def breaks_off(self) -> None:
        _, writer = await self._send(b'{"messages":', 4000)
        await asyncio.sleep(self._draw.random() * 0.05)
        writer.transport.abort()

    async def _ask(self, **fields: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "n": self._draw.randint(1, 2), **fields})
        return await self._send(body.encode(), len(body))

    async def _send(self, body: bytes, length: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length + body)
        return reader, writer


def engine(gateway: GatewayProcess, clients: Clients, draw: random.Random) -> Callable[[Job], Awaitable[None]]:
    """Answers of any length, some of them refused or given up."""

    async def script(job: Job) -> None:
        fate = draw.random()
        if fate < 0.05:
            job.refuse(draw.choice([RefusalCode.QUEUE_FULL, RefusalCode.FAILED]), "not now")
            return
        job.start()
        answer, sent = gateway.engine.answer, clients.sent_at[job.request.id.rpartition(".")[0]]
        for n in range(draw.randrange(MOST_TOKENS)):
            if job.cancelled.is_set():
                job.finish(FinishReason.CANCELLED)
                return
            sent.append(time.monotonic())
            job.tokens(answer[n % len(answer)])
            await asyncio.sleep(draw.choice([0, 0, 0.001, 0.003]))
        job.finish(FinishReason.CANCELLED if fate > 0.97 else FinishReason.STOP)

    return script


async def soak(clients: Clients, count: int) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with places:
            await asyncio.wait_for(clients.one(), 100)

    await asyncio.gather(*(one() for _ in range(count)))


def at_rest(gateway: GatewayProcess) -> tuple[int, int]:
    """Files and bytes of the gateway once nothing is in flight, here or there."""
    process, end = psutil.Process(gateway.process.pid), time.monotonic() + 60
    while True:
        metrics = httpx.get(f"{gateway.url}/metrics", headers={"Connection": "close"}, timeout=30).text
        is_idle = "tandem_in_flight 0.0" in metrics and not gateway.engine._jobs
        sockets = [each for each in process.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED]
        if is_idle and not sockets:
            return process.num_fds(), process.memory_info().rss
        assert time.monotonic() < end, f"{metrics[-600:]}\n{gateway.engine._jobs}\n{sockets}"
        time.sleep(0.02)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [120, pytest.param(3000, marks=pytest.mark.slow)])
def test_clients_of_every_kind_leave_nothing_behind(gateway: GatewayProcess, count: int, record_property: Any) -> None:
    gateway.until("/readyz", 200)
    draw = random.Random(8)
    clients = Clients(gateway, draw)
    gateway.engine.script = engine(gateway, clients, draw)
    asyncio.run(soak(clients, count // 3))
    files, size = at_rest(gateway)
    asyncio.run(soak(clients, count))
    later = at_rest(gateway)
    delays = sorted(clients.delays)
    p99 = delays[len(delays) * 99 // 100]
    record_property("p99_milliseconds_a_token", round(p99 * 1000, 1))
    print(f"{clients.num_whole} whole streams; of {len(delays)} tokens the 99th percentile took {p99 * 1000:.1f} ms")
    assert clients.num_whole > count // 5
    assert later[0] <= files + 1  # the log, or the ledger's journal, may have been opened meanwhile
    assert later[1] < size + MAY_GROW
    assert httpx.get(f"{gateway.url}/readyz", timeout=30).status_code == 200
