"""Conversations that outlive their engine: a restart, a kill while it writes, files that are not what they were.

One appliance of its own. Every answer is held against the one that is read anew.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wire_appliance import Appliance, until

from tandem.contract.messages import DiskView

pytestmark = [pytest.mark.wire, pytest.mark.slow]

LONG = "The harbour master writes down every ship: its name, its flag, where it comes from and what it carries. " * 20


@pytest.fixture(scope="module")
def own() -> Iterator[Appliance]:
    appliance = Appliance()
    appliance.write(slots={"count": 2})
    up = appliance.run("up", "--detach")
    assert up.returncode == 0, up.stdout + up.stderr
    yield appliance
    appliance.close()


class Chat:
    def __init__(self, appliance: Appliance, name: str) -> None:
        self.appliance = appliance
        self.messages: list[Any] = [{"role": "user", "content": f"{name}. {LONG} What is the harbour master's work?"}]

    def ask(self, max_tokens: int = 12) -> tuple[int, int]:
        """(tokens that were not read again, tokens of the prompt); the answer is that of a prompt read anew."""
        asked = {"model": "default", "messages": self.messages, "max_tokens": max_tokens, "temperature": 0}
        client = self.appliance.client()
        warm = client.chat.completions.create(**asked)
        cold = client.chat.completions.create(**asked, extra_body={"cache_prompt": False})
        assert warm.choices[0].message.content == cold.choices[0].message.content
        self.messages += [
            {"role": "assistant", "content": warm.choices[0].message.content},
            {"role": "user", "content": "And what else?"},
        ]
        assert warm.usage is not None and warm.usage.prompt_tokens_details is not None
        return warm.usage.prompt_tokens_details.cached_tokens or 0, warm.usage.prompt_tokens


def disk(appliance: Appliance) -> DiskView:
    caches = appliance.settled().caches
    assert caches is not None and caches.disk is not None
    return caches.disk


def written(appliance: Appliance) -> bool:
    seen = disk(appliance)
    return bool(seen.files) and not seen.waiting


def restart(appliance: Appliance, sign: int = signal.SIGKILL) -> None:
    before = until(appliance.all_pids)["engine"]
    os.kill(before, sign)
    until(lambda: (pids := appliance.all_pids()) and pids["engine"] != before)
    until(appliance.ready_health)


def files(appliance: Appliance) -> list[Path]:
    return [
        path for path in (appliance.base / ".tandem" / "cache").rglob("*") if path.is_file() and "rows" in path.name
    ]


def test_a_conversation_goes_on_after_the_engine_was_killed(own: Appliance) -> None:
    chat = Chat(own, "Amsterdam")
    assert chat.ask()[0] == 0
    chat.ask()
    until(lambda: written(own))
    restart(own)
    cached, prompt = chat.ask()
    assert cached > 0.8 * prompt
    caches = own.settled().caches
    assert caches is not None and caches.restored["disk"] >= cached


def test_a_kill_while_files_are_written_tears_nothing(own: Appliance) -> None:
    chats = [Chat(own, name) for name in ("Bergen", "Cork", "Dover")]
    for chat in chats:
        chat.ask(max_tokens=2)
    restart(own)  # at once: some of it is on its way
    for chat in chats:
        chat.ask(max_tokens=2)
    assert disk(own).corrupt == 0


def test_files_that_are_not_what_was_written_are_read_as_a_prompt(own: Appliance) -> None:
    chat = Chat(own, "Esbjerg")
    chat.ask()
    until(lambda: written(own))
    restart(own)
    spoilt = files(own)
    assert spoilt
    for path in spoilt:
        data = bytearray(path.read_bytes())
        data[-100] ^= 0xFF
        path.write_bytes(data)
    cached, prompt = chat.ask()
    assert cached < 0.5 * prompt
    assert disk(own).corrupt > 0


def test_it_goes_on_after_down_and_up(own: Appliance) -> None:
    chat = Chat(own, "Falmouth")
    chat.ask()
    assert own.run("down").returncode == 0  # what waits for the disk is written
    up = own.run("up", "--detach")
    assert up.returncode == 0, up.stdout + up.stderr
    cached, prompt = chat.ask()
    assert cached > 0.8 * prompt
