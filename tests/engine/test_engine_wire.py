"""`tandem engine` as supervisord starts it: a real process, a real file of weights, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from engine_toy import ask, engine_plan, live, whole_plan
from tiny_llama import TinyLlama

from tandem.contract.channel import Channel, ask_health, connect
from tandem.contract.messages import Finished, FinishReason, Health, Message, RefusalCode, Refused, Sampling, Tokens
from tandem.contract.plan import Plan, encode_plan

pytestmark = pytest.mark.wire

SHAPE = TinyLlama(window=100_000)
LONG = 90_000  # tokens: more than any test waits for
CLIENT = """
import asyncio, sys
from pathlib import Path
from tandem.contract.channel import connect
from tandem.contract.messages import Generate, Marks, Sampling, Tokens

async def main():
    channel = await connect(Path(sys.argv[1]))
    channel.send(Generate("endless", (5, 6, 7), int(sys.argv[2]), (), Sampling(), Marks(3, 3)))
    while not isinstance(await channel.receive(), Tokens):
        pass
    print("reading", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


class Process:
    """The engine of one plan, from its start to its exit status."""

    def __init__(self, run: Path, plan: Plan, starter: str = "") -> None:
        (run / "plan.json").write_bytes(encode_plan(plan))
        self.socket = run / "engine.sock"
        self.log = run / "engine.log"
        words = [sys.executable, "-m", "tandem", "engine", "--run", str(run)]
        if starter:
            words = [sys.executable, "-c", starter, *words]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    async def health(self, wanted: Callable[[Health], bool]) -> Health:
        """The first answer that is as wanted; the process must live until then."""
        deadline = time.monotonic() + 100
        while True:
            assert time.monotonic() < deadline, self.log.read_text()
            try:
                answer = await ask_health(self.socket, 10)
            except (OSError, ConnectionError):
                assert self.process.poll() is None, self.log.read_text()
            else:
                if wanted(answer):
                    return answer
            await asyncio.sleep(0.01)

    async def ready(self) -> Health:
        return await self.health(lambda answer: answer.ready)

    def ended(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def run() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        yield Path(folder)


@pytest.fixture
def plan(run: Path) -> Plan:
    weights = SHAPE.write(run / "tiny.gguf")
    engine = engine_plan([SHAPE.window, SHAPE.window, SHAPE.window], chunk=16)
    engine = msgspec.structs.replace(engine, weights=str(weights), family="llama", compute="bfloat16")
    return whole_plan(run, engine, live(floor=0, drain_timeout=100.0))


@pytest.fixture
def started(run: Path, plan: Plan) -> Iterator[Process]:
    process = Process(run, plan)
    yield process
    if process.process.poll() is None:
        process.process.kill()
        process.process.wait()


async def last_word(channel: Channel, id: str) -> tuple[Finished | Refused, list[int]]:
    tokens: list[int] = []
    while True:
        message: Message | None = await asyncio.wait_for(channel.receive(), 60)
        assert message is not None, "the engine closed the channel"
        if getattr(message, "id", None) != id:
            continue
        if isinstance(message, Tokens):
            tokens += message.tokens
        if isinstance(message, Finished | Refused):
            return message, tokens


def seconds_used(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def sleeps(pid: int) -> None:
    """Comes to rest, however long what it did before takes on a busy machine."""
    for _ in range(20):
        began = seconds_used(pid)
        await asyncio.sleep(1.5)
        if seconds_used(pid) - began < 0.08:
            return
    raise AssertionError("an idle engine does not sleep")


def test_its_life_ready_serving_a_client_that_dies_and_a_drain_to_exit_0(started: Process) -> None:
    async def scene() -> None:
        early = await started.health(lambda answer: True)
        assert early.state in ("loading", "ready")
        facts = (await started.ready()).facts
        assert facts["compute"] == "bfloat16" and int(facts["row_bucket"]) >= 1

        await sleeps(started.process.pid)

        async def write(id: str, sampling: Sampling) -> list[int]:
            peer = await connect(started.socket)
            peer.send(ask(id, prompt=range(1, 40), max_tokens=25, sampling=sampling))
            finished, tokens = await last_word(peer, id)
            assert isinstance(finished, Finished) and finished.reason is FinishReason.LENGTH
            peer.close()
            return tokens

        greedy, seeded = Sampling(), Sampling(temperature=1.0, seed=5)
        together = await asyncio.gather(write("a", greedy), write("b", seeded), write("b", seeded))
        assert together[0] == await write("a", greedy)
        assert together[1] == together[2] == await write("b", seeded) != together[0]

        channel = await connect(started.socket)
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(started.socket), str(LONG)], stdout=subprocess.PIPE, text=True
        )
        assert client.stdout is not None and client.stdout.readline() == "reading\n"
        assert (await ask_health(started.socket, 10)).running == 1
        client.kill()
        answer = await started.health(lambda answer: answer.running == 0)
        assert answer.counters is not None and answer.counters.cancelled == 1
        client.wait()
        client.stdout.close()

        lasting = await connect(started.socket)  # so that the drain goes on until it closes
        lasting.send(ask("endless", max_tokens=LONG))
        channel.send(ask("last", max_tokens=1_500))
        await started.health(lambda answer: answer.running == 2)
        os.kill(started.process.pid, signal.SIGTERM)
        await started.health(lambda answer: answer.state == "draining")
        late = await connect(started.socket)
        late.send(ask("late"))
        refused, _ = await last_word(late, "late")
        assert isinstance(refused, Refused) and refused.code is RefusalCode.DRAINING and refused.retry_after
        lasting.close()
        finished, tokens = await last_word(channel, "last")
        assert isinstance(finished, Finished) and len(tokens) == 1_500
        assert await asyncio.wait_for(channel.receive(), 60) is None

    asyncio.run(scene())
    assert started.ended() == 0
    assert not started.socket.exists()
    assert "told to end: draining" in started.log.read_text()


def test_told_twice_it_ends_at_once(started: Process) -> None:
    async def scene() -> None:
        await started.ready()
        channel = await connect(started.socket)
        channel.send(ask("endless", max_tokens=LONG))
        await started.health(lambda answer: answer.running == 1)
        os.kill(started.process.pid, signal.SIGTERM)
        await started.health(lambda answer: answer.state == "draining")
        os.kill(started.process.pid, signal.SIGTERM)

    asyncio.run(scene())
    assert started.ended() == 128 + signal.SIGTERM


def test_it_dies_with_its_parent(run: Path, plan: Plan) -> None:
    starter = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    process = Process(run, plan, starter)
    try:
        asyncio.run(process.ready())
        process.process.kill()
        process.process.wait()

        async def gone() -> None:
            deadline = time.monotonic() + 60
            while process.socket.exists():
                assert time.monotonic() < deadline, process.log.read_text()
                await asyncio.sleep(0.01)

        asyncio.run(gone())
    finally:
        process.process.kill()


def test_weights_that_are_not_there_are_said_in_one_sentence(run: Path, plan: Plan) -> None:
    missing = msgspec.structs.replace(plan.engine, weights=str(run / "nothing.gguf"))
    process = Process(run, msgspec.structs.replace(plan, engine=missing))
    assert process.ended() == 3
    log = process.log.read_text()
    assert "nothing.gguf" in log and "Traceback" not in log
