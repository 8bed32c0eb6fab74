"""What goes wrong with streamed calls of tools elsewhere (BR-001 to BR-013), through the real gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gateway_appliance import Start
from spoken import (
    CLOCK,
    NOW,
    ROUTE,
    THINKING,
    TOOLS,
    WAY,
    ZURICH,
    Told,
    put_together,
    speaking,
    speaking_tokens,
    streamed,
    text_of_prompt,
    told_at_once,
)

from tandem.contract.messages import FinishReason, GrammarKind

pytestmark = pytest.mark.anyio
ANSWER = f"{THINKING}I look.\n{ZURICH}\n{NOW}\n{WAY}"


@pytest.fixture
def start(start_thinker: Start) -> Start:
    return start_thinker


def tool_deltas(chunks: list[Any]) -> list[Any]:
    return [each for chunk in chunks for choice in chunk["choices"] for each in choice["delta"].get("tool_calls", ())]


async def test_a_call_begins_with_its_name_and_no_arguments(start: Start) -> None:
    """BR-001, BR-005, BR-013."""
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, ANSWER)
        deltas = tool_deltas(await streamed(appliance, tools=TOOLS))
    first = [delta for delta in deltas if "id" in delta]
    later = [delta for delta in deltas if "id" not in delta]
    assert [(d["index"], d["type"], d["function"]["name"], d["function"]["arguments"]) for d in first] == [
        (0, "function", "weather", ""),
        (1, "function", "clock", ""),
        (2, "function", "route", ""),
    ]
    assert all(set(delta["function"]) == {"arguments"} and delta["function"]["arguments"] for delta in later)
    assert len({delta["id"] for delta in first}) == 3


async def test_calls_are_told_apart_by_their_index_and_by_the_last_id(start: Start) -> None:
    """BR-002."""
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, ANSWER)
        chunks = await streamed(appliance, tools=TOOLS)
    by_index = {each["id"]: each["arguments"] for each in put_together(chunks).calls.values()}
    by_id: dict[str, str] = {}
    last = ""
    for delta in tool_deltas(chunks):
        last = delta.get("id", last)
        by_id[last] = by_id.get(last, "") + delta["function"].get("arguments", "")
    assert by_index == by_id
    assert [json.loads(arguments) for arguments in by_id.values()] == [
        {"city": "Zürich 🏔", "days": 3},
        {},
        {"from": {"zip": 8000}, "to": {"zip": 3000}},
    ]


async def test_thinking_then_text_then_calls_streamed_or_not(start: Start) -> None:
    """BR-010, BR-020: nothing of one is told as another, up to the last token."""
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, ANSWER)
        chunks = await streamed(appliance, tools=TOOLS, stop=["</tool_call> and no more of it at all"])
        whole = told_at_once(await appliance.chat(tools=TOOLS))
    told = put_together(chunks)
    for each in (told, whole):
        assert each.thinking == "The user greets. 🙂 I greet back."
        assert each.text == "I look."
        assert each.names == ["weather", "clock", "route"]
        assert each.finish == "tool_calls"
    kinds = [
        kind
        for chunk in chunks
        for kind in ("reasoning_content", "content", "tool_calls")
        if chunk["choices"] and chunk["choices"][0]["delta"].get(kind)
    ]
    assert kinds == sorted(kinds, key=["reasoning_content", "content", "tool_calls"].index)


async def test_a_call_that_a_limit_cuts_keeps_what_it_has_and_says_so(start: Start) -> None:
    """BR-007."""
    written = ZURICH[: ZURICH.index("days")]
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, written, reason=FinishReason.LENGTH)
        response = await appliance.chat(tools=TOOLS)
        cut = put_together(await streamed(appliance, tools=TOOLS))
    for told in (told_at_once(response), cut):
        assert told.finish == "length"
        assert told.names == ["weather"]
        assert told.calls[0]["arguments"] == '{"city": "Zürich 🏔", "'


@pytest.mark.parametrize("arguments", ["{", "", "[1]", "nonsense", '{"a": 1}', {"a": 1}, None])
async def test_arguments_in_the_history_are_taken_as_they_are(start: Start, arguments: Any) -> None:
    """BR-008, and results whose id is null."""
    past = {"type": "function", "function": {"name": "clock", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "what time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": None, **past}]},
        {"role": "tool", "tool_call_id": None, "content": [{"type": "text", "text": "noon"}]},
    ]
    async with start() as appliance:
        response = await appliance.http.post("/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
        assert response.status_code == 200, response.text
        prompt = text_of_prompt(appliance)
    shown = json.dumps(arguments) if isinstance(arguments, dict) else arguments or "{}"
    assert f'{{"name": "clock", "arguments": {shown}}}' in prompt
    assert "noon" in prompt


HOSTED = [{"type": kind} for kind in ("web_search", "image_generation", "mcp", "namespace", "custom")]


async def test_tools_that_a_vendor_hosts_are_left_out_and_named(start: Start) -> None:
    """BR-011."""
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, NOW)
        response = await appliance.chat(tools=[*HOSTED, CLOCK])
        assert response.headers["x-tandem-ignored"] == "tools[0], tools[1], tools[2], tools[3], tools[4]"
        assert told_at_once(response).names == ["clock"]
        named = await appliance.chat(tools=[*HOSTED, CLOCK], tool_choice={"function": {"name": "web_search"}})
        assert (named.status_code, named.json()["error"]["param"]) == (400, "tool_choice")


async def test_shared_definitions_reach_the_model_and_the_grammar(start: Start) -> None:
    """BR-013."""
    async with start() as appliance:
        await appliance.chat(tools=[ROUTE], tool_choice="required")
        (request,) = appliance.engine.requests
        prompt = text_of_prompt(appliance)
    assert '"$defs": {"place": {"type": "object", "properties": {"zip": {"type": "integer"}}}}' in prompt
    assert request.grammar is not None and request.grammar.kind is GrammarKind.JSON_SCHEMA
    assert '"zip": {"type": "integer"}' in request.grammar.text


async def test_whether_a_call_is_made_is_the_clients_choice(start: Start) -> None:
    async with start() as appliance:
        text = f"Both.\n{NOW}\n{ZURICH}"
        appliance.engine.script = speaking(appliance, text)
        assert told_at_once(await appliance.chat(tools=TOOLS, tool_choice="none")) == Told(text=text, finish="stop")
        assert "weather" not in text_of_prompt(appliance)
        assert told_at_once(await appliance.chat(tools=TOOLS)).names == ["clock", "weather"]
        one = told_at_once(await appliance.chat(tools=TOOLS, parallel_tool_calls=False))
        assert (one.names, one.finish) == (["clock"], "tool_calls")
        assert [request.grammar for request in appliance.engine.requests] == [None] * 3
        appliance.engine.script = speaking(appliance, '{"name": "weather", "arguments": {"city": "Bern"}}')
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            forced = told_at_once(await appliance.chat(tools=TOOLS, tool_choice=choice))
            assert (forced.names, forced.arguments, forced.text) == (["weather"], [{"city": "Bern"}], "")
            grammar = appliance.engine.requests[-1].grammar
            assert grammar is not None and ("clock" in grammar.text) == (choice == "required")
        both = await appliance.chat(tools=TOOLS, tool_choice="required", response_format={"type": "json_object"})
        assert (both.status_code, both.json()["error"]["param"]) == (400, "tool_choice")


async def test_what_is_no_call_is_text(start: Start) -> None:
    for text in (
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        "A <tool_call> is how tools are called.",
        '{"name": "clock"',
    ):
        async with start() as appliance:
            appliance.engine.script = speaking(appliance, text)
            told = told_at_once(await appliance.chat(tools=TOOLS))
        assert (told.calls, told.finish) == ({}, "stop")
        assert told.text.replace("\n", "") == text.replace("\n", "")


async def test_answers_to_several_choices_keep_their_calls_apart(start: Start) -> None:
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, ANSWER, width=3)
        chunks = await streamed(appliance, tools=TOOLS, n=3)
    told = [put_together(chunks, index) for index in range(3)]
    assert [each.names for each in told] == [["weather", "clock", "route"]] * 3
    assert len({each["id"] for one in told for each in one.calls.values()}) == 9


CASES = {
    "text": "Plain text, with a < and {braces}. 🙂",
    "thinking": THINKING + "Hello 🙂 there.",
    "one call": "Let me see.\n" + ZURICH,
    "all": ANSWER,
    "broken": THINKING + '<tool_call>\n{"name": "weather", "arguments": {"city": "Z',
}


@pytest.mark.parametrize("case", CASES)
async def test_how_the_tokens_are_cut_changes_nothing(start: Start, case: str) -> None:
    """Every byte a token of its own, and 1, 2, 7 and 32 tokens at a time: the same parts."""
    async with start() as appliance:
        tokenizer = appliance.service.prompts.tokenizer
        singles = {tokenizer.bytes_of[token]: token for token in range(tokenizer.num_tokens)}
        by_bytes = [[singles[bytes([byte])]] for byte in CASES[case].encode()]
        scripts = [speaking_tokens(by_bytes)]
        scripts += [speaking(appliance, CASES[case], width) for width in (1, 2, 7, 32)]
        answers = []
        for script in scripts:
            appliance.engine.script = script
            told = put_together(await streamed(appliance, tools=TOOLS))
            whole = told_at_once(await appliance.chat(tools=TOOLS))
            answers += [without_ids(told), without_ids(whole)]
    assert all(answer == answers[0] for answer in answers), answers


def without_ids(told: Told) -> Told:
    for each in told.calls.values():
        assert each.pop("id")
    return told


async def test_openais_client_reads_calls(start: Start) -> None:
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, f"I look.\n{ZURICH}\n{NOW}")
        messages: Any = [{"role": "user", "content": "hi"}]
        async with appliance.openai.chat.completions.stream(model="default", messages=messages, tools=TOOLS) as stream:
            final = await stream.get_final_completion()
        whole = await appliance.openai.chat.completions.create(model="default", messages=messages, tools=TOOLS)
        for message in (final.choices[0].message, whole.choices[0].message):
            assert message.content == "I look."
            assert [each.function.name for each in message.tool_calls or ()] == ["weather", "clock"]  # type: ignore[union-attr]
        back = [*messages, whole.choices[0].message, {"role": "tool", "tool_call_id": "x", "content": "sunny"}]
        assert (await appliance.openai.chat.completions.create(model="default", messages=back)).choices
