"""Other APIs' requests become the same chat, and what is wrong is named where the client wrote it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tandem.gateway import anthropic_request, ollama_request, responses_request
from tandem.gateway.anthropic_request import MessagesRequest
from tandem.gateway.errors import ApiError
from tandem.gateway.foreign import Places, as_placed
from tandem.gateway.ollama_request import OllamaChatRequest, OllamaGenerateRequest
from tandem.gateway.openai import ChatRequest, CompletionRequest, Generation
from tandem.gateway.reading import read
from tandem.gateway.responses_request import ResponsesRequest

SCHEMA = {"type": "object", "properties": {"city": {"$ref": "#/$defs/c"}}, "$defs": {"c": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "of a city", "parameters": SCHEMA}


def messages(**fields: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return anthropic_request.to_chat(read(MessagesRequest, json.dumps(body).encode())[0])


def responses(input: Any = "hi", **fields: Any) -> ChatRequest:
    return responses_request.to_chat(read(ResponsesRequest, json.dumps({"input": input, **fields}).encode())[0])


def ollama_chat(**fields: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return ollama_request.chat_of(read(OllamaChatRequest, json.dumps(body).encode())[0])


def ollama_generate(**fields: Any) -> Generation:
    return ollama_request.generate_of(read(OllamaGenerateRequest, json.dumps({"prompt": "hi", **fields}).encode())[0])


def said(chat: Generation) -> list[Any]:
    """The messages, without what is left out."""
    assert isinstance(chat, ChatRequest)
    plain = msgspec.to_builtins(chat.messages)
    return [_without(each) for each in plain]


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(each) for name, each in value.items() if each not in (None, [], "")}
    return [_without(each) for each in value] if isinstance(value, list) else value


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": each} for each in texts]


def test_a_turn_of_anthropics_becomes_openais() -> None:
    chat = messages(
        model="m",
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I ask.", "signature": "x"},
                    {"type": "redacted_thinking", "data": "zzz"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Zürich"}},
                    {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "sun"},
                    {"type": "tool_result", "tool_use_id": "t2", "content": text("rain"), "is_error": False},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    )
    calls = [
        {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Zürich"}'}},
        {"id": "t2", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
    ]
    assert said(chat) == [
        {"role": "system", "content": text("Be brief.")},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": text("I look."), "reasoning_content": "I ask.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "t1", "content": text("sun")},
        {"role": "tool", "tool_call_id": "t2", "content": text("rain")},
        {"role": "user", "content": text("And?")},
    ]


def test_anthropics_words_for_how_to_answer() -> None:
    chat = messages(
        max_tokens=5, temperature=0.5, top_p=0.9, top_k=3, stream=True, stop_sequences=["a", "b"],
        tools=[{"name": "weather", "input_schema": SCHEMA}, {"type": "web_search_20250305", "name": "web_search"}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 2048},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )  # fmt: skip
    assert (chat.max_tokens, chat.temperature, chat.top_p, chat.top_k, chat.stream) == (5, 0.5, 0.9, 3, True)
    assert chat.stops == ("a", "b")
    assert [(tool.name, tool.parameters) for tool in chat.offer.tools] == [("weather", SCHEMA)]
    assert (chat.offer.must_call, chat.offer.at_most_one) == (True, True)
    assert chat.not_read == ("tools[1]",)
    assert chat.thinking_limit == 2048
    assert chat.response_format is not None and chat.response_format.json_schema is not None
    assert chat.response_format.json_schema.schema == SCHEMA
    assert messages(thinking={"type": "disabled"}).thinking_limit == 0
    assert messages(thinking={"type": "adaptive"}).thinking_limit is None
    assert messages(output_config={"effort": "low"}).thinking_limit == 1024
    assert messages(output_config={"effort": "max"}).thinking_limit is None
    named = messages(tools=[{"name": "a", "input_schema": {}}], tool_choice={"type": "tool", "name": "a"})
    assert named.offer.must_call and [tool.name for tool in named.offer.tools] == ["a"]
    assert messages(tools=[{"name": "a"}], tool_choice={"type": "none"}).offer.tools == ()


@pytest.mark.parametrize("form", ["string", "blocks"])
def test_the_line_that_differs_in_every_request_is_left_out_of_the_system_prompt(form: str) -> None:
    """BR-058."""
    line = "x-anthropic-billing-header: cc_version=2.1; cch={};"
    plain = [messages(system=f"{line.format(checksum)}\nYou are Claude.") for checksum in ("aaaaa", "bbbbb")]
    blocks = [messages(system=text(line.format(checksum), "You are Claude.")) for checksum in ("aaaaa", "bbbbb")]
    first, second = plain if form == "string" else blocks
    assert said(first) == said(second)
    assert said(first)[0] == {"role": "system", "content": text("You are Claude.")}
    assert said(messages(system="x-anthropic-billing-header: only"))[0]["role"] == "user"
    assert "billing" in said(messages(system="About x-anthropic-billing-header: nothing"))[0]["content"][0]["text"]


def test_items_become_messages() -> None:
    chat = responses(
        [
            {"role": "developer", "content": "Rules."},
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "I ask."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Z'},
            {"type": "function_call", "id": "fc", "call_id": "c2", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sun"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Done."}]},
            {"role": "assistant", "content": "Sun and rain."},
            {"role": "user", "content": "Thanks"},
        ],
        instructions="Be brief.",
    )
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Z'}},
        {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
    ]
    assert said(chat) == [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": text("Rules.")},
        {"role": "user", "content": text("Weather?")},
        {"role": "assistant", "content": text("I look."), "reasoning_content": "I ask.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": text("sun")},
        {"role": "tool", "tool_call_id": "c2", "content": text("rain")},
        {"role": "assistant", "content": text("Sun and rain."), "reasoning_content": "Done."},
        {"role": "user", "content": text("Thanks")},
    ]


def test_what_stands_before_its_own_turn_begins_another() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    chat = responses([call, {"role": "assistant", "content": "a"}, {"type": "reasoning", "summary": text("t")}, call])
    assert [set(message) - {"role"} for message in said(chat)] == [
        {"tool_calls"},
        {"content"},
        {"reasoning_content", "tool_calls"},
    ]


def test_responses_words_for_how_to_answer() -> None:
    """BR-011: tools that a vendor hosts are left out, and the function ones stay."""
    hosted = [{"type": kind} for kind in ("web_search", "image_generation", "mcp", "namespace", "custom")]
    chat = responses(
        max_output_tokens=7, temperature=0.1, top_p=0.2, parallel_tool_calls=False, stream=True, store=True,
        tools=[*hosted, {"type": "function", **FUNCTION}], tool_choice="required",
        reasoning={"effort": "low", "summary": "auto"}, truncation="auto", include=["reasoning.encrypted_content"],
        text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}, "verbosity": "low"},
    )  # fmt: skip
    assert (chat.answer_limit, chat.temperature, chat.top_p, chat.stream) == (7, 0.1, 0.2, True)
    assert [tool.name for tool in chat.offer.tools] == ["weather"]
    assert chat.offer.tools[0].parameters == SCHEMA
    assert (chat.offer.must_call, chat.offer.at_most_one) == (True, True)
    assert chat.not_read == tuple(f"tools[{n}]" for n in range(5))
    assert chat.thinking_limit == 1024
    assert chat.response_format is not None and chat.response_format.json_schema is not None
    assert chat.response_format.json_schema.schema == SCHEMA
    tools = [{"type": "function", "name": name} for name in "ab"]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "b"}]}
    some = responses(tools=tools, tool_choice=allowed)
    assert ([tool.name for tool in some.offer.tools], some.offer.must_call) == (["b"], True)
    assert responses(text={"format": {"type": "json_object"}}).response_format is not None


def test_ollamas_words() -> None:
    options = {
        "num_predict": 9, "temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "repeat_penalty": 1.2,
        "presence_penalty": 0.3, "frequency_penalty": 0.4, "seed": 5, "stop": ["x"], "num_ctx": 99_999, "mirostat": 1,
    }  # fmt: skip
    chat = ollama_chat(model="m:latest", options=options, keep_alive="5m", format=SCHEMA, think=False)
    assert (chat.model, chat.stream, chat.answer_limit, chat.stops, chat.seed) == ("m", True, 9, ("x",), 5)
    assert (chat.temperature, chat.top_p, chat.top_k, chat.min_p) == (0, 0.5, 7, 0.1)
    assert (chat.repetition_penalty, chat.presence_penalty, chat.frequency_penalty) == (1.2, 0.3, 0.4)
    assert chat.thinking_limit == 0
    assert chat.response_format is not None and chat.response_format.json_schema is not None
    assert ollama_request.unread_options(OllamaChatRequest(options=options)) == ("options.num_ctx", "options.mirostat")
    for unlimited in (0, -1, -2):
        assert ollama_chat(options={"num_predict": unlimited}).max_tokens == -1
    assert ollama_chat(think="low").thinking_limit == 1024
    assert ollama_chat(think=True).thinking_limit is ollama_chat().thinking_limit is None
    assert ollama_chat(stream=False, format="").stream is False
    assert ollama_chat(format="json").response_format is not None


def test_ollamas_messages() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Z"}}}
    chat = ollama_chat(
        tools=[{"type": "function", "function": FUNCTION}],
        messages=[
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "thinking": "I ask.", "tool_calls": [call]},
            {"role": "tool", "tool_name": "weather", "content": "sun"},
        ],
    )
    assert [tool.parameters for tool in chat.offer.tools] == [SCHEMA]
    assert said(chat) == [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "reasoning_content": "I ask.", "tool_calls": [{"type": "function", **call}]},
        {"role": "tool", "name": "weather", "content": "sun"},
    ]


def test_ollama_generates_from_a_chat_or_from_the_bare_prompt() -> None:
    assert said(ollama_generate(system="s")) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hi"},
    ]
    raw = ollama_generate(raw=True, options={"num_predict": 3})
    assert isinstance(raw, CompletionRequest)
    assert (raw.prompt, raw.max_tokens) == ("hi", 3)


IMAGE = {"type": "image", "source": {"type": "base64", "data": ""}}
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (messages, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
    (messages, {"messages": [{"role": "user", "content": [{"type": "<b>"}]}]}, "messages[0].content[0].type"),
    (messages, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (messages, {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]},
     "messages[0].content[0].name"),
    (messages, {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": ""}]}]},
     "messages[0].content[0].tool_use_id"),
    (messages, {"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]}]},
     "messages[0].content[0].content[0]"),
    (messages, {"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
    (messages, {"system": [IMAGE]}, "system[0]"),
    (messages, {"temperature": 9}, "temperature"),
    (messages, {"stop_sequences": [""]}, "stop_sequences[0]"),
    (messages, {"tools": [{"description": "no name"}]}, "tools[0].name"),
    (messages, {"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    (messages, {"output_config": {"effort": "huge"}}, "output_config.effort"),
    (messages, {"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
    (responses, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (responses, {"conversation": "conv_1"}, "conversation"),
    (responses, {"background": True}, "background"),
    (responses, {"top_logprobs": 3}, "top_logprobs"),
    (responses, {"temperature": -1}, "temperature"),
    (responses, {"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    (responses, {"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
    (responses, {"input": [{"type": "web_search_call"}]}, "input[0].type"),
    (responses, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    (responses, {"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
    (responses, {"input": [{"type": "message", "content": "x"}]}, "input[0].role"),
    (responses, {"tools": [{"type": "mcp"}], "tool_choice": {"type": "mcp"}}, "tool_choice"),
    (ollama_chat, {"options": {"temperature": 9}}, "options.temperature"),
    (ollama_chat, {"options": {"seed": "x"}}, "options.seed"),
    (ollama_chat, {"format": "xml"}, "format"),
    (ollama_chat, {"think": "very"}, "think"),
    (ollama_chat, {"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images"),
    (ollama_chat, {"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
    (ollama_generate, {"suffix": "x"}, "suffix"),
    (ollama_generate, {"context": [1, 2]}, "context"),
    (ollama_generate, {"template": "{{ .Prompt }}"}, "template"),
]  # fmt: skip


@pytest.mark.parametrize(("door", "fields", "param"), WRONG)
def test_what_is_wrong_is_named_where_the_client_wrote_it(door: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        door(**fields)
    assert (caught.value.status, caught.value.detail.param) == (400, param)
    assert f"`{param}" in caught.value.sentence
    assert "<b>" not in caught.value.sentence


def test_a_tool_choice_that_names_a_tool_that_was_left_out_is_refused() -> None:
    chat = messages(tools=[{"type": "web_search_20250305", "name": "web_search"}], tool_choice={"type": "any"})
    with pytest.raises(ApiError) as caught:
        chat.check()
    assert caught.value.detail.param == "tool_choice"


def test_the_sentence_about_earlier_answers_says_what_to_do() -> None:
    with pytest.raises(ApiError) as caught:
        responses(previous_response_id="resp_1")
    assert "send the whole conversation as `input`" in caught.value.sentence


LATER: list[tuple[Places, str, str]] = [
    (anthropic_request.PLACES, "response_format.json_schema.schema.items", "output_config.format.schema.items"),
    (anthropic_request.PLACES, "tools[2].function.parameters.properties", "tools[2].input_schema.properties"),
    (anthropic_request.PLACES, "messages[3].content", "messages"),
    (responses_request.PLACES, "response_format.json_schema.schema", "text.format.schema"),
    (responses_request.PLACES, "tools[2].function.parameters", "tools[2].parameters"),
    (responses_request.PLACES, "max_completion_tokens", "max_output_tokens"),
    (responses_request.PLACES, "messages[3].content", "input"),
    (ollama_request.PLACES, "response_format.json_schema.schema.items", "format.items"),
    (ollama_request.PLACES, "response_format", "format"),
    (ollama_request.PLACES, "stop", "options.stop"),
]


@pytest.mark.parametrize(("places", "inner", "own"), LATER)
def test_what_is_found_wrong_later_is_named_there_too(places: Places, inner: str, own: str) -> None:
    placed = as_placed(ApiError(503, "code", f"`{inner}`: no", param=inner, retry_after=2, source="engine"), places)
    assert (placed.detail.param, placed.sentence) == (own, f"`{own}`: no")
    assert (placed.status, placed.code, placed.retry_after, placed.detail.source) == (503, "code", 2, "engine")
