"""The bench's client takes nothing for an answer but a whole stream."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from bench.client import Answer, RequestFailed, ask


def chunk(delta: dict[str, str], finish: str | None = None) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


COUNTS = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 7}}
USAGE = "data: " + json.dumps({"choices": [], "usage": COUNTS})
WHOLE = [
    chunk({"role": "assistant"}),
    chunk({"content": "Good "}),
    chunk({"content": "day"}),
    chunk({}, "length"),
    USAGE,
]


def answer(lines: list[str], status: int = 200) -> Answer:
    """What the client makes of a server that says these lines."""
    body = "".join(f"{line}\n\n" for line in lines)
    transport = httpx.MockTransport(lambda request: httpx.Response(status, text=body))

    async def run() -> Answer:
        async with httpx.AsyncClient(transport=transport) as client:
            return await ask(client, "http://127.0.0.1", "model", "prompt", 2)

    return asyncio.run(run())


def test_a_whole_stream_is_an_answer() -> None:
    found = answer([": waiting", *WHOLE, "data: [DONE]"])
    assert (found.text, found.finish, found.tokens) == ("Good day", "length", 2)
    assert (found.prompt_tokens, found.cached_tokens) == (9, 7)
    assert found.sent <= found.first <= found.last


def test_a_status_event_is_not_text() -> None:
    status = "data: " + json.dumps({"choices": [], "event": {"type": "status", "data": {"description": "reading"}}})
    assert answer([status, *WHOLE]).text == "Good day"


@pytest.mark.parametrize("missing", range(1, len(WHOLE)), ids=["text", "more text", "finish", "usage"])
def test_a_stream_that_ends_early_is_a_failure(missing: int) -> None:
    with pytest.raises(RequestFailed, match="ended before"):
        answer(WHOLE[:missing])


def test_an_error_in_the_stream_is_a_failure() -> None:
    with pytest.raises(RequestFailed, match="engine restarted"):
        answer([*WHOLE[:2], "data: " + json.dumps({"error": {"message": "engine restarted"}})])


def test_a_refusal_is_a_failure_that_quotes_the_server() -> None:
    with pytest.raises(RequestFailed, match="503: queue full"):
        answer(["queue full"], status=503)
