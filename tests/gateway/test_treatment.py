"""The table of fields says of every field what becomes of it, and it is so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gateway_appliance import Appliance, Start
from spoken import CLOCK, NOW, THINKING, TOOLS, speaking

from tandem.gateway.openai import ChatRequest, CompletionRequest
from tandem.gateway.treatment import FIELDS, Treatment

pytestmark = pytest.mark.anyio
CHAT, PLAIN = set(ChatRequest.__struct_fields__), set(CompletionRequest.__struct_fields__)


def of(treatment: Treatment) -> list[str]:
    return [name for name, field in FIELDS.items() if field.treatment is treatment]


def test_every_field_is_in_the_table_and_no_other() -> None:
    assert set(FIELDS) == CHAT | PLAIN


SOMETHING: Any = {"anything": [1, "x"]}
HARMLESS: dict[str, Any] = {"prediction": {"type": "content", "content": "x"}}
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}}
# Of each field a value that shows, and what else the request needs for it.
SHOWS: dict[str, dict[str, Any]] = {
    "model": {"model": "default"},
    "messages": {"messages": [{"role": "user", "content": "other"}]},
    "prompt": {"prompt": "other"},
    "stream": {"stream": True},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "n": {"n": 2},
    "max_tokens": {"max_tokens": 3},
    "max_completion_tokens": {"max_completion_tokens": 3},
    "stop": {"stop": "Hello"},
    "seed": {"seed": 5},
    "temperature": {"temperature": 0.1},
    "top_p": {"top_p": 0.1},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "presence_penalty": {"presence_penalty": 0.1},
    "frequency_penalty": {"frequency_penalty": 0.1},
    "logit_bias": {"logit_bias": {"5": 1}},
    "logprobs": {"logprobs": True},
    "top_logprobs": {"logprobs": True, "top_logprobs": 3},
    "response_format": {"response_format": {"type": "json_object"}},
    "structured_outputs": {"structured_outputs": {"regex": "a+"}},
    "guided_json": {"guided_json": SCHEMA},
    "guided_regex": {"guided_regex": "a+"},
    "guided_choice": {"guided_choice": ["a", "b"]},
    "guided_grammar": {"guided_grammar": "start: /a+/"},
    "json_schema": {"json_schema": SCHEMA},
    "grammar": {"grammar": "start: /a+/"},
    "end_loops": {"end_loops": True},
    "cache_prompt": {"cache_prompt": False},
    "prompt_cache_retention": {"prompt_cache_retention": "24h"},
    "tools": {"tools": TOOLS},
    "tool_choice": {"tools": [CLOCK], "tool_choice": "required"},
    "parallel_tool_calls": {"tools": TOOLS, "parallel_tool_calls": False},
    "max_reasoning_tokens": {"max_reasoning_tokens": 5},
    "reasoning_effort": {"reasoning_effort": "none"},
    "reasoning_format": {"reasoning_format": "none"},
    "include_reasoning": {"include_reasoning": False},
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
}
MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}


def routes_of(name: str) -> list[str]:
    known = {"/v1/chat/completions": CHAT, "/v1/completions": PLAIN}
    return [route for route, fields in known.items() if name in fields]


async def seen(appliance: Appliance, route: str, **fields: Any) -> tuple[Any, ...]:
    """Everything that a field may show in: what the engine is asked and what the client is told."""
    appliance.engine.requests.clear()
    response = await appliance.http.post(route, json=MINIMAL[route] | fields)
    assert response.status_code == 200, response.text
    assert "x-tandem-ignored" not in response.headers
    asked = [msgspec.structs.replace(request, id="") for request in appliance.engine.requests]
    if fields.get("stream"):
        return asked, response.headers["content-type"], '"usage"' in response.text
    choices = [
        {name: part for name, part in choice.items() if name in ("text", "message", "finish_reason", "logprobs")}
        for choice in response.json()["choices"]
    ]
    for choice in choices:
        for call in choice.get("message", {}).get("tool_calls", ()):
            del call["id"]
    return asked, choices


async def test_honoured_fields_show_and_accepted_ones_do_not(start_thinker: Start) -> None:
    assert set(SHOWS) == set(of(Treatment.HONOURED))
    async with start_thinker() as appliance:
        appliance.engine.script = speaking(appliance, f"{THINKING}Hello.\n{NOW}\n{NOW}", 50)
        for route in MINIMAL:
            plain = await seen(appliance, route, seed=1)
            without_tools = await seen(appliance, route, seed=1, stream=True)
            for name in of(Treatment.HONOURED):
                if route not in routes_of(name):
                    continue
                wish = SHOWS[name] if name != "logprobs" or route == "/v1/chat/completions" else {"logprobs": 2}
                needs = {other: value for other, value in wish.items() if other != name}
                before = await seen(appliance, route, **({"seed": 1} | needs)) if needs else plain
                if name == "model":  # another one would be refused
                    wish = {"model": "nobody"}
                    assert (await appliance.http.post(route, json=MINIMAL[route] | wish)).status_code == 404
                    continue
                assert await seen(appliance, route, **({"seed": 1} | wish)) != before, name
            assert without_tools[0] == plain[0]
            for name in of(Treatment.ACCEPTED):
                if route in routes_of(name):
                    value = HARMLESS.get(name, SOMETHING)
                    assert await seen(appliance, route, seed=1, **{name: value}) == plain, name


async def test_refused_fields_are_named_unless_they_ask_for_nothing(start: Start) -> None:
    async with start() as appliance:
        for name in of(Treatment.REFUSED):
            for route in routes_of(name):
                refused = await appliance.http.post(route, json=MINIMAL[route] | {name: SOMETHING})
                error = refused.json()["error"]
                assert (refused.status_code, error["code"], error["param"]) == (400, "unsupported_value", name)
                for value in FIELDS[name].harmless:
                    assert (await appliance.http.post(route, json=MINIMAL[route] | {name: value})).status_code == 200
