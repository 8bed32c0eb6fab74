"""The official OpenAI client against `/v1/responses`."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from gateway_appliance import MODEL, Appliance, Start
from spoken import NOW, THINKING, WEATHER, ZURICH, speaking, text_of_prompt

from tandem.contract.messages import FinishReason

pytestmark = pytest.mark.anyio
ANSWER = f"{THINKING}I look.\n{ZURICH}\n{NOW}"
TOOLS: Any = [
    {"type": "function", "strict": False, **WEATHER["function"]},
    {"type": "function", "strict": False, "name": "clock", "parameters": {"type": "object", "properties": {}}},
]
HOSTED: Any = [
    {"type": kind, "name": kind} for kind in ("web_search", "image_generation", "mcp", "namespace", "custom")
]


@pytest.fixture
def start(start_thinker: Start) -> Start:
    return start_thinker


async def both(appliance: Appliance, **fields: Any) -> tuple[Any, Any, list[Any]]:
    """The whole answer, the same as a stream ends with it, and the stream's events."""
    asked: Any = {"model": MODEL, "input": "hi"} | fields
    whole = await appliance.openai.responses.create(**asked)
    stream: Any = await appliance.openai.responses.create(**asked, stream=True)
    events = [event async for event in stream]
    return whole, events[-1].response, events


def items(response: Any) -> list[Any]:
    """What of each item is not its name."""
    kept = ("type", "content", "arguments", "name", "status")
    return [{key: value for key, value in item.model_dump().items() if key in kept} for item in response.output]


async def test_the_same_items_streamed_or_not(start: Start) -> None:
    """BR-010."""
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, ANSWER)
        whole, streamed, _ = await both(appliance, tools=TOOLS)
    assert items(whole) == items(streamed)
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    thinking, _, weather, clock = whole.output
    assert thinking.content[0].text == "The user greets. 🙂 I greet back."
    assert whole.output_text == "I look."
    assert (weather.name, weather.arguments) == ("weather", '{"city": "Zürich 🏔", "days": 3}')
    assert (clock.name, clock.arguments) == ("clock", "{}")
    assert weather.call_id != clock.call_id
    assert len({item.id for item in streamed.output}) == 4
    for response in (whole, streamed):
        assert (response.status, response.store, response.incomplete_details) == ("completed", False, None)
        assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
        assert response.usage.output_tokens_details.reasoning_tokens > 0


async def test_events_are_complete_and_in_order(start: Start) -> None:
    async with start() as appliance:
        for width in (1, 2, 7, 32):
            appliance.engine.script = speaking(appliance, ANSWER, width)
            _, streamed, events = await both(appliance, tools=TOOLS)
            check(streamed, events)


def check(streamed: Any, events: list[Any]) -> None:
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    for index, item in enumerate(streamed.output):
        of_item = [event for event in events if getattr(event, "output_index", None) == index]
        assert of_item[0].type == "response.output_item.added"
        assert (of_item[-1].type, of_item[-1].item) == ("response.output_item.done", item)
        assert all(event.item_id == item.id for event in of_item[1:-1])
        written = "".join(event.delta for event in of_item if event.type.endswith(".delta"))
        (done,) = [event for event in of_item if event.type in DONE]
        assert written == (done.arguments if item.type == "function_call" else done.text)


DONE = {"response.reasoning_text.done", "response.output_text.done", "response.function_call_arguments.done"}


async def test_the_clients_own_stream_reads_it(start: Start) -> None:
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, ANSWER, 3)
        async with appliance.openai.responses.stream(model=MODEL, input="hi", tools=TOOLS) as stream:
            _ = [event async for event in stream]
            final = await stream.get_final_response()
    assert final.output_text == "I look."


async def test_tools_that_a_vendor_hosts_are_left_out(start: Start) -> None:
    """BR-011."""
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, NOW)
        asked = {"model": MODEL, "input": "hi", "tools": [*HOSTED, *TOOLS]}
        answer = await appliance.http.post("/v1/responses", json=asked)
        assert answer.status_code == 200
        assert answer.headers["x-tandem-ignored"] == ", ".join(f"tools[{n}]" for n in range(5))
        assert "weather" in text_of_prompt(appliance)
        assert "web_search" not in text_of_prompt(appliance)
        for choice in ({"type": "web_search"}, {"type": "function", "name": "image_generation"}):
            refused = await appliance.http.post("/v1/responses", json=asked | {"tool_choice": choice})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


async def test_a_conversation_with_results_of_tools_goes_on(start: Start) -> None:
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, ANSWER)
        whole, _, _ = await both(appliance, tools=TOOLS)
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": f"result of {item.name}"}
            for item in whole.output
            if item.type == "function_call"
        ]
        appliance.engine.script = speaking(appliance, "It is sunny.")
        past = [item.model_dump(exclude_none=True) for item in whole.output]
        turns = [{"role": "user", "content": "hi"}, *past, *results, {"role": "user", "content": "And?"}]
        second, _, _ = await both(appliance, tools=TOOLS, input=turns, instructions="Be brief.", store=True)
        assert second.output_text == "It is sunny."
        assert second.instructions == "Be brief."
        read = text_of_prompt(appliance)
    for part in ("Be brief.", "I greet back.", "I look.", '"Zürich 🏔"', "result of weather", "result of clock", "And?"):
        assert part in read


async def test_a_cut_answer_is_incomplete(start: Start) -> None:
    cut_call = f"I look.\n{ZURICH[: ZURICH.index('days')]}"
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, cut_call, reason=FinishReason.LENGTH)
        whole, streamed, events = await both(appliance, tools=TOOLS, max_output_tokens=9)
    assert events[-1].type == "response.incomplete"
    assert items(whole) == items(streamed)
    for response in (whole, streamed):
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert [item.status for item in response.output] == ["completed", "incomplete"]
        assert response.output[1].arguments.startswith('{"city"')


async def test_nothing_is_kept_between_requests(start: Start) -> None:
    async with start() as appliance:
        with pytest.raises(openai.BadRequestError) as refused:
            await appliance.openai.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
        assert "send the whole conversation as `input`" in str(refused.value)
        assert appliance.engine.requests == []


async def test_an_engine_that_dies_fails_the_response(start: Start) -> None:
    async def dies(job: Any) -> None:
        job.start()
        job.tokens(*appliance.engine.answer[:2])
        await appliance.until(lambda: len(seen) > 4)
        appliance.engine.die()

    seen: list[Any] = []
    async with start() as appliance:
        appliance.engine.script = dies
        stream: Any = await appliance.openai.responses.create(model=MODEL, input="hi", stream=True)
        async for event in stream:
            seen += [event]
    assert seen[-1].type == "response.failed"
    assert (seen[-1].response.status, seen[-1].response.error.code) == ("failed", "engine_restarted")
    assert [item.status for item in seen[-1].response.output] == ["incomplete"]
