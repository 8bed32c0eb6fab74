"""Answers held to a grammar, over a real port: what the engine is asked, and what clients hear of its refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from engine_double import Job
from gateway_appliance import MODEL, Start

from tandem.contract.messages import FinishReason, Grammar, GrammarKind, RefusalCode, Refused

pytestmark = pytest.mark.anyio
USER: Any = [{"role": "user", "content": "hi"}]
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}, "strict": True}}
PLACE = "response_format.json_schema.schema"


async def test_every_choice_is_asked_for_with_the_grammar(start: Start) -> None:
    async with start() as appliance:
        assert (await appliance.chat(n=2, response_format=FORMAT)).status_code == 200
        assert (await appliance.chat(response_format={"type": "text"})).status_code == 200
        grammar = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"integer"}', PLACE)
        assert [request.grammar for request in appliance.engine.requests] == [grammar, grammar, None]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_grammar_is_a_status_that_names_the_place(start: Start, stream: bool) -> None:
    async def refuse(job: Job) -> None:
        sentence = f"`{PLACE}.not`: `not` cannot be enforced here"
        job.say(Refused(job.request.id, RefusalCode.BAD_REQUEST, sentence, param=f"{PLACE}.not"))

    async with start() as appliance:
        appliance.engine.script = refuse
        with pytest.raises(openai.BadRequestError) as caught:
            await appliance.openai.chat.completions.create(
                model=MODEL, messages=USER, response_format=FORMAT, stream=stream
            )
        answer = (await appliance.chat(response_format=FORMAT, stream=stream)).json()
    assert caught.value.status_code == 400
    assert caught.value.param == f"{PLACE}.not"
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"].startswith(f"`{PLACE}.not`: ")


async def test_a_grammar_that_gets_stuck_ends_a_stream_with_its_error(start: Start) -> None:
    has_begun = asyncio.Event()

    async def stick(job: Job) -> None:
        job.start()
        job.tokens(appliance.engine.answer[0])
        await has_begun.wait()
        job.refuse(RefusalCode.BAD_REQUEST, "the grammar allows nothing behind what was written")

    body = {"messages": USER, "stream": True, "grammar": 'start: "a"'}
    async with start() as appliance:
        appliance.engine.script = stick
        async with appliance.http.stream("POST", "/v1/chat/completions", json=body) as response:
            text = ""
            async for piece in response.aiter_text():
                text += piece
                has_begun.set()
    *_, error, done, nothing = text.split("\n\n")
    assert '"code":"invalid_request"' in error and "allows nothing" in error
    assert (done, nothing) == ("data: [DONE]", "")


async def test_an_answer_that_is_cut_says_so(start: Start) -> None:
    async def cut(job: Job) -> None:
        job.start()
        job.tokens(*appliance.engine.answer[:2])
        job.finish(FinishReason.LENGTH)

    async with start() as appliance:
        appliance.engine.script = cut
        answer = (await appliance.chat(max_tokens=2, response_format={"type": "json_object"})).json()
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_schema_that_is_none_never_reaches_the_engine(start: Start) -> None:
    async with start() as appliance:
        response = await appliance.chat(response_format={"type": "json_schema", "json_schema": {"name": "n"}})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == PLACE
        assert appliance.engine.requests == []
