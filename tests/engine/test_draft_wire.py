"""Drafting in the engine's own process: on by the plan, counted, and gone with `draft: off`."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_toy import ask, live, whole_plan
from msgspec.structs import replace
from test_engine_wire import Process
from test_verify_models import default_plan

from tandem.contract.channel import connect
from tandem.contract.messages import Finished, Health, Tokens
from tandem.contract.plan import EnginePlan

pytestmark = [pytest.mark.wire, pytest.mark.anyio]

PROMPT = tuple(range(1000, 1040)) * 2
TWICE = ("a", "b")


@pytest.fixture
def run() -> Iterator[Path]:
    """Short: a socket's name has little room."""
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        yield Path(folder)


async def served(run: Path, engine: EnginePlan) -> tuple[list[list[int]], list[Finished], Health]:
    process = Process(run, whole_plan(run, engine, live(floor=0)))
    try:
        await process.ready()
        channel = await connect(process.socket)
        texts: list[list[int]] = []
        ends: list[Finished] = []
        for id in TWICE:
            texts.append([])
            channel.send(ask(id, PROMPT, 40))
            while not isinstance(message := await channel.receive(), Finished):
                if isinstance(message, Tokens):
                    texts[-1] += message.tokens
            ends.append(message)
        health = await process.health(lambda answer: answer.running == 0)
        channel.close()
        process.process.send_signal(signal.SIGTERM)
        assert process.ended() == 0
        return texts, ends, health
    finally:
        process.process.kill()
        process.process.wait()


async def test_texts_are_the_same_in_fewer_rounds(run: Path) -> None:
    engine = default_plan(run, threads=1)
    plain, slow, without = await served(run, replace(engine, draft=None))
    texts, ends, health = await served(run, engine)
    assert texts == plain
    assert [each.drafted for each in slow] == [0, 0] and all(each.rounds == 39 for each in slow)
    assert all(each.accepted and each.rounds + each.accepted == 39 for each in ends)
    assert (without.facts["drafting"], health.facts["drafting"]) == ("off", "lookup")
    assert without.counters is not None and health.counters is not None
    assert without.counters.drafted == {} and without.counters.rounds_by_rows == {1: 78}
    assert health.counters.accepted == {"lookup": sum(each.accepted for each in ends)}
    assert health.counters.rows == sum(rows * count for rows, count in health.counters.rounds_by_rows.items())
    assert list((run / "lookup").glob("*.tokens")), "what was written is kept when the process ends"
