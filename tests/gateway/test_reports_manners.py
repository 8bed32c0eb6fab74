"""What goes wrong with events and waiting elsewhere (BR-041, BR-043, BR-103, BR-104), through the gateway.

Keys, routes and pages of other sites are in `test_gateway_gate`, clients that leave in `test_gateway_trouble`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_double import Job
from gateway_appliance import SOON, Reading, Start, make_live
from spoken import CLOCK, NOW, THINKING, chunks_of, put_together, speaking_tokens

from tandem.contract.messages import RefusalCode, RequestState

pytestmark = pytest.mark.anyio


async def test_every_event_has_a_choice_and_counts_come_only_when_asked(start_thinker: Start) -> None:
    """BR-104, with everything in the stream that may be there: waiting, reading, thinking, a call."""
    async with start_thinker() as appliance:
        text = f"{THINKING}I look.\n{NOW}"
        pieces = [[token] for token in appliance.service.prompts.tokenizer.encode_with_controls(text)]

        async def waits(job: Job) -> None:
            for state in (RequestState.QUEUED, RequestState.WAITING_MEMORY, RequestState.READING):
                job.progress(state, "a moment")
                await asyncio.sleep(0)
            await speaking_tokens(pieces)(job)

        appliance.engine.script = waits
        asked: list[tuple[dict[str, Any], int]] = [({}, 0), ({"stream_options": {"include_usage": True}}, 1)]
        for options, num_counts in asked:
            response = await appliance.chat(stream=True, tools=[CLOCK], **options)
            chunks = chunks_of(response.content)
            assert [len(chunk["choices"]) for chunk in chunks].count(0) == num_counts
            assert all("delta" in choice for chunk in chunks for choice in chunk["choices"])
            assert sum("usage" in chunk for chunk in chunks) == num_counts
            assert put_together(chunks).names == ["clock"]
            assert any("event" in chunk for chunk in chunks)


async def test_a_comment_comes_by_the_clock_while_the_engine_says_nothing(start: Start) -> None:
    """BR-103: before the first word of the engine, while it reads, and between two tokens."""

    reading = Reading()

    async def two_comments_after(word: str) -> None:
        await reading.until(lambda text: word in text and text[text.index(word) :].count("\n: ") >= 2)

    async def slow(job: Job) -> None:
        job.progress(RequestState.QUEUED, "1 request is ahead")
        await two_comments_after(": 1 request is ahead")
        job.start()
        await two_comments_after('"role":"assistant"')
        job.tokens(appliance.engine.answer[0])
        await two_comments_after('"content":"Hello"')
        job.finish()

    async with start(make_live(keepalive=0.05)) as appliance:
        appliance.engine.script = slow
        assert (await reading.chat(appliance)).endswith("data: [DONE]\n\n")


async def test_who_is_sent_away_hears_why_and_when_to_come_back(start: Start) -> None:
    """BR-043: places are taken in order, and all others are told the same way, streamed or not."""
    come, all_come = 0, asyncio.Event()

    async def two_places(job: Job) -> None:
        nonlocal come
        come += 1
        if come == 10:
            all_come.set()
        if come > 2:
            job.refuse(RefusalCode.QUEUE_FULL, "the queue is full: `limits.max_queue` lets 2 wait")
            return
        job.start()
        await all_come.wait()
        job.finish()

    async with start() as appliance:
        appliance.engine.script = two_places
        answers: list[Any] = await asyncio.gather(*(appliance.chat(stream=n % 2 == 0) for n in range(10)))
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) == 8
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert "`limits.max_queue` lets 2 wait" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) >= 1


async def test_a_client_that_leaves_before_the_first_frame_frees_its_place(start: Start) -> None:
    """BR-041: while it waits behind others, streamed or not."""
    async with start() as appliance:
        appliance.engine.script = Job.until_cancelled
        holding = [asyncio.create_task(appliance.chat(stream=n == 0)) for n in range(2)]
        first = [await appliance.engine.arrived.get() for _ in holding]
        leaving = [asyncio.create_task(appliance.chat(stream=n == 0)) for n in range(2)]
        behind = [await appliance.engine.arrived.get() for _ in leaving]
        for task in leaving:
            task.cancel()
        cancelled = {await asyncio.wait_for(appliance.engine.cancels.get(), SOON) for _ in leaving}
        assert cancelled == {job.request.id for job in behind}
        for task in holding:
            task.cancel()
        assert {await appliance.engine.cancels.get() for _ in holding} == {job.request.id for job in first}
        await appliance.until(lambda: appliance.service.in_flight == 0)
