"""What the appliance promises, tried from outside: real processes, real sockets, the real small model."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import openai
import psutil
import pytest
from wire_appliance import standing_still, until

if TYPE_CHECKING:
    from wire_appliance import Appliance

pytestmark = [pytest.mark.wire, pytest.mark.timeout(240)]

LONG = "Write a long story about a lighthouse keeper and the sea."
PROMPTS = (LONG, "List the planets of the solar system and a fact about each.", "Explain how bread is made.")


@dataclass
class Answer:
    text: str = ""
    first: float = 0.0  # monotonic times
    last: float = 0.0
    finish: str | None = None
    error: Exception | None = None
    times: list[float] = field(default_factory=list)


async def stream(client: openai.AsyncOpenAI, prompt: str, max_tokens: int, begun: asyncio.Event) -> Answer:
    answer = Answer()
    try:
        chunks = await client.chat.completions.create(
            model="smollm2-135m",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
        )
        async for chunk in chunks:
            answer.last = time.monotonic()
            if chunk.choices and chunk.choices[0].delta.content:
                answer.first = answer.first or answer.last
                answer.text += chunk.choices[0].delta.content
                begun.set()
            if chunk.choices and chunk.choices[0].finish_reason:
                answer.finish = chunk.choices[0].finish_reason
    except openai.OpenAIError as error:
        answer.error = error
    except Exception as error:  # what httpx raises while a body is read passes through the SDK
        answer.error = error
    answer.last = time.monotonic()
    begun.set()
    return answer


async def together(appliance: Appliance, lengths: tuple[int, ...], meanwhile: Any = None) -> list[Answer]:
    """One client a prompt, all there before the engine begins; `meanwhile` runs when each has its first token."""
    begun = [asyncio.Event() for _ in lengths]
    clients = [appliance.async_client() for _ in lengths]
    with standing_still((await asyncio.to_thread(appliance.pids))["engine"]):
        tasks = [
            asyncio.create_task(stream(client, prompt, length, event))
            for client, prompt, length, event in zip(clients, PROMPTS, lengths, begun, strict=False)
        ]
        while await asyncio.to_thread(appliance.in_flight) < len(lengths):
            await asyncio.sleep(0.01)
    await asyncio.gather(*(event.wait() for event in begun))
    if meanwhile is not None:
        meanwhile()
    return list(await asyncio.gather(*tasks))


def alone(appliance: Appliance, prompt: str, max_tokens: int) -> str:
    answer = appliance.client().chat.completions.create(
        model="smollm2-135m", messages=[{"role": "user", "content": prompt}], max_tokens=max_tokens, temperature=0
    )
    return answer.choices[0].message.content or ""


def back_after(appliance: Appliance, before: dict[str, int], name: str) -> dict[str, int]:
    """Everything serves again, and `name` is another process than before."""
    pids: dict[str, int] = until(lambda: (now := appliance.all_pids()) and now[name] != before[name] and now)
    until(appliance.ready_health)
    return pids


def rounds_of(appliance: Appliance, size: int) -> int:
    counters = appliance.settled().counters
    assert counters is not None
    return counters.rounds_by_size.get(size, 0)


def test_three_clients_decode_in_the_same_rounds_and_get_what_they_would_alone(appliance: Appliance) -> None:
    lengths = (160, 40, 40)
    before = rounds_of(appliance, 3)
    answers = asyncio.run(together(appliance, lengths))
    assert rounds_of(appliance, 3) - before >= 20
    for prompt, length, answer in zip(PROMPTS, lengths, answers, strict=True):
        assert answer.error is None
        assert answer.text == alone(appliance, prompt, length)
    longest, *others = answers
    assert all(other.first < longest.last and other.last < longest.last for other in others)


def test_an_engine_that_is_killed_is_told_to_every_client_and_comes_back(appliance: Appliance) -> None:
    before = appliance.all_pids()
    assert before
    answers = asyncio.run(together(appliance, (2000, 2000, 2000), lambda: os.kill(before["engine"], signal.SIGKILL)))
    told = time.time() - (time.monotonic() - max(answer.last for answer in answers))
    for answer in answers:
        assert answer.text and answer.finish is None
        assert isinstance(answer.error, openai.APIError) and "engine" in str(answer.error)
    after = back_after(appliance, before, "engine")
    assert told < appliance.ready_since("engine"), "the client is told at once, not when the engine is back"
    assert (after["gateway"], after["director"]) == (before["gateway"], before["director"])
    assert alone(appliance, PROMPTS[1], 8)


def test_a_gateway_that_is_killed_breaks_the_streams_and_frees_the_slots(appliance: Appliance) -> None:
    before = appliance.all_pids()
    assert before
    answers = asyncio.run(together(appliance, (2000, 2000, 2000), lambda: os.kill(before["gateway"], signal.SIGKILL)))
    for answer in answers:
        assert answer.text and answer.error is not None and answer.finish is None
    after = back_after(appliance, before, "gateway")
    assert (after["engine"], after["director"]) == (before["engine"], before["director"])
    until(lambda: (health := appliance.ready_health()) and health["engine"]["running"] == 0)
    assert alone(appliance, PROMPTS[1], 8)


def test_a_director_that_is_killed_is_not_noticed_by_clients(appliance: Appliance) -> None:
    before = appliance.all_pids()
    assert before
    answers = asyncio.run(together(appliance, (60, 60, 60), lambda: os.kill(before["director"], signal.SIGKILL)))
    for answer in answers:
        assert answer.error is None and answer.finish in ("length", "stop")
    after = back_after(appliance, before, "director")
    assert (after["engine"], after["gateway"]) == (before["engine"], before["gateway"])


def test_a_wrong_edit_changes_nothing_and_is_shown_everywhere(appliance: Appliance) -> None:
    before = appliance.all_pids()
    plan = until(appliance.ready_health)["plan"]
    appliance.write(slots={"side_windw": 4096})
    report = until(lambda: (h := appliance.ready_health()) and (r := h["reload"]) and r["outcome"] == "refused" and r)
    assert "side_windw" in report["details"] and "did you mean `side_window`?" in report["details"]
    assert until(appliance.ready_health)["plan"] == plan
    assert "did you mean `side_window`?" in appliance.run("status").stdout
    assert "side_windw" in (appliance.base / ".tandem/logs/director.log").read_text()
    assert appliance.all_pids() == before
    assert alone(appliance, PROMPTS[1], 8)


def test_a_live_edit_acts_within_a_second_and_restarts_nobody(appliance: Appliance) -> None:
    before, waits = appliance.all_pids(), []
    for number in (7, 6, 5, 4):  # a busy machine may be late itself, not every time
        edited = appliance.write(limits={"max_queue": number})
        until(lambda number=number: (h := appliance.ready_health()) and h["limits"]["max_queue"] == number)
        waits.append(time.monotonic() - edited)
        if waits[-1] < 1.0:
            break
    assert min(waits) < 1.0
    assert appliance.all_pids() == before


def test_an_engine_edit_lets_requests_finish_and_comes_back_with_the_new_slots(appliance: Appliance) -> None:
    before = appliance.all_pids()
    assert before
    answers = asyncio.run(together(appliance, (120, 120), lambda: appliance.write(slots={"count": 2})))
    for answer in answers:
        assert answer.error is None and answer.finish in ("length", "stop")
    until(lambda: (h := appliance.ready_health()) and len(h["engine"]["slots"]) == 2)
    after = back_after(appliance, before, "engine")
    assert after["gateway"] == before["gateway"]
    assert until(appliance.ready_health)["reload"]["outcome"] == "applied"


def test_down_ends_every_process(appliance: Appliance) -> None:
    pids = appliance.all_pids()
    assert pids
    down = appliance.run("down")
    assert down.returncode == 0, down.stdout + down.stderr
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
    assert appliance.run("status").returncode != 0
    assert appliance.run("down").returncode == 0, "down is idempotent"
    assert appliance.run("up", "--detach").returncode == 0
