"""One streamed chat request as a client sees it: its text, its first token's time, its end. Reads SSE itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

LONGEST = 300.0  # seconds one request may take before the bench gives up on it


class RequestFailed(Exception):
    """What the server answered instead of a whole stream."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Times are seconds of one monotonic clock."""

    text: str
    finish: str  # stop | length
    tokens: int  # written, as the server counts them
    prompt_tokens: int
    cached_tokens: int
    sent: float
    first: float  # the first piece of text arrived
    last: float

    @property
    def first_token_seconds(self) -> float:
        return self.first - self.sent


async def ask(client: httpx.AsyncClient, url: str, model: str, prompt: str, max_tokens: int, **more: Any) -> Answer:
    """One user message; `more` are further fields of the request. Raises `RequestFailed` for anything but a complete
    stream."""
    return await ask_messages(client, url, model, [{"role": "user", "content": prompt}], max_tokens, **more)


async def ask_messages(
    client: httpx.AsyncClient,
    url: str,
    model: str,
    messages: Sequence[Mapping[str, str]],
    max_tokens: int,
    **more: Any,
) -> Answer:
    """As `ask`; with `cache_prompt=False` everything is read anew."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    text, finish, first = "", "", 0.0
    usage: dict[str, Any] = {}
    sent = time.monotonic()
    try:
        async with (
            asyncio.timeout(LONGEST),
            client.stream("POST", f"{url}/v1/chat/completions", json=body) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise RequestFailed(
                    f"{response.status_code}: {(await response.aread()).decode(errors='replace')[:300]}"
                )
            async for line in response.aiter_lines():
                chunk = read_line(line)
                if "error" in chunk:
                    raise RequestFailed(str(chunk["error"]))
                usage = chunk.get("usage") or usage
                for choice in chunk.get("choices", ()):
                    piece = choice.get("delta", {}).get("content") or ""
                    if piece and not text:
                        first = time.monotonic()
                    text += piece
                    finish = choice.get("finish_reason") or finish
    except (httpx.HTTPError, TimeoutError) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from error
    if not (text and finish and usage):
        raise RequestFailed("the stream ended before the answer did")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(
        text, finish, usage["completion_tokens"], usage["prompt_tokens"], cached, sent, first, time.monotonic()
    )


def read_line(line: str) -> dict[str, Any]:
    """The JSON of a `data:` line; nothing for comments, blank lines and the closing `[DONE]`."""
    if not line.startswith("data:"):
        return {}
    data = line.removeprefix("data:").strip()
    return {} if data == "[DONE]" else dict(json.loads(data))
