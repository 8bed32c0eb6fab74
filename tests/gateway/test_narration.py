"""Status lines in a raw stream, the narrator's among them; and what becomes of them in a history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_double import Job
from gateway_appliance import SOON, Reading, Start, make_live
from role_double import RoleDouble, hangs, publish

from tandem.conductor.status import MARK
from tandem.contract.messages import AnyMessage, Message, Narrate, Narrated, RequestState, RoleState, Undecided
from tandem.contract.plan import Api
from tandem.gateway import narration
from tandem.gateway.role_client import RoleClient
from tandem.text.tokenizer import Tokenizer

pytestmark = pytest.mark.anyio
QUEUED = "Queued: all 2 slots are busy, 1 ahead"
TASK = "Explain the sea. " + "x" * 2000 + " HIDDEN"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("FIRST", 0.02), ("EVERY", 0.02), ("WITHIN", SOON)):
        monkeypatch.setattr(narration, name, seconds)


async def says(ask: AnyMessage) -> Narrated:
    assert isinstance(ask, Narrate)
    return Narrated(ask.id, "Looking at the sea.")


def waits(until: Callable[[], Awaitable[None]]) -> Callable[[Job], Awaitable[None]]:
    async def script(job: Job) -> None:
        job.progress(RequestState.QUEUED, QUEUED, 1, 1)
        await until()
        job.start()
        job.tokens(*job.request.tokens[:3])
        job.finish()

    return script


def lines_of(text: str) -> list[tuple[str, bool]]:
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    told = [chunk["event"]["data"] for chunk in chunks if "event" in chunk]
    return [(each["description"].removeprefix(MARK), each["done"]) for each in told]


async def test_the_narrator_s_line_takes_the_place_of_ours_and_sees_what_may_be_seen(
    start: Start, tmp_path: Path
) -> None:
    double, reading = RoleDouble("narrator", "narrator"), Reading()
    async with start() as appliance, double.listening(tmp_path, says):
        publish(appliance, narrator=RoleState.LOADED)
        appliance.engine.script = waits(lambda: reading.until(lambda text: "Looking at the sea." in text))
        await reading.chat(appliance, TASK)
    assert lines_of(reading.text) == [(QUEUED, False), ("Looking at the sea.", False), ("Answering", True)]
    ask = double.asked[0]
    assert isinstance(ask, Narrate)
    assert ask.task.startswith("Explain the sea.") and "HIDDEN" not in ask.task and ask.doing == QUEUED


@pytest.mark.parametrize("narrator", ["hangs", "held", "absent", "dead"])
async def test_while_it_cannot_our_line_stands(
    start: Start, tmp_path: Path, narrator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, ask = list[Message](), RoleClient.narrate
    times = 2 if narrator in ("hangs", "dead") else 0
    monkeypatch.setattr(narration, "WITHIN", 0.05)

    async def listen(roles: RoleClient, asked: Narrate) -> Message:
        told.append(await ask(roles, asked))
        return told[-1]

    monkeypatch.setattr(RoleClient, "narrate", listen)
    async with start() as appliance, RoleDouble("narrator", "narrator").listening(tmp_path, hangs):
        if narrator != "absent":
            state = RoleState.UNLOADED_FOR_MEMORY if narrator == "held" else RoleState.LOADED
            publish(appliance, narrator=state)
        if narrator == "dead":
            (tmp_path / "narrator.sock").unlink()
        appliance.engine.script = waits(lambda: appliance.until(lambda: len(told) >= times))
        response = await appliance.chat(TASK, stream=True)
    assert all(isinstance(each, Undecided) for each in told) and bool(told) == bool(times)
    assert response.status_code == 200 and lines_of(response.text) == [(QUEUED, False), ("Answering", True)]


async def test_a_task_beside_a_conversation_is_not_narrated_and_off_is_silent(start: Start, tmp_path: Path) -> None:
    double = RoleDouble("narrator", "narrator")
    off = msgspec.structs.replace(make_live(), api=Api(status=False))
    for live, headers, shown in ((make_live(), {"x-task": "title"}, True), (off, {}, False)):
        async with start(live) as appliance, double.listening(tmp_path, says):
            publish(appliance, narrator=RoleState.LOADED)
            appliance.engine.script = waits(lambda: asyncio.sleep(0.3))  # many times as long as until it would be asked
            body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
            response = await appliance.http.post("/v1/chat/completions", json=body, headers=headers)
            assert bool(lines_of(response.text)) is shown
    assert double.asked == []


async def test_lines_that_come_back_as_part_of_an_answer_do_not_reach_the_model(
    start: Start, tokenizer: Tokenizer
) -> None:
    history = [
        {"role": "user", "content": f"{MARK}is what I typed"},
        {"role": "assistant", "content": f"{MARK}{QUEUED}\n{MARK}Answering\n\nHello."},
        {"role": "user", "content": "Go on."},
    ]
    clean = [history[0], {"role": "assistant", "content": "Hello."}, history[2]]
    async with start() as appliance:
        for messages in (history, clean):
            await appliance.http.post("/v1/chat/completions", json={"messages": messages})
        dirty, plain = (request.tokens for request in appliance.engine.requests)
    assert dirty == plain
    assert "is what I typed" in b"".join(tokenizer.bytes_of[token] for token in plain).decode()
