"""What goes wrong with characters, stop strings, templates, log-probabilities and answer formats elsewhere (BR-014 to
BR-037), as far as it is the gateway's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gateway_appliance import Appliance, Start, starting
from spoken import (
    NOW,
    THINKING,
    TOOLS,
    put_together,
    speaking,
    streamed,
    text_of_prompt,
    told_at_once,
)

from tandem.contract.messages import FinishReason, GrammarKind
from tandem.text.tokenizer import Tokenizer

pytestmark = pytest.mark.anyio
LINE = "🙂🏽👨‍👩‍👧 漢字かな é ñ ß Ω — done"


@pytest.mark.parametrize("width", [1, 3])
async def test_characters_survive_beside_one_another(start: Start, width: int) -> None:
    """BR-014, BR-016."""
    async with start() as appliance:
        appliance.engine.script = speaking(appliance, LINE, width)
        streams = await asyncio.gather(*(streamed(appliance) for _ in range(4)))
        whole = told_at_once(await appliance.chat())
    assert {put_together(chunks).text for chunks in streams} == {whole.text} == {LINE}


async def test_an_answer_cut_inside_a_character_is_the_same_streamed_or_not(start: Start) -> None:
    """BR-016."""
    async with start() as appliance:
        tokenizer = appliance.service.prompts.tokenizer
        tokens = tokenizer.encode("ok 🏽")
        assert len(tokenizer.bytes_of[tokens[-1]]) < 4  # the last character takes several

        async def cut(job: Any) -> None:
            job.start()
            job.tokens(*tokens[:-1])
            job.finish(FinishReason.LENGTH)

        appliance.engine.script = cut
        told = put_together(await streamed(appliance))
        whole = told_at_once(await appliance.chat())
    assert told == whole
    assert (told.text, told.finish) == ("ok ", "length")


STOPS: list[tuple[str, Any, str]] = [
    ("The quick brown fox jumps", ["own fox"], "The quick br"),
    ("The quick brown fox jumps", ["fox jumped", "own fox", "n fox j"], "The quick br"),
    ("alpha beta gamma delta", "beta gamma", "alpha "),
    ("a hammer falls", ["mm"], "a ha"),
    ("a hammer falls", ["mmm", "rf"], "a hammer falls"),
]


@pytest.mark.parametrize("width", [1, 4, 16])
async def test_of_a_stop_string_nothing_is_shown(start: Start, width: int) -> None:
    """BR-017, BR-019."""
    async with start() as appliance:
        for text, stop, shown in STOPS:
            appliance.engine.script = speaking(appliance, text, width)
            told = put_together(await streamed(appliance, stop=stop))
            whole = told_at_once(await appliance.chat(stop=stop))
            assert told == whole
            assert (told.text, told.finish) == (shown, "stop")


async def test_what_was_held_back_at_the_end_is_read_like_all_else(start_thinker: Start) -> None:
    """BR-020."""
    for text in (f"{THINKING}ok\n{NOW}", "<think>\nonly thought\n</think>"):
        async with start_thinker() as appliance:
            appliance.engine.script = speaking(appliance, text, 100)
            told = put_together(await streamed(appliance, tools=TOOLS, stop=["</tool_call>  ", "</think>  "]))
        assert told.text in ("ok", "")
        assert told.thinking
        assert told.names == (["clock"] if NOW in text else [])


@pytest.mark.parametrize("content", ["answer as JSON", "hi"])
async def test_any_json_object_needs_no_schema(start: Start, content: str) -> None:
    """BR-026."""
    async with start() as appliance:
        assert (await appliance.chat(content, response_format={"type": "json_object"})).status_code == 200
        grammar = appliance.engine.requests[-1].grammar
    assert grammar is not None
    assert grammar.kind is GrammarKind.JSON_OBJECT


async def test_thinking_comes_before_what_a_grammar_holds(start_thinker: Start) -> None:
    """BR-028: where it begins is the engine's to follow; the marks of thinking travel with the grammar."""
    async with start_thinker() as appliance:
        appliance.engine.script = speaking(appliance, THINKING + '{"a": 1}', 100)
        told = told_at_once(await appliance.chat(response_format={"type": "json_object"}))
        request = appliance.engine.requests[-1]
    assert (told.text, bool(told.thinking)) == ('{"a": 1}', True)
    assert request.grammar is not None
    assert request.reasoning is not None and request.reasoning.close


STRICT = """\
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif -%}
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ORDERS = ["SU", "UU", "SSU", "S", "AU", "UAAU", "USU", "SUAUSA", "UAU", "A", "D", "DU"]
ROLES = {"S": "system", "U": "user", "A": "assistant", "D": "developer"}


@pytest.mark.parametrize("is_strict", [True, False])
async def test_any_order_of_roles_is_an_answer_or_a_sentence(
    tmp_path: Path, weights: Path, tokenizer: Tokenizer, is_strict: bool
) -> None:
    """BR-029, BR-031."""
    if is_strict:
        tokenizer = Tokenizer(replace(tokenizer.vocabulary, chat_template=STRICT))
    async with starting(tmp_path, weights, tokenizer) as appliance:
        for order in ORDERS:
            messages = [{"role": ROLES[letter], "content": f"word{n}"} for n, letter in enumerate(order)]
            response = await appliance.http.post("/v1/chat/completions", json={"messages": messages})
            if is_strict and order[0] == "A":
                assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_messages")
                assert "Roles must alternate" in response.json()["error"]["message"]
            else:
                assert response.status_code == 200, (order, response.text)
                assert all(message["content"] in text_of_prompt(appliance) for message in messages)


async def test_no_message_at_all_is_a_400(start: Start) -> None:
    """BR-029."""
    async with start() as appliance:
        response = await appliance.http.post("/v1/chat/completions", json={"messages": []})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
async def test_every_role_s_parts_reach_the_model(start_thinker: Start, role: str) -> None:
    """BR-032."""
    parts = [{"type": "text", "text": "the code"}, {"type": "text", "text": "is xylophone"}]
    async with start_thinker() as appliance:
        await ask(appliance, {"role": role, "content": parts}, {"role": "user", "content": "say it"})
        assert "the code\nis xylophone" in text_of_prompt(appliance)
        for kind, says in (("video_url", "`video_url`"), ("<b>", "an unknown type"), ("image_url", "smollm2-135m")):
            bad = {"role": role, "content": [*parts, {"type": kind}]}
            refused = await ask(appliance, bad, status=400)
            error = refused["error"]
            assert error["param"].startswith("messages[0].content[2]")
            assert says in error["message"]


async def ask(appliance: Appliance, *messages: Any, status: int = 200, **fields: Any) -> Any:
    response = await appliance.http.post("/v1/chat/completions", json={"messages": messages, **fields})
    assert response.status_code == status, response.text
    return response.json()


async def test_every_token_is_scored_once_wherever_its_text_went(start_thinker: Start) -> None:
    """BR-035."""
    async with start_thinker() as appliance:
        appliance.engine.script = speaking(appliance, f"{THINKING}Look 🙂.\n{NOW}", 2)
        options: Any = {"logprobs": True, "top_logprobs": 1, "tools": TOOLS}
        chunks = await streamed(appliance, stream_options={"include_usage": True}, **options)
        whole = (await appliance.chat(**options)).json()
    *answer, counts = chunks
    streamed_entries = [
        entry
        for chunk in answer
        if chunk["choices"]  # a status line has none
        for entry in (chunk["choices"][0].get("logprobs") or {"content": []})["content"]
    ]
    entries = whole["choices"][0]["logprobs"]["content"]
    assert streamed_entries == entries
    assert len(entries) == counts["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_each_choice_of_a_seed_is_its_own_and_the_same_every_time(start: Start) -> None:
    """BR-037: what the engine is told. That guesses change nothing is shown with the engine."""
    async with start() as appliance:
        for _ in range(2):
            await appliance.chat(seed=42, temperature=1.5, n=2)
        seeds = [request.sampling.seed for request in appliance.engine.requests]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] != seeds[1]
