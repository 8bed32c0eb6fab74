"""Calls of tools by the real model, through every process."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

if TYPE_CHECKING:
    from wire_appliance import Appliance

pytestmark = [pytest.mark.wire, pytest.mark.timeout(240)]

TREE: Any = {
    "type": "object",
    "properties": {
        "name": {"enum": ["oak", "fir"]},
        "beside": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/name"}]},
    },
    "required": ["name", "beside"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "days"],
}
CLOCK: Any = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(name: str, parameters: Any) -> Any:
    function = {"name": name, "description": f"What {name} does", "parameters": parameters, "strict": True}
    return {"type": "function", "function": function}


TOOLS = [tool("weather", WEATHER), tool("plant", TREE), tool("clock", CLOCK)]


async def forced(url: str, choice: Any) -> tuple[Any, list[Any], Any]:
    """The whole answer, its calls as a client reads them from the stream, and the answer to their results."""
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Bern?"}]
    asked: Any = {"model": "smollm2-135m", "temperature": 0, "max_tokens": 200, "tools": TOOLS, "tool_choice": choice}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        whole = (await client.chat.completions.create(messages=messages, **asked)).choices[0]
        async with client.chat.completions.stream(messages=messages, **asked) as stream:
            streamed = (await stream.get_final_completion()).choices[0]
        messages.append(whole.message.model_dump(exclude_none=True))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in whole.message.tool_calls or ()
        ]
        asked = asked | {"tool_choice": "none", "max_tokens": 8}
        after = (await client.chat.completions.create(messages=messages, **asked)).choices[0]
    return whole, streamed.message.tool_calls or [], after


@pytest.mark.parametrize("name", [None, "weather", "plant", "clock"])
def test_a_forced_call_is_made_and_keeps_its_schema(appliance: Appliance, name: str | None) -> None:
    choice = "required" if name is None else {"type": "function", "function": {"name": name}}
    whole, streamed, after = asyncio.run(forced(appliance.url, choice))
    calls = whole.message.tool_calls
    assert whole.finish_reason == "tool_calls"
    assert not whole.message.content
    assert calls and all(call.function.name in (name or "weather plant clock") for call in calls)
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        (call.function.name, call.function.arguments) for call in streamed
    ]
    for call in calls:
        check(call.function.name, json.loads(call.function.arguments))
    assert after.message.content
    assert not after.message.tool_calls


def check(name: str, arguments: Any) -> None:
    match name:
        case "weather":
            assert isinstance(arguments["city"], str) and arguments["days"] in (1, 2, 3)
        case "plant":
            assert list(arguments) == ["name", "beside"]
            assert arguments["name"] in ("oak", "fir") and arguments["beside"] in ("oak", "fir", None)
        case "clock":
            assert arguments == {}


def test_a_schema_that_nothing_can_match_is_refused_before_anything_is_written(appliance: Appliance) -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"]}
    endless["$defs"] = {"n": {"$ref": "#/$defs/n"}}
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [tool("f", endless)], "tool_choice": "required"}
    response = httpx.post(f"{appliance.url}/v1/chat/completions", json=body, timeout=60)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_request")
    assert error["param"].startswith("tools")
