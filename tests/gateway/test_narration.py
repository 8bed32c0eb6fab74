"""Status lines in a raw stream, the narrator's among them; and what becomes of them in a history."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_double import Job
from gateway_appliance import Start, make_live
from role_double import RoleDouble, hangs, publish

from tandem.conductor.status import MARK
from tandem.contract.messages import AnyMessage, Narrate, Narrated, RequestState, RoleState
from tandem.contract.plan import Api
from tandem.gateway import narration
from tandem.text.tokenizer import Tokenizer

pytestmark = pytest.mark.anyio
QUEUED = "Queued: all 2 slots are busy, 1 ahead"
TASK = "Explain the sea. " + "x" * 2000 + " HIDDEN"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("FIRST", 0.02), ("EVERY", 0.02), ("WITHIN", 0.1)):
        monkeypatch.setattr(narration, name, seconds)


async def says(ask: AnyMessage) -> Narrated:
    assert isinstance(ask, Narrate)
    return Narrated(ask.id, "Looking at the sea.")


async def waits(job: Job, seconds: float = 1.3) -> None:
    job.progress(RequestState.QUEUED, QUEUED, 1, 1)
    await asyncio.sleep(seconds)
    job.start()
    job.tokens(*job.request.tokens[:3])
    job.finish()


def lines_of(text: str) -> list[tuple[str, bool]]:
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    told = [chunk["event"]["data"] for chunk in chunks if "event" in chunk]
    return [(each["description"].removeprefix(MARK), each["done"]) for each in told]


async def test_the_narrator_s_line_takes_the_place_of_ours_and_sees_what_may_be_seen(
    start: Start, tmp_path: Path
) -> None:
    double = RoleDouble("narrator", "narrator")
    async with start() as appliance, double.listening(tmp_path, says):
        publish(appliance, narrator=RoleState.LOADED)
        appliance.engine.script = waits
        response = await appliance.chat(TASK, stream=True)
    assert lines_of(response.text) == [(QUEUED, False), ("Looking at the sea.", False), ("Answering", True)]
    ask = double.asked[0]
    assert isinstance(ask, Narrate)
    assert ask.task.startswith("Explain the sea.") and "HIDDEN" not in ask.task and ask.doing == QUEUED


@pytest.mark.parametrize("narrator", ["hangs", "held", "absent", "dead"])
async def test_while_it_cannot_our_line_stands(start: Start, tmp_path: Path, narrator: str) -> None:
    async def script(job: Job) -> None:
        await waits(job, 0.3)

    async with start() as appliance, RoleDouble("narrator", "narrator").listening(tmp_path, hangs):
        if narrator != "absent":
            state = RoleState.UNLOADED_FOR_MEMORY if narrator == "held" else RoleState.LOADED
            publish(appliance, narrator=state)
        if narrator == "dead":
            (tmp_path / "narrator.sock").unlink()
        appliance.engine.script = script
        response = await appliance.chat(TASK, stream=True)
    assert response.status_code == 200 and lines_of(response.text) == [(QUEUED, False), ("Answering", True)]


async def test_a_task_beside_a_conversation_is_not_narrated_and_off_is_silent(start: Start, tmp_path: Path) -> None:
    double = RoleDouble("narrator", "narrator")
    off = msgspec.structs.replace(make_live(), api=Api(status=False))
    for live, headers, shown in ((make_live(), {"x-task": "title"}, True), (off, {}, False)):
        async with start(live) as appliance, double.listening(tmp_path, says):
            publish(appliance, narrator=RoleState.LOADED)
            appliance.engine.script = waits
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
