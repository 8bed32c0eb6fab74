"""The official Anthropic client against `/v1/messages`."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from gateway_appliance import MODEL, Appliance, Start, make_live
from spoken import NOW, THINKING, WEATHER, ZURICH, speaking, text_of_prompt

from tandem.contract.messages import FinishReason, GrammarKind
from tandem.contract.plan import KeySource

pytestmark = pytest.mark.anyio
ANSWER = f"{THINKING}I look.\n{ZURICH}\n{NOW}"
FUNCTION = WEATHER["function"]
TOOLS: Any = [
    {"name": "weather", "description": FUNCTION["description"], "input_schema": FUNCTION["parameters"]},
    {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
]
USER: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture
def start(start_thinker: Start) -> Start:
    return start_thinker


def client(appliance: Appliance, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=appliance.url, api_key=key, max_retries=0)


async def both(appliance: Appliance, **fields: Any) -> tuple[Any, Any, list[Any]]:
    """The whole answer, the same put together from a stream, and the stream's events."""
    asked: Any = {"model": MODEL, "max_tokens": 500, "messages": USER} | fields
    async with client(appliance) as claude:
        whole = await claude.messages.create(**asked)
        async with claude.messages.stream(**asked) as stream:
            events = [event async for event in stream]
            return whole, await stream.get_final_message(), events


def blocks(message: Any) -> list[dict[str, Any]]:
    return [block.model_dump(exclude_none=True) for block in message.content]


async def test_thinking_text_and_calls_are_the_same_streamed_or_not(start: Start) -> None:
    """BR-004, BR-010."""
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, ANSWER)
        whole, streamed, events = await both(appliance, tools=TOOLS)
    for message in (whole, streamed):
        thinking, text, first, second = blocks(message)
        assert thinking["type"] == "thinking" and thinking["thinking"] == "The user greets. 🙂 I greet back."
        assert thinking["signature"]
        assert text == {"type": "text", "text": "I look."}
        assert (first["name"], first["input"]) == ("weather", {"city": "Zürich 🏔", "days": 3})
        assert (second["name"], second["input"]) == ("clock", {})
        assert first["id"] != second["id"]
        assert (message.stop_reason, message.model, message.role) == ("tool_use", MODEL, "assistant")
        assert message.usage.input_tokens > 0 and message.usage.output_tokens > 0
    assert whole.usage == streamed.usage
    assert whole._request_id
    partial: dict[int, str] = {}
    for event in events:
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            partial[event.index] = partial.get(event.index, "") + event.delta.partial_json
    assert json.loads(partial[2]) == {"city": "Zürich 🏔", "days": 3}


async def test_how_the_engine_cuts_its_tokens_changes_nothing(start: Start) -> None:
    async with start() as appliance:
        for width in (1, 2, 7, 32):
            appliance.engine.script = speaking(appliance, ANSWER, width)
            _, streamed, events = await both(appliance, tools=TOOLS)
            assert [block["type"] for block in blocks(streamed)] == ["thinking", "text", "tool_use", "tool_use"]
            assert blocks(streamed)[2]["input"] == {"city": "Zürich 🏔", "days": 3}
            begun = [event.index for event in events if event.type == "content_block_start"]
            ended = [event.index for event in events if event.type == "content_block_stop"]
            assert begun == ended == [0, 1, 2, 3]


async def test_why_an_answer_ended(start: Start) -> None:
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, "One two three four")
        for message in (await both(appliance))[:2]:
            assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        for message in (await both(appliance, stop_sequences=["three", "nine"]))[:2]:
            assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "three")
            assert blocks(message) == [{"type": "text", "text": "One two "}]
        appliance.engine.script = speaking(
            appliance, f"I look.\n{ZURICH[: ZURICH.index('days')]}", reason=FinishReason.LENGTH
        )
        for message in (await both(appliance, tools=TOOLS))[:2]:
            assert message.stop_reason == "max_tokens"
            assert [block["type"] for block in blocks(message)] == ["text", "tool_use"]


async def test_a_conversation_with_results_of_tools_goes_on(start: Start) -> None:
    """BR-101: past thinking comes back to the model."""
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, ANSWER)
        whole, _, _ = await both(appliance, tools=TOOLS)
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"result of {block.name}"}
            for block in whole.content
            if block.type == "tool_use"
        ]
        appliance.engine.script = speaking(appliance, "It is sunny.")
        turns: Any = [
            *USER,
            whole.to_param(),
            {"role": "user", "content": [*results, {"type": "text", "text": "And?"}]},
        ]
        second, _, _ = await both(appliance, tools=TOOLS, messages=turns, system="Be brief.")
        assert blocks(second) == [{"type": "text", "text": "It is sunny."}]
        read = text_of_prompt(appliance)
    for part in ("Be brief.", "I greet back.", "I look.", '"Zürich 🏔"', "result of weather", "result of clock", "And?"):
        assert part in read


async def test_a_call_is_forced_by_name_or_by_any(start: Start) -> None:
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, NOW)
        for choice in ({"type": "any"}, {"type": "tool", "name": "clock"}):
            whole, _, _ = await both(appliance, tools=TOOLS, tool_choice=choice)
            assert whole.stop_reason == "tool_use"
            grammar = appliance.engine.requests[-1].grammar
            assert grammar is not None and grammar.kind in GrammarKind
        await both(appliance, tools=TOOLS, tool_choice={"type": "none"})
        assert appliance.engine.requests[-1].grammar is None
        assert "weather" not in text_of_prompt(appliance)


async def test_how_long_it_may_think(start: Start) -> None:
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, "Hello.")
        await both(appliance, max_tokens=3000, thinking={"type": "enabled", "budget_tokens": 2048})
        reasoning = appliance.engine.requests[-1].reasoning
        assert reasoning is not None and reasoning.max_tokens == 2048
        await both(appliance, thinking={"type": "disabled"})
        assert "<think>\n\n</think>" in text_of_prompt(appliance)


async def test_tokens_are_counted_as_the_engine_will_read_them(start: Start) -> None:
    async with start() as appliance, client(appliance) as claude:
        asked: Any = {"model": MODEL, "messages": USER, "tools": TOOLS, "system": "Be brief."}
        counted = await claude.messages.count_tokens(**asked)
        await claude.messages.create(max_tokens=5, **asked)
        assert counted.input_tokens == len(appliance.engine.requests[-1].tokens)
        long = await claude.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": "word " * 9000}])
        assert long.input_tokens > 8192  # more than the window: a client asks to know exactly that


async def test_errors_have_anthropics_envelope(start: Start) -> None:
    async with start() as appliance, client(appliance) as claude:
        long: Any = [{"role": "user", "content": "word " * 9000}]
        with pytest.raises(anthropic.BadRequestError) as too_long:
            await claude.messages.create(model=MODEL, max_tokens=5, messages=long)
        body: Any = too_long.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        assert (body["error"]["code"], "8192" in body["error"]["message"]) == ("context_length_exceeded", True)
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await claude.messages.create(model="claude-9", max_tokens=5, messages=USER)
        assert MODEL in str(unknown.value)
        refused = await appliance.http.get("/v1/messages")
        assert (refused.status_code, refused.json()["type"]) == (405, "error")
        appliance.engine.die()
        await appliance.until(lambda: appliance.service.engine.status.state != "ready")
        with pytest.raises(anthropic.APIStatusError) as away:
            await claude.messages.create(model=MODEL, max_tokens=5, messages=USER)
        assert (away.value.status_code, away.value.body["error"]["type"]) == (503, "overloaded_error")  # type: ignore[index]
        assert away.value.response.headers["retry-after"]


async def test_an_engine_that_dies_ends_the_stream_with_an_error(start: Start) -> None:
    async def dies(job: Any) -> None:
        job.start()
        job.tokens(*appliance.engine.answer[:2])
        appliance.engine.die()

    async with start() as appliance, client(appliance) as claude:
        appliance.engine.script = dies
        stream = await claude.messages.create(model=MODEL, max_tokens=5, messages=USER, stream=True)
        with pytest.raises(anthropic.APIStatusError) as broken:
            _ = [event async for event in stream]
        assert "starts again by itself" in str(broken.value)


async def test_a_key_is_shown_as_anthropic_clients_show_it(start: Start, tmp_path: Any) -> None:
    (tmp_path / "keys").write_text("anna:right-key\n")
    async with start(make_live(KeySource(file=str(tmp_path / "keys")))) as appliance:
        async with client(appliance, "wrong") as stranger:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await stranger.messages.create(model=MODEL, max_tokens=5, messages=USER)
            assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
        async with client(appliance, "right-key") as anna:
            assert (await anna.messages.create(model=MODEL, max_tokens=5, messages=USER)).role == "assistant"
