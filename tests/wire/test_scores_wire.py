"""Log-probabilities and loops from the real model, through every process."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from wire_appliance import Appliance

pytestmark = [pytest.mark.wire, pytest.mark.timeout(240)]

PROMPTS = ("Name three rivers.", "What is bread made of?", "Write one line about the sea 🙂")


async def answers(appliance: Appliance, prompts: tuple[str, ...], **fields: Any) -> list[Any]:
    """The first choice for each prompt, all asked at once."""
    async with httpx.AsyncClient(base_url=appliance.url, timeout=120) as client:

        async def ask(prompt: str) -> Any:
            body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, **fields}
            response = await client.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            return response.json()["choices"][0]

        return list(await asyncio.gather(*map(ask, prompts)))


def test_scores_are_the_same_alone_and_in_company(appliance: Appliance) -> None:
    asked: dict[str, Any] = {"max_tokens": 24, "logprobs": True, "top_logprobs": 20}
    together = asyncio.run(answers(appliance, PROMPTS, **asked))
    for prompt, choice in zip(PROMPTS, together, strict=True):
        (alone,) = asyncio.run(answers(appliance, (prompt,), **asked))
        assert choice["message"] == alone["message"]
        assert choice["logprobs"] == alone["logprobs"]
        entries = choice["logprobs"]["content"]
        text = b"".join(bytes(entry["bytes"] or ()) for entry in entries)
        assert text.decode("utf-8", "ignore") == choice["message"]["content"]
        for entry in entries:
            best = entry["top_logprobs"]
            assert len(best) == 20 and best[0]["logprob"] == entry["logprob"]  # greedy
            values = [candidate["logprob"] for candidate in best]
            assert values == sorted(values, reverse=True)
            assert 0 < math.fsum(map(math.exp, values)) <= 1.0001


@pytest.mark.parametrize("ends", [True, False])
def test_a_loop_is_ended_when_asked_and_reported_either_way(appliance: Appliance, ends: bool) -> None:
    (choice,) = asyncio.run(answers(appliance, PROMPTS[:1], max_tokens=530, logit_bias={"260": 100}, end_loops=ends))
    repeats = 512 if ends else 530
    assert choice["tandem"] == {"loop": {"period": 1, "repeats": repeats, "ended": ends}}
    assert choice["finish_reason"] == "length"
