"""A role's process with a role of the test's: whoever asks hears in time, whatever the model does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from roles_appliance import make_role_plan

from tandem.contract.channel import Channel, ask_health, connect, serve
from tandem.contract.messages import (
    AskDecider,
    AskLease,
    Decided,
    Health,
    Lease,
    Narrate,
    Observe,
    Question,
    QuestionKind,
    ReturnLease,
    RoleRefusal,
    Undecided,
)
from tandem.errors import CannotStart
from tandem.roles import worker
from tandem.roles.role import Ask, Reply
from tandem.roles.worker import RoleWorker

pytestmark = pytest.mark.anyio
SOON = 60.0  # seconds: only a failure takes them
QUESTION = Question("q", QuestionKind.NOUL, "It rains.", (("false", ""), ("true", "")))


def ask(within: float = SOON, id: str = "a") -> AskDecider:
    return AskDecider(id, "state", (QUESTION,), within)


@dataclass
class Double:
    """A role whose model does what `work` says, on the model's thread."""

    work: Callable[[Ask], Reply | None] = lambda ask: Decided(ask.id, "double", (), 1, 1, 0)
    takes: type[Ask] = AskDecider
    done: list[Ask] = field(default_factory=list)

    def warm_up(self) -> None:
        pass

    def perform(self, ask: Ask, until: float) -> Reply | None:
        reply = self.work(ask)
        self.done.append(ask)
        return reply


@asynccontextmanager
async def running(run: Path, role: Double | Exception, device: str = "cpu") -> AsyncIterator[Path]:
    def open(*_: Any) -> Double:
        if isinstance(role, Exception):
            raise role
        return role

    process = RoleWorker(make_role_plan(run, device), "decider-0", open)
    serving = asyncio.create_task(process.serve())
    socket = run / "decider-0.sock"
    while not socket.exists():
        await asyncio.sleep(0.005)
    try:
        yield socket
    finally:
        serving.cancel()


async def ready(socket: Path) -> Health:
    while not (health := await ask_health(socket, SOON)).ready:
        await asyncio.sleep(0.005)
    return health


async def say(socket: Path, message: Any, timeout: float = SOON) -> Any:
    channel = await connect(socket)
    try:
        return await channel.ask(message, timeout)
    finally:
        channel.close()


async def test_it_answers_about_itself_and_its_work(tmp_path: Path) -> None:
    double = Double()
    async with running(tmp_path, double) as socket:
        health = await ready(socket)
        assert (health.state, health.running) == ("ready", 0) and health.resident_bytes > 1 << 20
        assert await say(socket, ask()) == Decided("a", "double", (), 1, 1, 0)
        other = await say(socket, Narrate("n", "t", "d", "", 1.0))
        assert isinstance(other, Undecided) and other.reason is RoleRefusal.AWAY, "this decider narrates nothing"


async def test_who_asks_hears_in_time_while_the_model_hangs_and_the_process_says_that_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    double = Double(work=lambda ask: Decided(ask.id, "double", (), 1, 1, 0) if gate.wait(SOON) else None)
    async with running(tmp_path, double) as socket:
        await ready(socket)
        said = await say(socket, ask(within=0.1))
        assert isinstance(said, Undecided) and said.reason is RoleRefusal.LATE and "100 ms" in said.sentence
        assert double.done == []
        monkeypatch.setattr(worker, "HUNG_AFTER", 0.05)
        health = await ask_health(socket, SOON)
        assert (health.ready, health.state) == (False, "failed") and "hung" in health.sentence
        monkeypatch.undo()
        assert (await ask_health(socket, SOON)).running == 1
        waiting = asyncio.create_task(say(socket, ask(within=0.1, id="b")))
        assert (await waiting).reason is RoleRefusal.LATE
        gate.set()
        assert isinstance(await say(socket, ask(id="c")), Decided)
        assert [done.id for done in double.done] == ["a", "c"], "work that is late before it begins is not begun"


async def test_a_failure_is_that_of_one_question_and_quotes_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(asked: Ask) -> Reply:
        if asked.id == "bad":
            raise ValueError("SECRET TEXT OF A USER")
        return Decided(asked.id, "double", (), 1, 1, 0)

    async with running(tmp_path, Double(work=fails)) as socket:
        await ready(socket)
        said = await say(socket, ask(id="bad"))
        assert isinstance(said, Undecided) and said.reason is RoleRefusal.FAILED
        assert "SECRET" not in said.sentence and "SECRET" not in caplog.text
        assert isinstance(await say(socket, ask(id="good")), Decided)


async def test_only_so_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_WAITING", 2)
    gate = threading.Event()
    double = Double(work=lambda ask: Decided(ask.id, "double", (), 1, 1, 0) if gate.wait(SOON) else None)
    async with running(tmp_path, double) as socket:
        await ready(socket)
        first = [asyncio.create_task(say(socket, ask(id=str(n)))) for n in range(2)]
        while (await ask_health(socket, SOON)).queued < 1:
            await asyncio.sleep(0.005)
        said = await say(socket, ask(id="third"))
        assert isinstance(said, Undecided) and said.reason is RoleRefusal.BUSY
        gate.set()
        assert all(isinstance(each, Decided) for each in await asyncio.gather(*first))


async def test_what_is_observed_is_done_and_answered_to_nobody(tmp_path: Path) -> None:
    double = Double(takes=Observe, work=lambda ask: None)
    async with running(tmp_path, double) as socket:
        await ready(socket)
        channel = await connect(socket)
        channel.send(Observe("r1", "state", (QUESTION,)))
        channel.close()
        while not double.done:
            await asyncio.sleep(0.005)


async def test_a_model_that_cannot_be_opened_ends_the_process_with_its_status(tmp_path: Path) -> None:
    process = RoleWorker(make_role_plan(tmp_path), "decider-0", _refusing)
    assert await process.serve() == CannotStart("x").exit_status
    assert not (tmp_path / "decider-0.sock").exists()


def _refusing(*_: Any) -> Double:
    raise CannotStart("there is no model", "name one")


def test_a_role_that_the_plan_does_not_know_is_told(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="no role `narrator`"):
        RoleWorker(make_role_plan(tmp_path), "narrator", _refusing)


class Engine:
    """Grants turns, or does not."""

    def __init__(self, grants: bool = True) -> None:
        self.heard: list[Any] = []
        self._grants = grants

    async def converse(self, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            self.heard.append(message)
            if isinstance(message, AskLease):
                channel.send(Lease(message.id, self._grants, "" if self._grants else "slot 0 is busy"))
        self.heard.append("closed")


@pytest.mark.parametrize("grants", [True, False])
async def test_on_a_shared_device_it_works_inside_a_turn_of_the_engine_s(tmp_path: Path, grants: bool) -> None:
    engine, double = Engine(grants), Double()
    server = await serve(tmp_path / "engine.sock", engine.converse)
    async with running(tmp_path, double, device="cuda") as socket:
        await ready(socket)
        said = await say(socket, ask())
        if grants:
            assert isinstance(said, Decided)
            while engine.heard[-1] != "closed":
                await asyncio.sleep(0.005)
            lease, returned, _ = engine.heard
            assert isinstance(lease, AskLease) and lease.when_idle and isinstance(returned, ReturnLease)
        else:
            assert isinstance(said, Undecided) and said.reason is RoleRefusal.BUSY and said.sentence == "slot 0 is busy"
            assert double.done == []
    server.close()


async def test_without_an_engine_to_ask_there_is_no_turn(tmp_path: Path) -> None:
    async with running(tmp_path, Double(), device="cuda") as socket:
        await ready(socket)
        said = await say(socket, ask())
        assert isinstance(said, Undecided) and said.reason is RoleRefusal.BUSY
