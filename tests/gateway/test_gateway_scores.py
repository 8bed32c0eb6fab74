"""Log-probabilities, thinking and loops as clients receive them, over a real port, from an engine double."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_double import Job, score_of
from gateway_appliance import TEXT, Appliance, Start, starting

from tandem.contract.messages import FinishReason, Loop, TokenScore
from tandem.gateway.answers import ChatCompletion, Completion
from tandem.gateway.logprobs import Shown, chat_logprobs, text_logprobs
from tandem.text.tokenizer import Tokenizer

pytestmark = pytest.mark.anyio
MESSAGES: Any = [{"role": "user", "content": "hi"}]


async def complete(appliance: Appliance, **fields: Any) -> Any:
    """The first choice of a plain completion."""
    response = await appliance.http.post("/v1/completions", json={"prompt": "once", **fields})
    return msgspec.to_builtins(msgspec.json.decode(response.content, type=Completion).choices[0])


async def chunks(appliance: Appliance, route: str, **fields: Any) -> list[Any]:
    response = await appliance.http.post(route, json={"stream": True, **fields})
    lines = response.content.decode().split("\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def joined(entries: Sequence[Any]) -> bytes:
    return b"".join(bytes(entry["bytes"] or ()) for entry in entries)


# --- chat ---


@pytest.mark.parametrize("stop", [None, "wor", "o, w", "🙂🏽", "!", "🏽 Th", "H"])
@pytest.mark.parametrize("width", [1, 3, 100])
async def test_scores_belong_to_exactly_the_tokens_whose_text_was_sent(
    start: Start, tokenizer: Tokenizer, stop: str | None, width: int
) -> None:
    async def batches(job: Job) -> None:
        job.start()
        for at in range(0, len(answer), width):
            job.tokens(*answer[at : at + width])
        job.finish()

    async with start() as appliance:
        appliance.engine.script, answer = batches, appliance.engine.answer
        asked: dict[str, Any] = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "stop": stop}
        whole = (await appliance.http.post("/v1/chat/completions", json=asked)).json()["choices"][0]
        stream = await chunks(appliance, "/v1/chat/completions", **asked)
    text, entries = whole["message"]["content"], whole["logprobs"]["content"]
    assert text == (TEXT if stop is None else TEXT.partition(stop)[0])
    least = len(text.encode())
    assert joined(entries).startswith(text.encode())
    assert len(joined(entries[:-1])) < max(least, 1)  # the last token's text was sent, if only in part
    assert [entry["logprob"] for entry in entries] == [-id / 1000 for id in answer[: len(entries)]]
    pieces = [chunk["choices"][0] for chunk in stream]
    streamed = [entry for piece in pieces if "logprobs" in piece for entry in piece["logprobs"]["content"]]
    assert streamed == entries
    assert "".join(piece["delta"].get("content", "") for piece in pieces) == text


async def test_a_streamed_piece_comes_with_the_tokens_that_it_makes_whole(start: Start) -> None:
    async with start() as appliance:
        stream = await chunks(appliance, "/v1/chat/completions", messages=MESSAGES, logprobs=True)
    pieces = [chunk["choices"][0] for chunk in stream][1:-1]
    assert all(joined(piece["logprobs"]["content"]).decode() == piece["delta"]["content"] for piece in pieces)
    (tone,) = [piece for piece in pieces if piece["delta"]["content"] == "🏽"]
    assert len(tone["logprobs"]["content"]) > 1
    assert {entry["token"].strip("\ufffd") for entry in tone["logprobs"]["content"]} == {""}


async def test_without_scores_there_is_no_word_of_them(start: Start) -> None:
    async with start() as appliance:
        stream = await chunks(appliance, "/v1/chat/completions", messages=MESSAGES)
        whole = (await appliance.chat(logprobs=False, top_logprobs=0)).json()
        assert {request.top_logprobs for request in appliance.engine.requests} == {None}
    assert all("logprobs" not in choice for chunk in stream for choice in chunk["choices"])
    assert whole["choices"][0]["logprobs"] is None


async def test_openais_client_reads_them(start: Start) -> None:
    async with start() as appliance:
        answer = await appliance.openai.chat.completions.create(
            model="default", messages=MESSAGES, logprobs=True, top_logprobs=3
        )
        old = await appliance.openai.completions.create(model="default", prompt="x", logprobs=2)
    scores = answer.choices[0].logprobs
    assert scores is not None and scores.content is not None
    assert b"".join(bytes(entry.bytes or ()) for entry in scores.content).decode() == TEXT
    assert [len(entry.top_logprobs) for entry in scores.content] == [3] * len(scores.content)
    assert old.choices[0].logprobs is not None and old.choices[0].logprobs.text_offset is not None
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


# --- completions ---


async def test_plain_completions_have_four_lists_of_one_length(start: Start, tokenizer: Tokenizer) -> None:
    async with start() as appliance:
        scores = (await complete(appliance, logprobs=2))["logprobs"]
        stream = await chunks(appliance, "/v1/completions", prompt="once", logprobs=2)
        assert [request.top_logprobs for request in appliance.engine.requests] == [2, 2]
        answer = appliance.engine.answer
    assert scores["tokens"][0] == "Hello"
    assert scores["token_logprobs"] == [-id / 1000 for id in answer]
    assert {len(each) for each in scores["top_logprobs"]} <= {2, 3}
    offsets = scores["text_offset"]
    assert offsets == sorted(offsets) and offsets[:2] == [0, 5] and max(offsets) < len(TEXT)
    for token, offset in zip(scores["tokens"], offsets, strict=True):
        assert "\ufffd" in token or TEXT.startswith(token, offset)
    streamed = [c["choices"][0]["logprobs"] for c in stream if "logprobs" in c["choices"][0]]
    assert {name: [x for piece in streamed for x in piece[name]] for name in scores} == scores


def test_names_bytes_and_what_cannot_be(tokenizer: Tokenizer) -> None:
    (half, *_) = tokenizer.encode("🏽")
    end_of_turn, hello = 2, tokenizer.encode("Hello")[0]
    impossible = TokenScore(float("-inf"), ((end_of_turn, -0.5), (half, -1.0)))
    shown = [Shown(hello, score_of(hello, 1), 0), Shown(half, impossible, 5), Shown(end_of_turn, score_of(2, 0), 6)]
    first, partial, control = chat_logprobs(shown, tokenizer).content
    assert (first.token, first.bytes) == ("Hello", list(b"Hello"))
    assert (partial.token, partial.logprob) == ("\ufffd", -9999.0)
    assert partial.bytes == list(tokenizer.bytes_of[half]) and partial.bytes != list(b"\xef\xbf\xbd")
    assert [best.token for best in partial.top_logprobs] == ["<|im_end|>", "\ufffd"]
    assert (control.token, control.bytes, control.top_logprobs) == ("<|im_end|>", None, [])
    lists = text_logprobs(shown, tokenizer)
    assert lists.tokens == ["Hello", "\ufffd", "<|im_end|>"]
    assert lists.text_offset == [0, 5, 6]
    assert lists.top_logprobs[1] == {"<|im_end|>": -0.5, "\ufffd": -1.0}  # of equal names, the best
    assert lists.top_logprobs[2] == {"<|im_end|>": -0.002}  # the chosen one is always there


# --- thinking ---


@pytest.fixture
def thinker(tokenizer: Tokenizer) -> Tokenizer:
    """The default model's words with a template that begins a block of thinking, unless told not to."""
    template = tokenizer.vocabulary.chat_template
    opening = "{% if add_generation_prompt %}{{ '<think>' }}{% endif %}"
    unless = (
        "{% if enable_thinking is defined and not enable_thinking %}{% if add_generation_prompt %}{{ '\\n</think>' }}"
    )
    return Tokenizer(
        replace(tokenizer.vocabulary, chat_template=template + opening + unless + "{% endif %}{% endif %}")
    )


async def test_what_the_engine_is_told_of_thinking(tmp_path: Path, weights: Path, thinker: Tokenizer) -> None:
    async with starting(tmp_path, weights, thinker) as appliance:
        await appliance.chat()
        await appliance.chat(reasoning_effort="low", max_tokens=6000)
        await appliance.chat(reasoning_effort="low", max_reasoning_tokens=10**30, max_tokens=6000)
        await appliance.chat(reasoning_effort="none")
        await complete(appliance)
        plain, low, most, none, raw = [request.reasoning for request in appliance.engine.requests]
        prompts = [request.tokens for request in appliance.engine.requests]
    assert plain is not None and low is not None and most is not None and none is not None
    assert (plain.open, plain.close) == (tuple(thinker.encode("<think>")), tuple(thinker.encode("</think>")))
    assert (plain.max_tokens, plain.begun) == (48, True)  # of 64: a quarter is the answer's
    assert (low.max_tokens, low.begun) == (1024, True)
    assert most.max_tokens == 6000 - 1024
    assert (none.max_tokens, none.begun) == (0, False)  # the template closed the block itself
    assert prompts[3] == prompts[0] + tuple(thinker.encode("\n</think>"))
    assert raw is None


async def test_a_model_without_thinking_takes_the_words_and_does_nothing(start: Start) -> None:
    async with start() as appliance:
        for fields in ({"reasoning_effort": "high"}, {"max_reasoning_tokens": 5}):
            answer = await appliance.chat(**fields)
            assert answer.status_code == 200
            assert "x-tandem-ignored" not in answer.headers
            assert answer.json()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
        assert [request.reasoning for request in appliance.engine.requests] == [None, None]


@pytest.mark.parametrize("stop", [None, "fine"])
async def test_thinking_is_counted_apart_in_usage(
    tmp_path: Path, weights: Path, thinker: Tokenizer, stop: str | None
) -> None:
    thought = thinker.encode("hm, let me see")
    async with starting(tmp_path, weights, thinker) as appliance:
        appliance.engine.answer = [*thought, *thinker.encode("</think>"), *thinker.encode("I am fine, thanks.")]
        whole = (await appliance.chat(stop=stop)).json()["usage"]
        usage = (
            await chunks(
                appliance,
                "/v1/chat/completions",
                messages=MESSAGES,
                stop=stop,
                stream_options={"include_usage": True},
            )
        )[-1]["usage"]
    assert whole == usage
    assert whole["completion_tokens_details"] == {"reasoning_tokens": len(thought)}
    assert len(thought) < whole["completion_tokens"] <= len(appliance.engine.answer)


# --- loops ---


async def repeat(job: Job) -> None:
    job.start()
    job.tokens(5, 5, 5)
    job.finish(FinishReason.LOOP if job.request.end_loops else FinishReason.STOP, loop=Loop(1, 512))


@pytest.mark.parametrize("ends", [True, False])
async def test_a_loop_is_spelled_out_and_ends_the_answer_when_asked(start: Start, ends: bool) -> None:
    async with start() as appliance:
        appliance.engine.script = repeat
        whole = (await appliance.chat(end_loops=ends)).json()["choices"][0]
        msgspec.convert({**(await appliance.chat(end_loops=ends)).json()}, ChatCompletion)
        last = (await chunks(appliance, "/v1/chat/completions", messages=MESSAGES, end_loops=ends))[-1]["choices"][0]
        plain = await complete(appliance, end_loops=ends)
    noticed = {"loop": {"period": 1, "repeats": 512, "ended": ends}}
    for choice in (whole, last, plain):
        assert choice["tandem"] == noticed
        assert choice["finish_reason"] == ("length" if ends else "stop")


async def test_an_answer_without_a_loop_says_nothing_of_one(start: Start) -> None:
    async with start() as appliance:
        assert "tandem" not in (await appliance.chat(end_loops=True)).json()["choices"][0]


async def test_whether_loops_end_is_passed_on_as_asked(start: Start) -> None:
    async with start() as appliance:
        for asked in (None, True, False):
            await appliance.chat(end_loops=asked)
        assert [request.end_loops for request in appliance.engine.requests] == [None, True, False]


async def test_thinking_that_ran_away_is_told(start: Start) -> None:
    async def think(job: Job) -> None:
        job.start()
        job.tokens(5)
        job.finish(FinishReason.LENGTH, runaway=True)

    async with start() as appliance:
        appliance.engine.script = think
        choice = (await appliance.chat()).json()["choices"][0]
    assert choice["tandem"] == {"runaway_reasoning": True}
