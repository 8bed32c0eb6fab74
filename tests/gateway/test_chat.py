from __future__ import annotations

import pytest

from conftest import MODEL, Start

pytestmark = pytest.mark.anyio
TEXT = "Hello, world! 🙂 This is the end."


async def test_whole_answer(start: Start) -> None:
    async with start() as appliance:
        answer = await appliance.openai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}]
        )
        assert answer.choices[0].message.content == TEXT


async def test_streamed(start: Start) -> None:
    async with start() as appliance:
        stream = await appliance.openai.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == TEXT
