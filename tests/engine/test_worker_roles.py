"""The engine asks the director for the memory of roles, and waits until it has it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from engine_toy import whole_plan

from tandem.contract.channel import Channel, serve
from tandem.contract.messages import FreeRoles, RolesFreed
from tandem.contract.plan import Basis, Plan, RolePlan
from tandem.engine import worker
from tandem.engine.worker import Worker
from tandem.units import MIB

NARRATOR = RolePlan("narrator", "narrator", "lm", "m", "cpu", 100 * MIB, Basis.MEASURED)


@pytest.fixture
def plan() -> Iterator[Plan]:
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        yield msgspec.structs.replace(whole_plan(Path(folder)), roles=(NARRATOR,))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no reason to stop waiting: where somebody waits in vain, the test does not end."""
    monkeypatch.setattr(worker, "DIRECTOR_ANSWERS", 600.0)
    monkeypatch.setattr(worker, "ROLES_LEAVE", 600.0)


def ask(plan: Plan, freed: int, available: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int]]:
    """What the engine's thread gets, and what the director was asked for."""
    asked = []
    monkeypatch.setattr(worker, "read_memory", lambda: SimpleNamespace(available=available()))

    async def direct(channel: Channel) -> None:
        while isinstance(message := await channel.receive(), FreeRoles):
            asked.append(message.bytes)
            channel.send(RolesFreed(freed, "on their way"))

    async def scene() -> int:
        server = await serve(plan.paths.director_socket, direct)
        loop = asyncio.get_running_loop()
        got = await asyncio.to_thread(Worker(plan)._ask_roles, loop, 5 * MIB)
        server.close()
        return got

    return asyncio.run(scene()), asked


def test_it_waits_until_the_memory_is_there(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([0, 0, 0, 60 * MIB])
    assert ask(plan, 100 * MIB, lambda: next(readings), monkeypatch) == (100 * MIB, [5 * MIB])
    assert next(readings, None) is None


def test_it_does_not_wait_for_what_nobody_gives(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(plan, 0, lambda: 0, monkeypatch) == (0, [5 * MIB])


def test_it_does_not_wait_for_what_somebody_else_took(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "ROLES_LEAVE", 0.05)
    assert ask(plan, 100 * MIB, lambda: 0, monkeypatch)[0] == 100 * MIB


def test_without_roles_nobody_is_asked(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = msgspec.structs.replace(plan, roles=())
    assert ask(plan, 100 * MIB, lambda: 0, monkeypatch) == (0, [])


def test_a_director_that_is_away_gives_nothing(plan: Plan) -> None:
    async def scene() -> int:
        return await asyncio.to_thread(Worker(plan)._ask_roles, asyncio.get_running_loop(), 1)

    assert asyncio.run(scene()) == 0
