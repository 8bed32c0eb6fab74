"""What the gateway costs a token, by how many streams there are: processor time of its process, and how long a token
takes from the engine's socket to the client's.

The gateway is the appliance's own, a process of its own. Before it stand clients that only count bytes, behind it an
engine that writes whatever it is asked for: every stream one token in turn, at a set pace or as fast as they are read.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
from uvicorn.loops.auto import auto_loop_factory

from bench.appliance import LONGEST_START, LONGEST_STOP, DidNotStart, free_port
from bench.client import RequestFailed
from bench.growth.curves import Axis, Curve, line
from bench.machine import PROJECT
from bench.turns import progress
from tandem.config import load
from tandem.contract.channel import Channel, serve
from tandem.contract.messages import AskHealth, Finished, FinishReason, Generate, Health, Started, Tokens
from tandem.contract.plan import Plan, encode_plan
from tandem.memory.reading import read_box
from tandem.planner.compile import compile_plan
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary

STREAMS: Final = (1, 10, 50, 100, 200)
PACE: Final = 30.0  # tokens a second and stream
SECONDS: Final = 4.0  # that tokens are written for
REPETITIONS: Final = 3
UNPACED: Final = 20_000  # tokens of all streams together
AHEAD: Final = 32  # tokens of a stream that may be on their way to an unpaced client
BOUND: Final = 100.0  # microseconds a token
MOST: Final = 4_000  # of one of them
LONGEST: Final = 60.0  # seconds of one run
SETTLE: Final = 0.2  # seconds
BODY: Final = b'{"messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":4000}'
HEAD: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
MARK: Final = b'"delta":{"content":"'


def measure(settings: Sequence[str], *, is_quick: bool) -> tuple[Curve, ...]:
    """Raises `DidNotStart` and `RequestFailed`."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        ours = (f"state={folder}", f"listen.port={free_port()}", "listen.host=127.0.0.1")
        plan = compile_plan(load(PROJECT / "appliance.yaml", (*settings, *ours)), read_box())
        with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            return runner.run(_measure(plan, is_quick))


async def _measure(plan: Plan, is_quick: bool) -> tuple[Curve, ...]:
    streams, repetitions, seconds = (STREAMS[:3], 1, 1.0) if is_quick else (STREAMS, REPETITIONS, SECONDS)
    unpaced_tokens = UNPACED // 10 if is_quick else UNPACED
    paced: dict[float, list[float]] = {many: [] for many in streams}
    unpaced: dict[float, list[float]] = {many: [] for many in streams}
    median_delays: dict[float, list[float]] = {many: [] for many in streams}
    late_delays: dict[float, list[float]] = {many: [] for many in streams}
    double = Double(Tokenizer(read_vocabulary(Path(plan.gateway.weights))).encode(" water")[0])
    engine = plan.program("engine")
    assert engine is not None and engine.socket is not None
    Path(engine.socket).parent.mkdir(parents=True, exist_ok=True)
    listening = await serve(Path(engine.socket), double.converse)
    async with listening:
        with started(plan) as gateway:
            await until_ready(gateway)
            await run(double, gateway, 4, 100, PACE * 10)  # everything has been used once
            gateway.idle = await _idle(gateway, seconds)
            for number in range(repetitions):
                for many in streams:
                    progress(f"gateway: {many} streams, repetition {number + 1} of {repetitions}")
                    found = await run(double, gateway, many, int(PACE * seconds), PACE)
                    paced[many].append(found.cost)
                    median_delays[many].append(found.delays[len(found.delays) // 2])
                    late_delays[many].append(found.delays[len(found.delays) * 99 // 100])
                    tokens = min(MOST, unpaced_tokens // many)
                    unpaced[many].append((await run(double, gateway, many, tokens, None)).cost)
    axis = Axis("streams at once", is_log=True)
    cost = (
        line(f"{PACE:.0f} tokens a second each", paced, scale=1e6),
        line("as fast as they are read", unpaced, scale=1e6),
    )
    delay = (line("median", median_delays, scale=1e3), line("99th percentile", late_delays, scale=1e3))
    return (
        Curve("The gateway's own time", axis, Axis("µs of one core a token"), cost, bound=BOUND),
        Curve(f"From the engine to the client, {PACE:.0f} tokens a second each", axis, Axis("ms", is_log=True), delay),
    )


async def _idle(gateway: Gateway, seconds: float) -> float:
    before = gateway.processor_seconds()
    await asyncio.sleep(seconds)
    return (gateway.processor_seconds() - before) / seconds


# --- one run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    cost: float  # seconds of processor time a token
    delays: tuple[float, ...]  # seconds, of each token, ascending


async def run(double: Double, gateway: Gateway, streams: int, tokens: int, pace: float | None) -> Run:
    """`streams` clients at once, each of whom gets `tokens`. Requests' beginnings and ends are not counted.

    Raises `RequestFailed`.
    """
    double.begin(streams, tokens, pace)
    clients = [Client(double) for _ in range(streams)]
    reading = [asyncio.create_task(client.read(gateway.port, tokens)) for client in clients]
    await double.all_here.wait()
    await asyncio.sleep(SETTLE)  # the headers are out
    before, began = gateway.processor_seconds(), time.monotonic()
    double.may_write.set()
    try:
        async with asyncio.timeout(LONGEST):
            await double.all_heard.wait()
    except TimeoutError:
        raise RequestFailed(f"{streams} streams did not end within {LONGEST:.0f} s") from None
    spent = gateway.processor_seconds() - before - gateway.idle * (time.monotonic() - began)
    double.may_end.set()
    await asyncio.gather(*reading)
    delays = sorted(heard - sent for client in clients for sent, heard in zip(client.sent, client.heard, strict=True))
    return Run(spent / (streams * tokens), tuple(delays))


class Client:
    """Reads one stream as bytes: whatever it did more would be measured as the gateway's delay."""

    def __init__(self, double: Double) -> None:
        self.heard: list[float] = []
        self._double = double
        self._id = ""

    @property
    def sent(self) -> list[float]:
        return self._double.streams[self._id].sent

    async def read(self, port: int, tokens: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD % len(BODY) + BODY)
        said = b""
        while piece := await reader.read(1 << 16):
            self._id = self._id or _id_in(piece)
            said += piece
            self.heard += [time.monotonic()] * (count := said.count(MARK))
            said = said[-len(MARK) + 1 :]  # the beginning of a mark
            if count:
                self._double.note_heard(self._id, count)
        writer.close()


def _id_in(piece: bytes) -> str:
    found = re.search(rb'"id":"(chatcmpl-\w+)"', piece)
    return found[1].decode() if found else ""


# --- what stands behind it --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stream:
    id: str
    channel: Channel
    sent: list[float] = field(default_factory=list)  # when each token was
    heard: int = 0


class Double:
    """Speaks the engine's part of the contract for any number of requests, and writes one token over and over."""

    def __init__(self, token: int) -> None:
        self._token = token
        self.streams: dict[str, Stream] = {}
        self.begin(0, 0, None)

    def begin(self, streams: int, tokens: int, pace: float | None) -> None:
        """So many requests will come, each of which gets `tokens`, `pace` a second; None: as they are read."""
        self._expected, self._tokens, self._pace = streams, tokens, pace
        self.all_here, self.may_write, self.all_heard, self.may_end = (asyncio.Event() for _ in range(4))
        self.streams.clear()
        self._num_heard = 0

    async def converse(self, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            match message:
                case AskHealth():
                    channel.send(Health(True, "ready", "ready", running=len(self.streams)))
                case Generate(id=id):
                    self.streams[id.rpartition(".")[0]] = Stream(id, channel)
                    channel.send(Started(id, 0, "a slot is free", self._tokens, 0, "none"))
                    if len(self.streams) == self._expected:
                        self._writing = asyncio.create_task(self._write())
                        self.all_here.set()

    def note_heard(self, id: str, count: int) -> None:
        stream = self.streams[id]
        stream.heard += count
        self._num_heard += count
        if self._num_heard == self._expected * self._tokens:
            self.all_heard.set()
        elif self._pace is None:
            self._fill(stream)

    async def _write(self) -> None:
        await self.may_write.wait()
        streams = list(self.streams.values())
        if self._pace is None:
            for stream in streams:
                self._fill(stream)
        else:
            await self._write_in_turn(streams, self._pace)
        await self.may_end.wait()
        for stream in streams:
            stream.channel.send(Finished(stream.id, FinishReason.STOP, 1, 0, self._tokens, 0.0, 0.0, 0.0))

    async def _write_in_turn(self, streams: list[Stream], pace: float) -> None:
        """Streams lie evenly in time, as those of an engine that serves all of them would."""
        began, gap = time.monotonic(), 1 / pace / len(streams)
        for number in range(self._tokens * len(streams)):
            if (ahead := began + number * gap - time.monotonic()) > 0:
                await asyncio.sleep(ahead)
            self._send(streams[number % len(streams)])

    def _fill(self, stream: Stream) -> None:
        while len(stream.sent) < min(self._tokens, stream.heard + AHEAD):
            self._send(stream)

    def _send(self, stream: Stream) -> None:
        stream.sent.append(time.monotonic())
        stream.channel.send(Tokens(stream.id, (self._token,)))


# --- the process under test -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Gateway:
    pid: int
    port: int
    idle: float = 0.0  # seconds of processor time a second, when nobody asks anything

    def processor_seconds(self) -> float:
        """Of all its threads, system calls included. The kernel's own account, in nanoseconds."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9


@contextmanager
def started(plan: Plan) -> Iterator[Gateway]:
    """The gateway that `plan` declares, alone. Its engine must listen already. Raises `DidNotStart`."""
    program = plan.program("gateway")
    assert program is not None
    run_folder, said = Path(plan.paths.run), Path(plan.paths.state, "gateway.log")
    run_folder.mkdir(parents=True, exist_ok=True)
    (run_folder / "plan.json").write_bytes(encode_plan(plan))
    with said.open("wb") as output:
        process = subprocess.Popen(program.command, env=dict(program.environment), stdout=output, stderr=output)
    try:
        yield Gateway(process.pid, plan.gateway.port)
    finally:
        process.terminate()
        try:
            process.wait(LONGEST_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def until_ready(gateway: Gateway) -> None:
    """Raises `DidNotStart`."""
    async with httpx.AsyncClient() as client:
        until = time.monotonic() + LONGEST_START
        while time.monotonic() < until:
            try:
                if (await client.get(f"http://127.0.0.1:{gateway.port}/readyz")).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
    raise DidNotStart("the gateway does not become ready")
