"""How long a client waits for its first word, by the length of its prompt and by how many others are answered.

Through HTTP, on an appliance of the bench's own. Nothing of a prompt is found in any cache.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final

import httpx

from bench.appliance import Appliance, started
from bench.client import Answer, RequestFailed, ask_messages
from bench.growth.curves import Axis, Curve, line
from bench.prompts import TOPICS, prompt
from bench.turns import progress

LENGTHS: Final = (50, 150, 500, 1_500, 4_000, 8_000)  # tokens, roughly: what counts is what the server counted
BESIDE: Final = (50, 1_500)  # of a prompt that others are answered beside
SLOTS: Final = 4
REPETITIONS: Final = 3
ANSWER: Final = 4  # tokens
LONG_ANSWER: Final = 2_000
TRIES: Final = 4  # for a sample in which all others wrote from its beginning to its end
AROUND: Final = 31  # tokens that the default model's template adds
A_SENTENCE: Final = 14  # tokens
PATIENCE: Final = 60.0  # seconds until all others write
_NUMBERS: Final = count(1)


def measure(settings: Sequence[str], *, is_quick: bool) -> tuple[Curve, ...]:
    """Raises `DidNotStart` and `RequestFailed`."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        ours = ("draft.enabled=off", "caches.memory=0 MiB", "caches.disk=off", *settings)
        with started(SLOTS, Path(folder, "one"), ours) as appliance:
            return asyncio.run(_measure(appliance, is_quick))


async def _measure(appliance: Appliance, is_quick: bool) -> tuple[Curve, ...]:
    lengths, beside, repetitions = (LENGTHS[:3], BESIDE[:1], 1) if is_quick else (LENGTHS, BESIDE, REPETITIONS)
    busy = range(0, SLOTS, 3 if is_quick else 1)
    async with httpx.AsyncClient(timeout=httpx.Timeout(120)) as client:
        await _ask(client, appliance, LENGTHS[0])
        alone: dict[int, list[Answer]] = {length: [] for length in lengths}
        shared: dict[int, dict[float, list[float]]] = {length: {many: [] for many in busy} for length in beside}
        for repetition in range(repetitions):
            for length in lengths:
                progress(f"ttft: {length:,} tokens, repetition {repetition + 1} of {repetitions}")
                alone[length].append(await _ask(client, appliance, length))
            for many in busy:
                progress(f"ttft: beside {many}, repetition {repetition + 1} of {repetitions}")
                async with others(client, appliance, many) as writers:
                    for length in beside:
                        shared[length][many].append(await _beside(client, appliance, length, writers))
    by_length = {
        median(answer.prompt_tokens for answer in answers): [answer.first_token_seconds for answer in answers]
        for answers in alone.values()
    }
    ms = Axis("ms to the first token", is_log=True)
    return (
        Curve(
            "First token by the prompt's length",
            Axis("tokens", is_log=True),
            ms,
            (line("nobody else is answered", by_length, 1e3),),
        ),
        Curve(
            "First token beside others",
            Axis("others that are answered"),
            ms,
            tuple(line(f"about {length:,} tokens", found, 1e3) for length, found in shared.items()),
        ),
    )


async def _ask(client: httpx.AsyncClient, appliance: Appliance, length: int) -> Answer:
    messages = [{"role": "user", "content": text_of(length, next(_NUMBERS))}]
    return await ask_messages(client, appliance.url, appliance.model, messages, ANSWER, cache_prompt=False)


def text_of(length: int, number: int) -> str:
    """About `length` tokens with the chat template around them; another one for every `number`."""
    sentences = max(1, round((length - AROUND) / A_SENTENCE))
    return " ".join(f"Box {number * 1_000 + n:06} holds {n % 7} old maps." for n in range(sentences))


# --- the others -------------------------------------------------------------------------------------------------


class Writer:
    """A client that asks one long answer after another."""

    def __init__(self) -> None:
        self.is_written_to = False
        self.num_asked = 0

    async def run(self, client: httpx.AsyncClient, appliance: Appliance, topic: str) -> None:
        while True:
            self.num_asked += 1
            body = {
                "model": appliance.model,
                "messages": [{"role": "user", "content": f"{self.num_asked}. {prompt(topic)}"}],
                "max_tokens": LONG_ANSWER,
                "temperature": 0,
                "stream": True,
            }
            async with client.stream("POST", f"{appliance.url}/v1/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    self.is_written_to |= '"delta":{"content":"' in line
            self.is_written_to = False


@asynccontextmanager
async def others(client: httpx.AsyncClient, appliance: Appliance, many: int) -> AsyncIterator[list[Writer]]:
    writers = [Writer() for _ in range(many)]
    tasks = [
        asyncio.create_task(writer.run(client, appliance, topic))
        for writer, topic in zip(writers, TOPICS, strict=False)
    ]
    try:
        yield writers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _beside(client: httpx.AsyncClient, appliance: Appliance, length: int, writers: Sequence[Writer]) -> float:
    """Seconds to the first token while all of them are written to, from the beginning to the end."""
    for _ in range(TRIES):
        async with asyncio.timeout(PATIENCE):
            while not all(writer.is_written_to for writer in writers):
                await asyncio.sleep(0.02)
        asked = [writer.num_asked for writer in writers]
        answer = await _ask(client, appliance, length)
        if asked == [writer.num_asked for writer in writers]:
            return answer.first_token_seconds
    raise RequestFailed(f"the answers beside ended too soon, {TRIES} times: there is nothing to measure")
