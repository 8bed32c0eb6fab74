"""The real model through every door: one greedy answer, whatever the client's words."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import ollama
import openai
import pytest

if TYPE_CHECKING:
    from wire_appliance import Appliance

pytestmark = [pytest.mark.wire, pytest.mark.timeout(240)]
MODEL = "smollm2-135m"
USER: Any = [{"role": "user", "content": "Name three rivers."}]
TOKENS = 24


async def chat(url: str) -> dict[str, str]:
    """By door, streamed or not."""
    told: dict[str, str] = {}
    asked: Any = {"model": MODEL, "temperature": 0}
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as gpt,
        anthropic.AsyncAnthropic(base_url=url, api_key="none") as claude,
    ):
        whole = await gpt.chat.completions.create(messages=USER, max_tokens=TOKENS, **asked)
        told["chat"] = whole.choices[0].message.content or ""
        response = await gpt.responses.create(input=USER, max_output_tokens=TOKENS, **asked)
        told["responses"] = response.output_text
        async with gpt.responses.stream(input=USER, max_output_tokens=TOKENS, **asked) as events:
            deltas = [event.delta async for event in events if event.type == "response.output_text.delta"]
            told["responses, streamed"] = "".join(deltas)
        # It takes a temperature as `extra_body` only.
        greedy: Any = {"model": MODEL, "messages": USER, "max_tokens": TOKENS, "extra_body": {"temperature": 0}}
        message = await claude.messages.create(**greedy)
        told["messages"] = "".join(block.text for block in message.content if block.type == "text")
        async with claude.messages.stream(**greedy) as stream:
            told["messages, streamed"] = "".join([text async for text in stream.text_stream])
    llama = ollama.AsyncClient(url)
    options = {"temperature": 0, "num_predict": TOKENS}
    told["ollama"] = (await llama.chat(MODEL, messages=USER, options=options)).message.content or ""
    lines = await llama.chat(MODEL, messages=USER, options=options, stream=True)
    told["ollama, streamed"] = "".join([line.message.content or "" async for line in lines])
    told["ollama, generated"] = (await llama.generate(MODEL, USER[0]["content"], options=options)).response
    prompt = (httpx.post(f"{url}/apply-template", json={"messages": USER})).json()["prompt"]
    raw = await llama.generate(MODEL, prompt, raw=True, options=options)
    told["ollama, from the bare prompt"] = raw.response
    await llama.close()
    return told


def test_every_door_tells_the_same_answer(appliance: Appliance) -> None:
    told = asyncio.run(chat(appliance.url))
    assert len(set(told.values())) == 1, told
    assert len(told["chat"]) > 20


def test_what_the_doors_say_of_the_model_is_true(appliance: Appliance) -> None:
    with httpx.Client(base_url=appliance.url, timeout=30) as client:
        window = client.get("/v1/models").json()["data"][0]["max_model_len"]
        assert client.get("/props").json()["default_generation_settings"]["n_ctx"] == window
        assert client.get("/api/ps").json()["models"][0]["context_length"] == window
        shown = client.post("/api/show", json={"model": MODEL}).json()
        assert shown["model_info"]["llama.context_length"] == window
        slots = client.get("/slots").json()
        assert slots[0]["n_ctx"] == window
        assert {slot["state"] for slot in slots} == {"idle"}
