"""The official Ollama client against `/api/...`."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import ollama
import pytest
from gateway_appliance import MODEL, TEXT, Appliance, Start
from spoken import CLOCK, NOW, THINKING, WEATHER, ZURICH, speaking, text_of_prompt

from tandem.contract.messages import FinishReason, GrammarKind

pytestmark = pytest.mark.anyio
ANSWER = f"{THINKING}I look.\n{ZURICH}\n{NOW}"
USER: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def start(start_thinker: Start) -> Start:
    return start_thinker


def finishes(appliance: Appliance) -> list[str]:
    """How each request ended, as the ledger has it."""
    try:
        with sqlite3.connect(appliance.service.plan.gateway.ledger) as connection:
            return [finish for (finish,) in connection.execute("SELECT finish FROM requests ORDER BY rowid")]
    except sqlite3.OperationalError:  # its writer has not begun
        return []


async def both(appliance: Appliance, **fields: Any) -> tuple[Any, list[Any]]:
    """The whole answer, and the pieces of a stream."""
    client = ollama.AsyncClient(appliance.url)
    asked: Any = {"model": MODEL, "messages": USER} | fields
    whole = await client.chat(**asked)
    stream = await client.chat(**asked, stream=True)
    pieces = [piece async for piece in stream]
    await client.close()
    return whole, pieces


async def test_thinking_text_and_calls_are_the_same_streamed_or_not(start: Start) -> None:
    async with start() as appliance:
        for width in (1, 2, 7, 32):
            appliance.engine.script = speaking(appliance, ANSWER, width)
            check(*await both(appliance, tools=[WEATHER, CLOCK]))


def check(whole: Any, pieces: list[Any]) -> None:
    calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
    assert whole.message.thinking == "The user greets. 🙂 I greet back."
    assert whole.message.thinking == "".join(piece.message.thinking or "" for piece in pieces)
    assert whole.message.content == "I look." == "".join(piece.message.content for piece in pieces)
    for made in (whole.message.tool_calls, calls):
        assert [(call.function.name, call.function.arguments) for call in made] == [
            ("weather", {"city": "Zürich 🏔", "days": 3}),
            ("clock", {}),
        ]
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    for last in (whole, pieces[-1]):
        assert (last.done_reason, last.model) == ("stop", MODEL)
        assert last.eval_count > 0 and last.prompt_eval_count > 0 and last.eval_duration > 0


async def test_a_stream_is_lines_and_the_default(start: Start) -> None:
    async with start() as appliance:
        response = await appliance.http.post("/api/chat", json={"model": f"{MODEL}:latest", "messages": USER})
        assert response.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in response.text.splitlines()]
        asked = json.dumps({"messages": USER, "stream": False})
        curl = {"content-type": "application/x-www-form-urlencoded"}  # what it says of `-d`, unless told otherwise
        assert (await appliance.http.post("/api/chat", content=asked, headers=curl)).status_code == 200
        elsewhere = await appliance.http.post("/v1/chat/completions", content=asked, headers=curl)
        assert elsewhere.status_code == 415
    assert "".join(line["message"]["content"] for line in lines) == TEXT
    assert lines[-1]["done"]


async def test_options_reach_the_engine_and_the_others_are_named(start: Start) -> None:
    """BR-065, BR-077: nothing that a request says changes what is loaded."""
    options = {"num_predict": 3, "temperature": 0.2, "seed": 5, "stop": ["zz"], "num_ctx": 128, "num_gpu": 1}
    async with start() as appliance:
        asked = {"messages": USER, "options": options, "keep_alive": 0, "stream": False}
        answer = await appliance.http.post("/api/chat", json=asked)
        assert answer.headers["x-tandem-ignored"] == "options.num_ctx, options.num_gpu"
        assert answer.json()["done_reason"] == "length"
        (request,) = appliance.engine.requests
        assert (request.max_tokens, request.sampling.temperature, request.sampling.seed) == (3, 0.2, 5)
        for number, odd in enumerate(({"num_ctx": 100_000}, {}, {"num_ctx": 16, "use_mmap": False})):
            long = [{"role": "user", "content": "word " * (2000 + number)}]
            body = {"messages": long, "options": odd, "stream": False, "keep_alive": "-1m"}
            assert (await appliance.http.post("/api/chat", json=body)).status_code == 200
        assert [len(request.tokens) > 2000 for request in appliance.engine.requests[1:]] == [True] * 3


async def test_a_request_without_words_loads_and_unloads_nothing(start: Start) -> None:
    async with start() as appliance:
        client = ollama.AsyncClient(appliance.url)
        for loading in (
            await client.generate(MODEL, keep_alive=0),
            await client.chat(MODEL, messages=[], keep_alive=-1),
        ):
            assert (loading.done, loading.done_reason) == (True, "load")
        with pytest.raises(ollama.ResponseError) as unknown:
            await client.generate("llama9", "")
        assert (unknown.value.status_code, MODEL in unknown.value.error) == (404, True)
        assert appliance.engine.requests == []
        await appliance.until(lambda: len(finishes(appliance)) == 3)
        assert finishes(appliance) == ["stop", "stop", "model_not_found"]
        await client.close()


async def test_a_form_is_kept_and_thinking_can_be_turned_off(start: Start) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with start() as appliance:
        client = ollama.AsyncClient(appliance.url)
        await client.chat(MODEL, messages=USER, format=schema)
        await client.chat(MODEL, messages=USER, format="json")
        await client.chat(MODEL, messages=USER, think=False)
        grammars = [request.grammar for request in appliance.engine.requests]
        assert grammars[0] is not None and json.loads(grammars[0].text) == schema
        assert grammars[1] is not None and grammars[1].kind is GrammarKind.JSON_OBJECT
        assert "<think>\n\n</think>" in text_of_prompt(appliance)
        await client.close()


async def test_one_message_or_a_bare_prompt(start: Start) -> None:
    async with start() as appliance:
        client = ollama.AsyncClient(appliance.url)
        appliance.engine.script = speaking(appliance, f"{THINKING}Hello.")
        whole = await client.generate(MODEL, "hi", system="Be brief.")
        assert (whole.response, whole.thinking) == ("Hello.", "The user greets. 🙂 I greet back.")
        assert "Be brief." in text_of_prompt(appliance)
        pieces = [piece async for piece in await client.generate(MODEL, "hi", stream=True)]
        assert "".join(piece.response for piece in pieces) == "Hello."
        await client.generate(MODEL, "once upon", raw=True)
        tokenizer = appliance.service.prompts.tokenizer
        assert appliance.engine.requests[-1].tokens == tuple(tokenizer.encode("once upon"))
        await client.close()


async def test_results_of_tools_go_back(start: Start) -> None:
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, ANSWER)
        whole, _ = await both(appliance, tools=[WEATHER, CLOCK])
        result = {"role": "tool", "tool_name": "weather", "content": "sun over the lake"}
        appliance.engine.script = speaking(appliance, "It is sunny.")
        await both(appliance, tools=[WEATHER, CLOCK], messages=[*USER, whole.message, result])
        read = text_of_prompt(appliance)
    for part in ("I greet back.", "I look.", '"Zürich 🏔"', "sun over the lake"):
        assert part in read


async def test_a_limit_and_an_error(start: Start) -> None:
    async def dies(job: Any) -> None:
        job.start()
        job.tokens(*appliance.engine.answer[:2])
        appliance.engine.die()

    async with start() as appliance:
        appliance.engine.script = speaking(appliance, f"I look.\n{ZURICH[:70]}", reason=FinishReason.LENGTH)
        whole, pieces = await both(appliance, tools=[WEATHER])
        assert whole.done_reason == pieces[-1].done_reason == "length"
        client = ollama.AsyncClient(appliance.url)
        with pytest.raises(ollama.ResponseError) as wrong:
            await client.chat(MODEL, messages=[{"role": "user", "content": "word " * 9000}])
        assert wrong.value.status_code == 400 and "8192" in wrong.value.error
        assert (await appliance.http.get("/api/chat")).json()["code"] == "method_not_allowed"
        appliance.engine.script = dies
        with pytest.raises(ollama.ResponseError) as broken:
            _ = [piece async for piece in await client.chat(MODEL, messages=USER, stream=True)]
        assert "starts again by itself" in broken.value.error
        await client.close()


async def test_what_is_there(start: Start) -> None:
    async with start() as appliance:
        client = ollama.AsyncClient(appliance.url)
        (listed,) = (await client.list()).models
        assert listed.model == MODEL
        assert listed.size and listed.size > 10_000_000
        shown = await client.show(f"{MODEL}:latest")
        assert shown.modelinfo is not None and shown.modelinfo["llama.context_length"] == 8192
        assert shown.capabilities == ["completion", "tools", "thinking"]
        (loaded,) = (await client.ps()).models
        assert (loaded.model, loaded.context_length) == (MODEL, 8192)
        version = (await appliance.http.get("/api/version")).json()["version"]
        assert [int(part) for part in version.split(".")] >= [0, 6, 4]
        with pytest.raises(ollama.ResponseError) as unknown:
            await client.show("llama9")
        assert unknown.value.status_code == 404
        appliance.engine.die()
        await appliance.until(lambda: appliance.service.engine.status.state != "ready")
        assert list((await client.ps()).models) == []
        await client.close()
