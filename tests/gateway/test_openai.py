from __future__ import annotations

import json
from typing import Any, TypeVar

import pytest

from tandem.contract.plan import SamplingDefaults
from tandem.gateway.conversation import text_of
from tandem.gateway.errors import ApiError
from tandem.gateway.job import make_sampling, refuse_too_many
from tandem.gateway.openai import ChatRequest, CompletionRequest, Generation
from tandem.gateway.reading import read

USER = {"role": "user", "content": "hi"}


Kind = TypeVar("Kind", bound=Generation)


def parse(kind: type[Kind], body: bytes) -> tuple[Kind, tuple[str, ...]]:
    """As an exchange does."""
    wanted, ignored = read(kind, body)
    wanted.check()
    return wanted, ignored


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [USER], **fields}).encode()


TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BAD = [
    (b"", "invalid_json", None),
    (b"{", "invalid_json", None),
    (b"\xff\xfe", "invalid_json", None),
    (b'{"messages":[{"role":"user","content":"\xff"}]}', "invalid_json", None),
    (b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "invalid_json", None),
    (b"[]", "invalid_value", None),
    (b"{}", "invalid_value", "messages"),
    (chat(messages=[]), "invalid_value", "messages"),
    (chat(messages="hi"), "invalid_value", "messages"),
    (chat(messages=[{"content": "hi"}]), "invalid_value", "messages[...].role"),
    (chat(messages=[{"role": "boss", "content": "hi"}]), "invalid_value", "messages[...].role"),
    (chat(messages=[{"role": "user", "content": 5}]), "invalid_value", "messages[...].content"),
    (chat(max_tokens=0), "invalid_value", "max_tokens"),
    (chat(max_tokens=-2), "invalid_value", "max_tokens"),
    (chat(max_completion_tokens=0), "invalid_value", "max_completion_tokens"),
    (chat(max_tokens="5"), "invalid_value", "max_tokens"),
    (chat(temperature=-0.1), "invalid_value", "temperature"),
    (chat(temperature="hot"), "invalid_value", "temperature"),
    (chat(top_p=1.5), "invalid_value", "top_p"),
    (chat(min_p=2), "invalid_value", "min_p"),
    (chat(n=0), "invalid_value", "n"),
    (chat(n=17), "invalid_value", "n"),
    (chat(stop=""), "invalid_value", "stop"),
    (chat(stop=["a", ""]), "invalid_value", "stop[...]"),
    (chat(stop=[1]), "invalid_value", "stop[...]"),
    (chat(stop=["x"] * 17), "invalid_value", "stop"),
    (chat(seed=1 << 70), "invalid_value", "seed"),
    (chat(stream="yes"), "invalid_value", "stream"),
    (chat(stream_options={"include_usage": 3}), "invalid_value", "stream_options.include_usage"),
    (chat(logit_bias={"5": 101}), "invalid_value", "logit_bias[...]"),
    (chat(logit_bias=[1]), "invalid_value", "logit_bias"),
    (chat(model=5), "invalid_value", "model"),
    (chat(tools=[{"type": "function"}]), "invalid_value", "tools[0].function"),
    (chat(tools=[{"type": "function", "function": {"name": ""}}]), "invalid_value", "tools[...].function.name"),
    (chat(tools=[TOOL, TOOL]), "invalid_value", "tools"),
    (chat(tool_choice="required"), "invalid_value", "tool_choice"),
    (chat(tool_choice="required", tools=[{"type": "mcp"}]), "invalid_value", "tool_choice"),
    (chat(tool_choice={"type": "function", "function": {"name": "g"}}, tools=[TOOL]), "invalid_value", "tool_choice"),
    (chat(tool_choice="any", tools=[TOOL]), "invalid_value", "tool_choice"),
    (
        chat(messages=[{"role": "assistant", "tool_calls": [{}]}]),
        "invalid_value",
        "messages[0].tool_calls[...].function",
    ),
    (chat(reasoning_format="xml"), "invalid_value", "reasoning_format"),
    (chat(chat_template_kwargs=[]), "invalid_value", "chat_template_kwargs"),
    (chat(chat_template_kwargs={"tools": []}), "invalid_value", "chat_template_kwargs.tools"),
    (chat(functions=[{}]), "unsupported_value", "functions"),
    (chat(response_format={"type": "json"}), "invalid_value", "response_format.type"),
    (chat(response_format={}), "invalid_value", "response_format.type"),
    (chat(response_format={"type": "json_schema", "json_schema": []}), "invalid_value", "response_format.json_schema"),
    (chat(guided_regex=""), "invalid_value", "guided_regex"),
    (chat(guided_choice=[]), "invalid_value", "guided_choice"),
    (chat(guided_choice=["a", ""]), "invalid_value", "guided_choice[...]"),
    (chat(structured_outputs={"whitespace_pattern": " "}), "invalid_value", "structured_outputs"),
    (chat(grammar=5), "invalid_value", "grammar"),
    (chat(logprobs=3), "invalid_value", "logprobs"),
    (chat(logprobs=True, top_logprobs=21), "invalid_value", "top_logprobs"),
    (chat(top_logprobs=3), "invalid_value", "top_logprobs"),
    (chat(logprobs=False, top_logprobs=3), "invalid_value", "top_logprobs"),
    (chat(max_reasoning_tokens=-1), "invalid_value", "max_reasoning_tokens"),
    (chat(reasoning_effort="maximum"), "invalid_value", "reasoning_effort"),
    (chat(end_loops="yes"), "invalid_value", "end_loops"),
    (chat(modalities=["text", "audio"]), "unsupported_value", "modalities"),
]


def like(param: str | None, pattern: str | None) -> bool:
    """`[...]` in a pattern is any index."""
    if param is None or pattern is None:
        return param == pattern
    head, _, tail = pattern.partition("[...]")
    return param.startswith(head) and param.endswith(tail)


@pytest.mark.parametrize(("body", "code", "param"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_body_is_a_400_that_names_the_field(body: bytes, code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        parse(ChatRequest, body)
    detail = caught.value.detail
    assert (caught.value.status, detail.code) == (400, code)
    assert like(detail.param, param), detail
    assert detail.param is None or detail.param in detail.message


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "logprobs": False},
        {"tools": None, "tool_choice": "none", "functions": None, "top_logprobs": 0, "modalities": ["text"]},
        {"max_tokens": None, "stop": None, "seed": None, "temperature": None, "stream": None, "stream_options": None},
        {"user": "u-1", "metadata": {"a": 1}, "store": False, "service_tier": "auto", "parallel_tool_calls": True},
        {"max_tokens": 10**30, "top_k": -1, "temperature": 2, "stop": "x", "seed": -5},
    ],
)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert parse(ChatRequest, chat(**fields))[1] == ()


def test_unknown_fields_are_told_by_name() -> None:
    assert parse(ChatRequest, chat(num_ctx=5, keep_alive="low"))[1] == ("num_ctx", "keep_alive")


@pytest.mark.parametrize(
    ("fields", "num_top", "limit"),
    [
        ({}, None, None),
        ({"logprobs": True}, 0, None),
        ({"logprobs": True, "top_logprobs": 20}, 20, None),
        ({"logprobs": False, "top_logprobs": 0}, None, None),
        ({"reasoning_effort": "none"}, None, 0),
        ({"reasoning_effort": "minimal"}, None, 256),
        ({"reasoning_effort": "low"}, None, 1024),
        ({"reasoning_effort": "medium"}, None, 4096),
        ({"reasoning_effort": "high"}, None, 16_384),
        ({"reasoning_effort": "xhigh"}, None, 65_536),
        ({"reasoning_effort": "high", "max_reasoning_tokens": 0}, None, 0),
        ({"max_reasoning_tokens": 77}, None, 77),
    ],
)
def test_scores_and_thinking_as_asked(fields: dict[str, Any], num_top: int | None, limit: int | None) -> None:
    wanted, ignored = parse(ChatRequest, chat(**fields))
    assert (wanted.num_top, wanted.thinking_limit, ignored) == (num_top, limit, ())


def test_plain_completions_count_their_scores_and_do_not_think() -> None:
    wanted, _ = parse(CompletionRequest, b'{"prompt":"x","logprobs":5}')
    assert (wanted.num_top, wanted.thinking_limit) == (5, None)
    for bad in (b"21", b"true", b"-1"):
        with pytest.raises(ApiError) as caught:
            parse(CompletionRequest, b'{"prompt":"x","logprobs":%b}' % bad)
        assert caught.value.detail.param == "logprobs"


def test_a_value_that_a_user_wrote_is_never_quoted() -> None:
    for body in (chat(messages=[{"role": "secret", "content": "x"}]), chat(tool_choice="secret")):
        with pytest.raises(ApiError) as caught:
            parse(ChatRequest, body)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [([], "prompt"), ([[]], "prompt[...]"), ([-1], "prompt[...]"), (None, "prompt"), ([True], "prompt[...]")],
)
def test_bad_prompts(prompt: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(CompletionRequest, json.dumps({"prompt": prompt}).encode())
    assert like(caught.value.detail.param, param)


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_every_role_takes_a_string_nothing_and_parts(role: str) -> None:
    contents: list[tuple[Any, str]] = [
        ("a", "a"),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
    ]
    for content, text in contents:
        request, _ = parse(ChatRequest, chat(messages=[{"role": role, "content": content}]))
        assert text_of(request.messages[0], 0, "m1") == text


def test_an_image_is_refused_by_its_place_and_names_the_model() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]
    request, _ = parse(ChatRequest, chat(messages=[USER, {"role": "user", "content": content}]))
    with pytest.raises(ApiError) as caught:
        text_of(request.messages[1], 1, "m1")
    assert caught.value.detail.param == "messages[1].content[1]"
    assert str(caught.value) == "`messages[1].content[1]`: m1 does not see images; send text"


def test_a_part_without_its_text_lacks_the_text() -> None:
    request, _ = parse(ChatRequest, chat(messages=[{"role": "user", "content": [{"type": "text"}]}]))
    with pytest.raises(ApiError) as caught:
        text_of(request.messages[0], 0, "m1")
    assert (caught.value.detail.code, caught.value.detail.param) == ("invalid_value", "messages[0].content[0].text")
    assert str(caught.value) == "`messages[0].content[0].text`: this field is required"


def test_a_role_that_is_none_hears_which_there_are() -> None:
    with pytest.raises(ApiError) as caught:
        parse(ChatRequest, chat(messages=[{"role": "boss", "content": "hi"}]))
    assert "`assistant`, `developer`, `function`, `system`, `tool`, `user`" in str(caught.value)


@pytest.mark.parametrize(
    ("prompts", "copies", "max_queue", "param"),
    [(1, 16, 12, None), (1, 17, 90, "n"), (17, 1, 90, "prompt"), (1, 9, 4, "n"), (9, 1, 4, "prompt"), (8, 1, 4, None)],
)
def test_more_choices_than_can_ever_be_here_are_refused(
    prompts: int, copies: int, max_queue: int, param: str | None
) -> None:
    """Told to come back later, such a request would come back for ever."""
    if param is None:
        return refuse_too_many(prompts, copies, max_queue, slots=4)
    with pytest.raises(ApiError) as caught:
        refuse_too_many(prompts, copies, max_queue, slots=4)
    assert (caught.value.status, caught.value.detail.param) == (400, param)
    if max_queue == 4:
        assert str(caught.value) == (
            f"`{param}`: 9 choices are asked for, and no more than 8 can be here at once: "
            "slots.count is 4 and limits.max_queue is 4"
        )
    return None


def test_sampling_takes_the_requests_word_then_the_appliances() -> None:
    defaults = SamplingDefaults(temperature=0.7, top_p=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1)

    def sampling(**fields: Any) -> Any:
        return make_sampling(parse(ChatRequest, chat(**fields))[0], defaults, 100)

    unspoken = sampling()
    assert (unspoken.temperature, unspoken.top_p, unspoken.top_k, unspoken.min_p) == (0.7, 0.9, 40, 0.05)
    spoken = sampling(temperature=0, top_p=0.5, top_k=-1, min_p=0, seed=7, logit_bias={"5": -100, "99": 1.5})
    assert (spoken.temperature, spoken.top_p, spoken.top_k, spoken.min_p, spoken.seed) == (0, 0.5, 0, 0, 7)
    assert spoken.logit_bias == ((5, -100.0), (99, 1.5))
    assert sampling(top_p=0).temperature == 0  # the likeliest token only
    for key in ("100", "-1", "x", "٣", "1" * 40):
        with pytest.raises(ApiError, match="token ids"):
            sampling(logit_bias={key: 1})
