"""A box with a real limit that somebody else fills: who waits, what is given back, and that nobody is lost.

The engine's process, its four clients' streams and the hog are real; so are the limit and what the kernel counts.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from engine_toy import ask, live
from limited_box import Hog, LimitedBox
from test_engine_wire import Process
from test_pool_wire import plan_for

from tandem.contract.channel import Channel, ask_health, connect
from tandem.contract.messages import Finished, Generate, Progress, RefusalCode, Refused, RequestState, Tokens
from tandem.contract.plan import CachesPlan, Floors
from tandem.memory.budget import Level
from tandem.residency.journal import FILE
from tandem.units import MIB

pytestmark = [pytest.mark.wire, pytest.mark.slow, pytest.mark.timeout(240)]

LIMIT = 2048 * MIB
FLOORS = Floors(floor=320 * MIB, hard_floor=160 * MIB, margin=0)
SLOTS = 7  # four for those who stream, three that keep conversations
KEPT = 1_024  # tokens of each: 22 MiB
LADDER = [*(level.name.lower() for level in Level), "allocator", "roles", "conversation"]
STREAMED = 160  # tokens of each answer


@dataclass
class Stream:
    """What one client was told."""

    request: Generate
    tokens: list[int] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    last: Finished | Refused | None = None

    @property
    def waits_for_memory(self) -> bool:
        return bool(self.progress) and self.progress[-1].state is RequestState.WAITING_MEMORY


class Clients:
    """Several requests over one channel, each followed to its end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.streams: dict[str, Stream] = {}

    def send(self, *requests: Generate) -> list[Stream]:
        fresh = [Stream(request) for request in requests]
        for stream in fresh:
            self.streams[stream.request.id] = stream
            self._channel.send(stream.request)
        return fresh

    async def listen(self) -> None:
        while (message := await self._channel.receive()) is not None:
            stream = self.streams[message.id]  # type: ignore[union-attr]
            match message:
                case Tokens(tokens=tokens):
                    stream.tokens += tokens
                case Progress():
                    stream.progress.append(message)
                case Finished() | Refused():
                    stream.last = message


def prompt(number: int, length: int, max_tokens: int) -> Generate:
    """Nothing of it is shared with the prompt of another number."""
    return ask(f"{number}", [1000 + number, *((7 * number + index) % 40_000 for index in range(1, length))], max_tokens)


@pytest.fixture
def engine(limited_box: LimitedBox) -> Iterator[Process]:
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        run = Path(folder)
        plan = plan_for(run, kv_pool=True)
        slots = tuple(msgspec.structs.replace(plan.engine.slots[0], index=index) for index in range(SLOTS))
        limits = msgspec.structs.replace(live(request_timeout=200.0), floors=FLOORS)
        caches = CachesPlan(memory=64 * MIB, anchors=0, disk=None)  # room for the head of one conversation
        served = msgspec.structs.replace(plan.engine, slots=slots, caches=caches)
        plan = msgspec.structs.replace(plan, engine=served, live=limits)
        process = Process(run, plan, limited_box.starter)
        yield process
        process.process.kill()
        process.process.wait()


@asynccontextmanager
async def serving(engine: Process) -> AsyncIterator[Clients]:
    await engine.ready()
    channel = await connect(engine.socket)
    clients = Clients(channel)
    listening = asyncio.create_task(clients.listen())
    try:
        yield clients
    finally:
        channel.close()
        await listening


async def until(what: str, engine: Process, happened, seconds: float = 60.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{engine.log.read_text()}"
        await asyncio.sleep(0.02)


async def ended(engine: Process, streams: list[Stream]) -> None:
    await until("every request ends", engine, lambda: all(stream.last for stream in streams), 120)


async def writes_on(engine: Process, streams: list[Stream], tokens: int) -> None:
    """Each client gets so many tokens more."""
    before = [len(stream.tokens) for stream in streams]
    await until(
        "every stream goes on",
        engine,
        lambda: all(len(stream.tokens) >= had + tokens for stream, had in zip(streams, before, strict=True)),
    )


async def keep_conversations(engine: Process, clients: Clients) -> None:
    """Three slots keep what they read; their pages are what the ladder can take."""
    await ended(engine, clients.send(*(prompt(number, KEPT, 2) for number in range(1, 4))))


async def stream_four(engine: Process, clients: Clients) -> list[Stream]:
    """The last of them comes last."""
    first = clients.send(*(prompt(number, 64, STREAMED) for number in (11, 12, 13)))
    await writes_on(engine, first, 5)
    streams = [*first, *clients.send(prompt(14, 64, STREAMED))]
    await writes_on(engine, streams, 5)
    return streams


def journal(engine: Process) -> list[dict[str, object]]:
    path = engine.socket.parent / FILE
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()] if path.exists() else []


async def caches_hold(engine: Process) -> int:
    health = await ask_health(engine.socket, 10)
    return next(part.bytes for part in health.memory if part.name == "caches")


def rungs(engine: Process) -> list[str]:
    """What gave something back, in the order of the journal."""
    steps = [step for event in journal(engine) for step in event["figures"].items()]  # type: ignore[attr-defined]
    return [rung for rung, returned in steps if returned and "short" not in rung]


def test_a_hog_goes_through_the_floors_and_back_and_nobody_is_lost(
    engine: Process, limited_box: LimitedBox, hog: Hog
) -> None:
    async def scene() -> None:
        async with serving(engine) as clients:
            await keep_conversations(engine, clients)
            streams = await stream_four(engine, clients)

            hog.leave(FLOORS.floor - 10 * MIB)
            await writes_on(engine, streams, 24)
            assert journal(engine) == []  # nobody needs what is kept, so far

            cached = await caches_hold(engine)
            assert cached > 20 * MIB
            hog.leave(FLOORS.hard_floor - cached - 10 * MIB)
            await until("the ladder is walked", engine, lambda: "conversation of slot" in str(rungs(engine)))
            assert limited_box.room > FLOORS.hard_floor
            (late,) = clients.send(prompt(21, 600, 16))
            await until("the fifth waits for memory", engine, lambda: late.waits_for_memory)
            health = await ask_health(engine.socket, 10)
            assert ("waiting_memory", late.request.id) in [(slot.state, slot.request) for slot in health.slots]
            await writes_on(engine, streams, 24)
            assert late.waits_for_memory
            assert limited_box.room > FLOORS.hard_floor - 8 * MIB  # a pass takes and gives so much

            hog.release()
            await ended(engine, [*streams, late])
            for stream in [*streams, late]:
                assert isinstance(stream.last, Finished), stream.last
                assert len(stream.tokens) == stream.request.max_tokens
            health = await ask_health(engine.socket, 10)
            assert health.counters is not None
            assert (health.counters.memory_waits, health.counters.ended_for_memory) == (1, 0)

            again = clients.send(*(msgspec.structs.replace(s.request, id=s.request.id + "x") for s in streams))
            await ended(engine, again)
            assert [stream.tokens for stream in again] == [stream.tokens for stream in streams]

    asyncio.run(scene())
    for event in journal(engine):
        asked = [rung.partition(" of slot")[0] for rung in event["figures"] if "short" not in rung]  # type: ignore[attr-defined]
        assert asked == sorted(asked, key=LADDER.index)
    taken = rungs(engine)
    kinds = dict.fromkeys(rung.partition(" of slot")[0] for rung in taken)
    assert list(kinds) == ["store", "allocator", "conversation"]  # there are no roles; they were asked
    assert any("roles" in event["figures"] for event in journal(engine))  # type: ignore[operator]
    conversations = [rung for rung in taken if "slot" in rung]
    assert conversations.index("conversation of slot 1") == 0
    assert limited_box.kills == 0


def test_memory_that_falls_past_all_help_costs_the_youngest_and_nobody_else(
    engine: Process, limited_box: LimitedBox, hog: Hog
) -> None:
    async def scene() -> None:
        async with serving(engine) as clients:
            streams = await stream_four(engine, clients)
            hog.leave(FLOORS.hard_floor + 20 * MIB)
            hog.leave(FLOORS.hard_floor // 8)
            youngest = streams[-1]
            await until("the youngest ends", engine, lambda: youngest.last is not None)
            hog.release()
            assert isinstance(youngest.last, Refused) and youngest.last.code is RefusalCode.NO_MEMORY
            assert "the youngest request ends" in youngest.last.sentence
            await ended(engine, streams)
            for stream in streams[:-1]:
                assert isinstance(stream.last, Finished), stream.last

    asyncio.run(scene())
    (event,) = [event for event in journal(engine) if event["act"] == "ended"]
    assert (event["subject"], event["figures"]["hard_floor"]) == ("14", FLOORS.hard_floor)  # type: ignore[index]
    assert limited_box.kills == 0
