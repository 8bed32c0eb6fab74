"""What clients receive, over a real port, from an engine double on a real socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest
from engine_double import Job
from gateway_appliance import MODEL, TEXT, Appliance, Start

from tandem.contract.messages import FinishReason
from tandem.gateway.answers import ChatCompletion, Completion
from tandem.text.tokenizer import Tokenizer

pytestmark = pytest.mark.anyio
USER: Any = [{"role": "user", "content": "hi"}]


def events(body: bytes) -> list[Any]:
    """Every event of a stream, which must be exactly the form: `data: JSON`, an empty line, and `[DONE]` last."""
    lines = body.split(b"\n\n")
    assert lines.pop() == b""
    lines = [line for line in lines if not line.startswith(b": ")]
    assert all(line.startswith(b"data: ") and b"\n" not in line for line in lines)
    assert lines.pop() == b"data: [DONE]"
    return [json.loads(line[6:]) for line in lines]


def text_of(chunks: list[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def streamed(appliance: Appliance, **fields: Any) -> list[Any]:
    response = await appliance.chat(stream=True, **fields)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-accel-buffering"] == "no"
    return events(response.content)


async def test_a_stream_says_what_the_whole_answer_says(start: Start) -> None:
    async with start() as appliance:
        whole = msgspec.json.decode((await appliance.chat()).content, type=ChatCompletion)
        chunks = await streamed(appliance)
    assert whole.choices[0].message.content == text_of(chunks) == TEXT
    assert whole.choices[0].finish_reason == "stop"
    assert "\ufffd" not in text_of(chunks)
    first, *middle, last = chunks
    assert first["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in middle)
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert (first["object"], first["model"]) == ("chat.completion.chunk", MODEL)
    assert last["timings"]["cache_n"] == 3


async def test_usage_is_one_further_chunk_and_only_when_asked(start: Start) -> None:
    async with start() as appliance:
        plain = await streamed(appliance)
        asked = await streamed(appliance, stream_options={"include_usage": True})
        whole = (await appliance.chat()).json()
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in plain)
    assert len(asked) == len(plain) + 1
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"] == whole["usage"]
    usage = whole["usage"]
    assert usage["completion_tokens"] == len(plain)  # a role and an end more, two less: three tokens are one emoji
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3}


@pytest.mark.parametrize("width", [1, 2, 5, 100])
async def test_how_the_engine_cuts_its_tokens_changes_no_text(start: Start, width: int) -> None:
    async def batches(job: Job) -> None:
        job.start()
        answer = appliance.engine.answer
        for at in range(0, len(answer), width):
            job.tokens(*answer[at : at + width])
        job.finish()

    async with start() as appliance:
        appliance.engine.script = batches
        assert text_of(await streamed(appliance)) == TEXT
        cut = await streamed(appliance, stop=["ld! 🙂🏽 Th", "xyz"], stream_options={"include_usage": True})
        whole = (await appliance.chat(stop="ld! 🙂🏽 Th")).json()
    assert text_of(cut) == whole["choices"][0]["message"]["content"] == "Hello, wor"
    assert cut[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "stop"
    assert cut[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] < 12


async def test_a_stop_string_frees_the_slot(start: Start) -> None:
    async def endless(job: Job) -> None:
        job.start()
        while not job.cancelled.is_set():
            job.tokens(appliance.engine.answer[0])
            await asyncio.sleep(0)
        job.finish(FinishReason.CANCELLED)

    async with start() as appliance:
        appliance.engine.script = endless
        assert text_of(await streamed(appliance, stop=["oHel"])) == "Hell"
        assert await appliance.engine.cancels.get() == appliance.engine.requests[0].id


async def test_an_answer_cut_inside_a_character_ends_before_it(start: Start) -> None:
    async with start() as appliance:
        inside = len(appliance.service.prompts.tokenizer.encode("Hello, world! 🙂🏽")) - 1
        chunks = await streamed(appliance, max_tokens=inside)
        whole = (await appliance.chat(max_tokens=inside)).json()
    assert text_of(chunks) == whole["choices"][0]["message"]["content"] == "Hello, world! 🙂"
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"


async def test_what_the_engine_is_asked(start: Start, tokenizer: Tokenizer) -> None:
    async with start() as appliance:
        await appliance.chat("<|im_end|>!", temperature=0, seed=5, max_tokens=9, stop=["zz"], logit_bias={"7": -1})
        await appliance.chat()
        await appliance.chat(max_tokens=None, max_completion_tokens=4)
        await appliance.chat(max_tokens=9, max_completion_tokens=4)
        await appliance.chat(max_tokens=10**12)
        asked, plain, newer, wins, huge = appliance.engine.requests
    assert (asked.max_tokens, asked.sampling.seed, asked.sampling.temperature) == (9, 5, 0)
    assert asked.sampling.logit_bias == ((7, -1.0),)
    assert asked.stop_tokens == (0, 2)
    assert asked.tokens.count(2) == 2  # the template's two ends of turn, and none from the user's text
    assert 0 < asked.marks.head_end == asked.marks.messages_end < len(asked.tokens)
    assert (plain.max_tokens, plain.sampling.temperature, plain.sampling.top_p) == (64, 0.7, 0.9)
    assert (newer.max_tokens, wins.max_tokens) == (4, 4)
    assert huge.max_tokens == 8192 - len(huge.tokens)
    assert len({request.id for request in appliance.engine.requests}) == 5


async def test_several_choices(start: Start) -> None:
    async with start() as appliance:
        whole = (await appliance.chat(n=3, seed=1)).json()
        chunks = await streamed(appliance, n=2)
        seeds = [request.sampling.seed for request in appliance.engine.requests[:3]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in whole["choices"]} == {TEXT}
    assert whole["usage"]["completion_tokens"] % 3 == 0
    assert seeds == [1, 2, 3]
    assert text_of(chunks, 0) == text_of(chunks, 1) == TEXT
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks].count("stop") == 2


async def test_completions_take_texts_and_ids(start: Start, tokenizer: Tokenizer) -> None:
    async with start() as appliance:

        async def complete(prompt: Any, **fields: Any) -> httpx.Response:
            return await appliance.http.post("/v1/completions", json={"prompt": prompt, **fields})

        whole = msgspec.json.decode((await complete("once <|im_end|>")).content, type=Completion)
        assert whole.choices[0].text == TEXT
        assert appliance.engine.requests[-1].tokens == (*tokenizer.encode("once "), 2)
        assert appliance.engine.requests[-1].max_tokens == 64  # as in chat, never 16
        several = (await complete(["a", "b"], n=2)).json()
        assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
        assert [r.tokens for r in appliance.engine.requests[-4:]] == [tuple(tokenizer.encode(x)) for x in "aabb"]
        assert (await complete([5, 6, 7])).status_code == 200
        assert appliance.engine.requests[-1].tokens == (5, 6, 7)
        assert (await complete([[5], "x", [6]])).status_code == 200
        chunks = events((await complete("x", stream=True)).content)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
        assert chunks[0]["object"] == "text_completion"
        for bad, param in ([5, "x"], "prompt"), ([99_999], "prompt"), ("", "prompt"), (["a", ""], "prompt[1]"):
            response = await complete(bad)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert (await complete("x", echo=True)).json()["error"]["param"] == "echo"
        assert (await complete(["x"] * 9, n=2)).json()["error"]["param"] == "n"


async def test_the_openai_client_reads_all_of_it(start: Start) -> None:
    async with start() as appliance:
        client = appliance.openai
        whole: Any = await client.chat.completions.create(model=MODEL, messages=USER)
        assert whole.choices[0].message.content == TEXT
        stream: Any = await client.chat.completions.create(
            model="default", messages=USER, stream=True, stream_options={"include_usage": True}
        )
        seen = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in seen[:-1]) == TEXT
        assert seen[-1].usage.total_tokens == whole.usage.total_tokens
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).model_dump()["max_model_len"] == 8192


async def test_a_request_that_arrives_byte_by_byte(start: Start) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "🙂"}], "max_tokens": 2}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; charset=utf-8\r\n"
    request = head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with start() as appliance:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(appliance.url.rpartition(":")[2]))
        for byte in request:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"finish_reason":"length"' in answer


async def test_the_request_id_comes_back(start: Start) -> None:
    async with start() as appliance:
        kept = await appliance.http.get("/livez", headers={"X-Request-Id": "abc-1.2"})
        replaced = await appliance.http.get("/livez", headers={"X-Request-Id": "<script>"})
        error = await appliance.http.get("/nothing", headers={"X-Request-Id": "abc"})
    assert kept.headers["x-request-id"] == "abc-1.2"
    assert replaced.headers["x-request-id"] not in ("", "<script>")
    assert error.headers["x-request-id"] == "abc"


async def test_models_tell_the_real_window(start: Start) -> None:
    async with start() as appliance:
        card = (await appliance.http.get("/v1/models")).json()["data"][0]
        limit = card["max_model_len"]
        ids = [5] * (limit + 1)
        at = {
            n: await appliance.http.post("/v1/completions", json={"prompt": ids[:n]})
            for n in (limit - 1, limit, limit + 1)
        }
    assert (card["id"], card["status"], card["context_length"]) == (MODEL, "ready", 8192)
    assert card["meta"] == {"n_ctx": 8192, "n_ctx_side": 4096, "n_vocab": 49152, "slots": 2}
    assert at[limit - 1].status_code == 200
    assert appliance.engine.requests[-1].max_tokens == 1
    for count in (limit, limit + 1):
        error = at[count].json()["error"]
        assert (at[count].status_code, error["code"]) == (400, "context_length_exceeded")
        assert "8192" in error["message"] and f"{count} tokens" in error["message"]
