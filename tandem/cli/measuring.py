"""A role's process alone, from its birth through its hardest work, and the most it took on the way."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import psutil

from tandem.contract.channel import ask_health, connect
from tandem.contract.messages import AskDecider, Health, Message, Narrate, Observe, Question, QuestionKind
from tandem.contract.plan import Paths, Plan, Program, RolePlan, encode_plan
from tandem.errors import CannotStart
from tandem.memory.reading import read_memory

EVERY: Final = 0.02  # seconds between two looks; one costs a few milliseconds
ANSWERS: Final = 5.0  # seconds for one answer about health
WITHIN: Final = 300.0  # seconds for the hardest work
WORDS: Final = 4_000  # of what is asked about: longer than any small model reads
_LAST_WORDS: Final = 6  # lines of the log of one that does not come up


@dataclass(slots=True)
class Sizes:
    """The most that was seen, in bytes."""

    resident: int = 0
    proportional: int = 0  # pages that others have mapped too counted by their share
    own: int = 0  # pages that are nobody else's
    drop: int = 0  # of MemAvailable, whoever else took or gave meanwhile
    seconds: float = 0.0  # until it was ready

    def claim(self, device: str) -> int:
        """Of a device that shares the machine's memory most of a model is no part of its process."""
        return self.proportional if device == "cpu" else max(self.proportional, self.drop)


def measure(plan: Plan, role: RolePlan) -> Sizes:
    """Start the role of `plan` in a run directory of its own, ask it the longest it can be asked, and end it.

    Raises `CannotStart` with its last words when it does not come up.
    """
    with tempfile.TemporaryDirectory(prefix="tandem-", dir="/tmp") as folder:  # short: a socket lies in it
        return asyncio.run(_measure(alone(plan, role, Path(folder)), role))


def alone(plan: Plan, role: RolePlan, folder: Path) -> Plan:
    """The plan as this role sees it where there is nobody else; nothing of it is kept."""
    program = plan.program(role.name)
    assert program is not None
    command = (*program.command[:-1], str(folder))
    program = msgspec.structs.replace(program, command=command, socket=str(folder / "role.sock"))
    paths = Paths(str(folder), str(folder), str(folder))
    return msgspec.structs.replace(plan, programs=(program,), roles=(role,), paths=paths)


async def _measure(plan: Plan, role: RolePlan) -> Sizes:
    (program,) = plan.programs
    plan.paths.plan.write_bytes(encode_plan(plan))
    log, before, began = Path(plan.paths.logs, "log"), read_memory().available, time.monotonic()
    with log.open("wb") as output:
        variables = os.environ | dict(program.environment)
        process = subprocess.Popen(program.command, stdout=output, stderr=output, env=variables)
    sizes = Sizes()
    watching = asyncio.create_task(_watch(sizes, process.pid, before))
    try:
        await _ready(process, program, log)
        sizes.seconds = time.monotonic() - began
        await _work(program, role.kind)
    finally:
        watching.cancel()
        process.kill()
        process.wait()
    return sizes


async def _watch(sizes: Sizes, pid: int, before: int) -> None:
    """Until it is cancelled, or the process is gone."""
    process = psutil.Process(pid)
    with suppress(psutil.Error):
        while True:
            memory = process.memory_full_info()
            sizes.resident = max(sizes.resident, memory.rss)
            sizes.proportional = max(sizes.proportional, memory.pss)
            sizes.own = max(sizes.own, memory.uss)
            sizes.drop = max(sizes.drop, before - read_memory().available)
            await asyncio.sleep(EVERY)


async def _ready(process: subprocess.Popen[bytes], program: Program, log: Path) -> None:
    deadline = time.monotonic() + program.start_timeout
    while True:
        health = await _health(program)
        if health is not None and health.ready:
            return
        if process.poll() is not None or time.monotonic() > deadline or (health and health.state == "failed"):
            last = "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_WORDS:])
            raise CannotStart(f"{program.name} does not come up", f"its last words:\n{last}")
        await asyncio.sleep(EVERY)


async def _work(program: Program, kind: str) -> None:
    """One question of every length that counts; returns when it is answered and nothing is left to do."""
    assert program.socket is not None
    channel = await connect(Path(program.socket))
    try:
        message = hardest(kind)
        if isinstance(message, Observe):  # which nobody is answered
            channel.send(message)
        else:
            await channel.ask(message, WITHIN)
        deadline = time.monotonic() + WITHIN
        while (health := await _health(program)) and (health.running or health.queued):
            if time.monotonic() > deadline:
                raise CannotStart(f"{program.name} still works on its question after {WITHIN:.0f} s")
            await asyncio.sleep(EVERY)
    finally:
        channel.close()


async def _health(program: Program) -> Health | None:
    assert program.socket is not None
    try:
        return await ask_health(Path(program.socket), ANSWERS)
    except (OSError, TimeoutError):
        return None


def hardest(kind: str) -> Message:
    """What takes a role of this kind the most."""
    text = " ".join(f"word{number % 997}" for number in range(WORDS))
    options = tuple((f"option {number}", f"the one that is called {number}") for number in range(8))
    question = Question("measure", QuestionKind.CHOICE, "Which of these is it about?", options)
    match kind:
        case "narrator":
            return Narrate("measure", text, "Reading: 1 of 2 prompt tokens", text, WITHIN)
        case "decider":
            return AskDecider("measure", text, (question,) * 4, WITHIN)
        case _:
            return Observe("measure", text, (question,) * 4)
