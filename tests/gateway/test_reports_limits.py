"""What goes wrong with limits, queues and names of fields elsewhere (BR-043 to BR-068, BR-101), through the gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_double import Job
from gateway_appliance import Appliance, Start, make_live
from spoken import NOW, THINKING, TOOLS, chunks_of, put_together, speaking, streamed, text_of_prompt, told_at_once

from tandem.config.documents import TASKS
from tandem.contract.messages import FinishReason, RefusalCode, Started
from tandem.contract.plan import Api, KeySource

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
ROUTES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}


@pytest.fixture
def keys(tmp_path: Path) -> KeySource:
    (tmp_path / "keys").write_text("anna:one\nben:two\n")
    return KeySource(file=str(tmp_path / "keys"))


async def post(appliance: Appliance, key: str, text: str = "hi", **headers: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}]}
    return await appliance.http.post(CHAT, json=body, headers={"x-api-key": key, **headers})


# --- limits of one key ---


async def test_a_limit_of_one_key_is_named_with_its_value_and_is_no_other_key_s(start: Start, keys: KeySource) -> None:
    """BR-044."""
    async with start(make_live(keys, per_key_requests=2)) as appliance:
        statuses = [(await post(appliance, "one")).status_code for _ in range(2)]
        refused = await post(appliance, "one")
        assert (await post(appliance, "two")).status_code == 200
    assert statuses == [200, 200]
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert "`limits.per_key_requests` lets one key send 2 requests a minute" in error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60


async def test_a_title_comes_with_its_turn_and_is_not_refused(start: Start, keys: KeySource) -> None:
    """BR-056: tasks are counted for themselves."""
    go_on = asyncio.Event()

    async def waits(job: Job) -> None:
        job.start()
        if not job.request.task:
            await go_on.wait()
        job.finish()

    async with start(make_live(keys, Api(tasks=TASKS), per_key_running=1)) as appliance:
        appliance.engine.script = waits
        turn = asyncio.create_task(post(appliance, "one", "how do I sort?"))
        await appliance.engine.arrived.get()
        title = await post(appliance, "one", "Generate a title for this conversation:\n how do I sort?")
        second = await post(appliance, "one", "and this?")
        other = asyncio.create_task(post(appliance, "two"))
        await appliance.until(lambda: len(appliance.engine.requests) == 3)
        go_on.set()
        assert (title.status_code, (await turn).status_code, (await other).status_code) == (200, 200, 200)
        assert [request.task for request in appliance.engine.requests] == [False, True, False]
        assert second.status_code == 429
        assert "`limits.per_key_running` lets one key have 1 requests here at once" in second.json()["error"]["message"]
        assert (await post(appliance, "one")).status_code == 200  # its place came free


async def test_a_title_waits_outside_of_a_full_queue(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """BR-056: it is never told to come back, a turn is."""
    monkeypatch.setattr("tandem.gateway.exchange.ASK_AGAIN", 0.01)
    places = [False, False, True]

    async def full(job: Job) -> None:
        if places.pop(0):
            await appliance.engine.say_answer(job)
        else:
            job.refuse(RefusalCode.QUEUE_FULL, "the queue is full")

    async with start(make_live(api=Api(tasks=TASKS))) as appliance:
        appliance.engine.script = full
        assert (await appliance.chat("Generate a title for this conversation: x")).status_code == 200
        assert (len(appliance.engine.requests), places) == (3, [])
        places += [False, True]
        assert (await appliance.chat("how do I sort?")).status_code == 429


async def test_a_title_that_nobody_waits_for_is_given_up(start: Start) -> None:
    async def full(job: Job) -> None:
        job.refuse(RefusalCode.QUEUE_FULL, "the queue is full")

    async with start(make_live(api=Api(tasks=TASKS), queue_timeout=0.5)) as appliance:
        appliance.engine.script = full
        assert (await appliance.chat("Generate a title for this conversation: x")).status_code == 429


async def test_a_client_that_leaves_gives_its_place_back(start: Start, keys: KeySource) -> None:
    async with start(make_live(keys, per_key_running=1)) as appliance:
        normal, appliance.engine.script = appliance.engine.script, Job.until_cancelled
        leaving = asyncio.create_task(post(appliance, "one"))
        await appliance.engine.arrived.get()
        leaving.cancel()
        await appliance.until(lambda: appliance.service.in_flight == 0)
        appliance.engine.script = normal
        assert (await post(appliance, "one")).status_code == 200


async def test_headers_say_what_is_a_task_and_which_conversation(start: Start, keys: KeySource) -> None:
    """BR-053, BR-055."""
    async with start(make_live(keys)) as appliance:
        for key, headers in (
            ("one", {"X-Task": "title"}),
            ("one", {"x-session-id": "s"}),
            ("two", {"x-session-id": "s"}),
        ):
            assert (await post(appliance, key, **headers)).status_code == 200
        title, one, two = appliance.engine.requests
    assert (title.task, one.task, title.conversation) == (True, False, "")
    assert one.conversation != two.conversation != ""
    assert one.scope != two.scope


async def test_rows_may_be_shared_by_the_whole_appliance(start: Start, keys: KeySource) -> None:
    async with start(make_live(keys, Api(cache_scope="appliance"))) as appliance:
        for key in ("one", "two"):
            await post(appliance, key)
        assert [request.scope for request in appliance.engine.requests] == ["", ""]


# --- how long an answer may be ---


@pytest.mark.parametrize("route", ROUTES)
async def test_any_word_for_the_longest_answer_is_an_answer_or_a_sentence(start: Start, route: str) -> None:
    """BR-067."""
    async with start() as appliance:
        room: dict[int | None, int] = {}
        for asked in (None, -1, 1, 7, 10**12):
            response = await appliance.http.post(route, json=ROUTES[route] | {"max_tokens": asked})
            assert response.status_code == 200
            room[asked] = appliance.engine.requests[-1].max_tokens
            cut = response.headers.get("x-tandem-max-tokens")
            assert cut == (str(room[asked]) if asked == 10**12 else None)
        unsaid = await appliance.http.post(route, json=ROUTES[route])
        assert unsaid.json()["choices"][0]["finish_reason"] == "stop"
        assert appliance.engine.requests[-1].max_tokens == room[None] == 64
        assert (room[1], room[7]) == (1, 7)
        assert room[-1] == room[10**12] == 8192 - len(appliance.engine.requests[-1].tokens)
        for wrong in (0, -2, 1.5, "5"):
            refused = await appliance.http.post(route, json=ROUTES[route] | {"max_tokens": wrong})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


async def test_a_limit_that_the_slot_has_no_room_for_is_cut_and_told(start: Start) -> None:
    """opencode asks for 32,000 tokens whatever the window is."""

    async def small_slot(job: Job) -> None:
        job.say(Started(job.request.id, 1, "slot 1 is free", 500, 0, "none"))
        job.tokens(*appliance.engine.answer)
        job.finish()

    async with start() as appliance:
        appliance.engine.script = small_slot
        whole = await appliance.chat(max_tokens=32_000)
        stream = await appliance.chat(max_tokens=32_000, stream=True)
        fitting = await appliance.chat(max_tokens=500)
        unsaid = await appliance.chat()
    assert whole.json()["choices"][0]["tandem"] == {"max_tokens": 500}
    assert chunks_of(stream.content)[-1]["choices"][0]["tandem"] == {"max_tokens": 500}
    assert whole.headers["x-tandem-max-tokens"] == "500"
    assert int(stream.headers["x-tandem-max-tokens"]) < 32_000
    for answer in (fitting, unsaid):
        assert "tandem" not in answer.json()["choices"][0]
        assert "x-tandem-max-tokens" not in answer.headers


@pytest.mark.parametrize("over", [-1, 0, 1])
async def test_a_chat_that_fits_by_one_token_is_answered_and_one_more_is_not(start: Start, over: int) -> None:
    """BR-064."""
    async with start() as appliance:
        await appliance.chat("x")
        frame = len(appliance.engine.requests[-1].tokens) - 1  # "x" is one token, and so is each " x"
        response = await appliance.chat("x" + " x" * (8192 - frame - 1 + over))
    if over < 0:
        assert response.status_code == 200
        assert response.json()["usage"]["completion_tokens"] == 1
    else:
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "context length is 8192 tokens" in error["message"]
        assert f"the prompt has {8192 + over} tokens" in error["message"]


@pytest.mark.parametrize(("limit", "thinking"), [(64, 48), (4096, 3072), (8000, 6976), (1, 1), (3, 3)])
async def test_thinking_leaves_room_for_the_answer(start_thinker: Start, limit: int, thinking: int) -> None:
    """BR-068."""
    async with start_thinker() as appliance:
        appliance.engine.script = speaking(appliance, "<think>\nstill", reason=FinishReason.LENGTH)
        told = told_at_once(await appliance.chat(max_tokens=limit))
        reasoning = appliance.engine.requests[-1].reasoning
    assert (told.thinking, told.text, told.finish) == ("still", "", "length")
    assert reasoning is not None and reasoning.max_tokens == thinking


# --- thinking by its names ---

WAYS: dict[str, dict[str, str]] = {
    "reasoning_content": {"reasoning_content": "{}", "content": "Hi."},
    "reasoning": {"reasoning": "{}", "content": "Hi."},
    "both": {"reasoning_content": "{}", "reasoning": "{}", "content": "Hi."},
    "tags": {"content": "<think>\n{}\n</think>\n\nHi."},
    "none": {"content": "Hi."},
}
THOUGHT = "The user greets. 🙂 I greet back."


@pytest.mark.parametrize("way", WAYS)
async def test_thinking_stands_where_the_appliance_says(start_thinker: Start, way: str) -> None:
    """BR-101."""
    async with start_thinker(make_live(api=Api(reasoning=way))) as appliance:
        appliance.engine.script = speaking(appliance, f"{THINKING}Hi.", 2)
        message = (await appliance.chat()).json()["choices"][0]["message"]
        chunks = await streamed(appliance)
    assert message == {"role": "assistant"} | {name: text.format(THOUGHT) for name, text in WAYS[way].items()}
    assert joined_deltas(chunks) == message


def joined_deltas(chunks: list[Any]) -> dict[str, str]:
    whole: dict[str, str] = {}
    for chunk in chunks:
        for name, text in chunk["choices"][0]["delta"].items():
            whole[name] = whole.get(name, "") + text
    return whole


@pytest.mark.parametrize(
    ("wish", "way"),
    [
        ({"reasoning_format": "none"}, "tags"),
        ({"reasoning_format": "deepseek"}, "reasoning_content"),
        ({"reasoning_format": "auto"}, "reasoning"),
        ({"include_reasoning": False}, "none"),
        ({"include_reasoning": True}, "reasoning"),
    ],
)
async def test_or_where_a_request_wants_it(start_thinker: Start, wish: dict[str, Any], way: str) -> None:
    """BR-068: a choice of each client's."""
    async with start_thinker(make_live(api=Api(reasoning="reasoning"))) as appliance:
        appliance.engine.script = speaking(appliance, f"{THINKING}Hi.", 3)
        message = (await appliance.chat(**wish)).json()["choices"][0]["message"]
        assert joined_deltas(await streamed(appliance, **wish)) == message
    assert message == {"role": "assistant"} | {name: text.format(THOUGHT) for name, text in WAYS[way].items()}


@pytest.mark.parametrize("rest", [f"I look.\n{NOW}", NOW, ""])
async def test_tags_are_closed_whatever_follows(start_thinker: Start, rest: str) -> None:
    async with start_thinker(make_live(api=Api(reasoning="tags"))) as appliance:
        appliance.engine.script = speaking(appliance, THINKING + rest)
        told = put_together(await streamed(appliance, tools=TOOLS))
        whole = told_at_once(await appliance.chat(tools=TOOLS))
    assert told.text == whole.text == f"<think>\n{THOUGHT}\n</think>\n\n" + ("I look." if "look" in rest else "")
    assert told.names == whole.names == (["clock"] if rest else [])


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "xylophone"},
        {"reasoning": "xylophone"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "xylo", "index": 0}, {"text": "phone"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "xylophone"}, {"data": "…"}]},
        {"content": "<think>\nxylophone\n</think>\n\nI look."},
    ],
    ids=str,
)
async def test_past_thinking_is_taken_back_under_every_name(start_thinker: Start, fields: dict[str, Any]) -> None:
    """BR-101."""
    clock = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "the time?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [clock], **fields},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    async with start_thinker() as appliance:
        response = await appliance.http.post(CHAT, json={"messages": messages, "tools": TOOLS})
        prompt = text_of_prompt(appliance)
    assert response.status_code == 200
    assert "<think>\nxylophone\n</think>\n\nI look." in prompt


async def test_an_answer_may_be_sent_back_as_it_came(start_thinker: Start) -> None:
    """Under each setting, everything the client was told goes back and is understood."""
    for way in WAYS:
        async with start_thinker(make_live(api=Api(reasoning=way))) as appliance:
            appliance.engine.script = speaking(appliance, f"{THINKING}I look.\n{NOW}")
            message = (await appliance.chat(tools=TOOLS)).json()["choices"][0]["message"]
            messages = [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "noon"}]
            again = await appliance.http.post(CHAT, json={"messages": [{"role": "user"}, *messages], "tools": TOOLS})
            assert again.status_code == 200, again.text
            assert (f"<think>\n{THOUGHT}\n</think>\n\nI look.<tool_call>" in text_of_prompt(appliance)) == (
                way != "none"
            )


async def test_a_stream_that_breaks_says_so_once_and_ends(start: Start) -> None:
    told = asyncio.Event()

    async def breaks(job: Job) -> None:
        job.start()
        job.tokens(appliance.engine.answer[0])
        await told.wait()
        job.finish(FinishReason.CANCELLED)

    async with start() as appliance:
        appliance.engine.script = breaks
        body = {**ROUTES[CHAT], "stream": True, "stream_options": {"include_usage": True}}
        async with appliance.http.stream("POST", CHAT, json=body) as response:
            pieces = []
            async for piece in response.aiter_bytes():
                pieces.append(piece)
                told.set()
    *begun, error = chunks_of(b"".join(pieces))
    assert all("choices" in chunk for chunk in begun)
    assert error["error"]["code"] == "engine_error"
