"""What an engine's process holds while conversations come and go, against what its rows take: for `bench.kv_pool`.

One engine as its plan starts it, alone: no gateway, so that a request is exactly so many tokens. Four conversations of
1,000 tokens, four of 8,000, four short ones; each time it is looked at while all four are answered, and at rest.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.appliance import LONGEST_START, LONGEST_STOP, DidNotStart
from tandem.config import load
from tandem.contract.channel import Channel, ask_health, connect
from tandem.contract.messages import Finished, Generate, Health, Marks, Refused, Sampling, Tokens
from tandem.contract.plan import Plan, encode_plan
from tandem.memory.host_pages import ROWS_A_PAGE
from tandem.memory.reading import read_box
from tandem.planner.compile import compile_plan
from tandem.units import MIB

PROJECT = Path(__file__).resolve().parent.parent
SLOTS = 4
ANSWER = 64  # tokens
LENGTHS = (1_000, 8_000, 32)  # of the prompts; the last make the slots forget the long ones
NEAR = 0.01  # of the committed bytes


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at the process, in bytes."""

    when: str
    reserved: int
    committed: int
    resident: int
    is_at_rest: bool


def plan_of(state: Path, pool: bool, settings: Sequence[str] = (), slots: int = SLOTS) -> Plan:
    """The project's own appliance with so many slots and no caches, nothing guessed: what grows are rows.

    Raises what loading and planning raise.
    """
    alone = ("draft.enabled=off", "caches.memory=0 MiB", "caches.disk=off")
    ours = (f"state={state}", f"slots.count={slots}", f"memory.kv_pool={'on' if pool else 'off'}")
    return compile_plan(load(PROJECT / "appliance.yaml", (*settings, *alone, *ours)), read_box())


def measure_memory(pool: bool, settings: Sequence[str]) -> list[Moment]:
    """Raises `DidNotStart`."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        plan = plan_of(Path(folder), pool, settings)
        with engine_of(plan) as socket:
            return asyncio.run(_live_through(plan, socket))


@contextmanager
def engine_of(plan: Plan) -> Iterator[Path]:
    program = plan.program("engine")
    assert program is not None and program.socket is not None
    run = Path(plan.paths.run)
    run.mkdir(parents=True, exist_ok=True)
    (run / "plan.json").write_bytes(encode_plan(plan))
    said = Path(plan.paths.state, "said.log")
    with said.open("wb") as output:
        process = subprocess.Popen(program.command, env=dict(program.environment), stdout=output, stderr=output)
    try:
        asyncio.run(_wait_ready(process, Path(program.socket), said))
        yield Path(program.socket)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(LONGEST_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _wait_ready(process: subprocess.Popen[bytes], socket: Path, said: Path) -> None:
    until = time.monotonic() + LONGEST_START
    while time.monotonic() < until and process.poll() is None:
        try:
            if (await ask_health(socket, 5)).ready:
                return
        except OSError:
            pass
        await asyncio.sleep(0.1)
    raise DidNotStart(f"the engine is not ready:\n{said.read_text(errors='replace')[-2000:]}")


async def _live_through(plan: Plan, socket: Path) -> list[Moment]:
    window = plan.engine.slots[0].window
    channel = await connect(socket)
    try:
        moments = [moment("at start", await at_rest(socket))]
        for number, length in enumerate(LENGTHS):
            prompts = [prompt_of(SLOTS * number + slot, min(length, window - ANSWER)) for slot in range(SLOTS)]
            what = f"{SLOTS} of {length:,} tokens"
            moments.append(moment(f"{what}, answered", await answered(channel, socket, prompts), is_at_rest=False))
            moments.append(moment(f"{what}, ended", await at_rest(socket)))
        return moments
    finally:
        channel.close()


def prompt_of(number: int, length: int) -> Generate:
    """Nothing of it is shared with the prompt of another number."""
    tokens = (1000 + number, *((7 * number + index) % 40_000 for index in range(1, length)))
    return Generate(f"{number}", tokens, ANSWER, (), Sampling(), Marks(length, length))


async def answered(channel: Channel, socket: Path, prompts: Sequence[Generate]) -> Health:
    """All at once; what the engine says of itself when the last of them writes its first token."""
    for prompt in prompts:
        channel.send(prompt)
    writing: set[str] = set()
    health: Health | None = None
    left = len(prompts)
    while left:
        message = await channel.receive()
        assert message is not None and not isinstance(message, Refused), message
        left -= isinstance(message, Finished)
        if isinstance(message, Tokens):
            writing.add(message.id)
            if len(writing) == len(prompts) and health is None:
                health = await ask_health(socket, 60)
    assert health is not None
    return health


async def at_rest(socket: Path) -> Health:
    """After the turn in which an idle engine hands its heap back."""
    turns = 0
    health = await ask_health(socket, 60)
    while health.running or turns < 2:
        await asyncio.sleep(0.02)
        later = await ask_health(socket, 60)
        turns += later.last_turn_age < health.last_turn_age
        health = later
    return health


def moment(when: str, health: Health, *, is_at_rest: bool = True) -> Moment:
    reserved, committed = (sum(getattr(usage, name) for usage in health.kv) for name in ("reserved", "committed"))
    return Moment(when, reserved, committed, health.resident_bytes, is_at_rest)


def page_a_tensor(plan: Plan) -> int:
    """Bytes of one page of each tensor of each slot; a page holds `ROWS_A_PAGE` rows or more."""
    return plan.engine.bytes_a_token * ROWS_A_PAGE * len(plan.engine.slots)


def memory_table(on: Sequence[Moment], off: Sequence[Moment]) -> str:
    """RSS is told as its growth since the start."""
    lines = [
        f"{'MiB':28} {'kv_pool: on':>36}   {'off':>9}",
        f"{'':28} {'reserved':>9}{'committed':>10}{'RSS':>9}{'differ':>8}   {'RSS':>9}",
    ]
    for ours, theirs in zip(on, off, strict=True):
        grown = ours.resident - on[0].resident
        differ = f"{(grown - ours.committed) / MIB:+.1f}"
        lines.append(
            f"{ours.when:28} {ours.reserved / MIB:9.1f}{ours.committed / MIB:10.1f}{grown / MIB:+9.1f}{differ:>8}"
            f"   {(theirs.resident - off[0].resident) / MIB:+9.1f}"
        )
    return "\n".join(lines)


def strays(moments: Sequence[Moment], page: int) -> list[str]:
    """Where, at rest, the process has not grown by what is committed: not within 1 % and `page` bytes."""
    first = moments[0]
    return [
        moment.when
        for moment in moments
        if moment.is_at_rest
        and abs(moment.resident - first.resident - moment.committed) > NEAR * moment.committed + page
    ]
