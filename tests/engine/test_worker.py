"""The engine's process in this one: its two threads and real sockets, over the toy model."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import msgspec
import pytest
from engine_toy import ENDLESS, ToyModel, alone, ask, endless_plan, engine_plan, live, whole_plan

from tandem.contract.channel import Channel, ChannelClosed, ask_health, connect
from tandem.contract.messages import (
    AskHealth,
    Cancel,
    Drain,
    Finished,
    FinishReason,
    Health,
    Message,
    RefusalCode,
    Refused,
    SetLive,
    Subscribe,
    Tokens,
)
from tandem.contract.plan import Plan
from tandem.engine import device
from tandem.engine.letters import Link, Sent
from tandem.engine.worker import Worker
from tandem.errors import CannotStart
from tandem.roles.lease import NoTurn, turn

SOON = 60.0  # seconds: only a failure takes them


@pytest.fixture
def run() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        yield Path(folder)


class Stalling(ToyModel):
    """Stands still in `forward` and while it loads until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.may_load, self.may_run = threading.Event(), threading.Event()
        self.may_load.set()
        self.may_run.set()

    def load(self, path: Path, compute: str, threads: int, progress: Callable[[float], None], *more) -> Stalling:
        progress(0.25)
        self.may_load.wait(SOON)
        return self

    def forward(self, blocks):  # type: ignore[no-untyped-def]
        self.may_run.wait(SOON)
        return super().forward(blocks)


def serving(
    run: Path,
    scene: Callable[[Path], Awaitable[asyncio.Task[None] | None]],
    model: Stalling | None = None,
    plan: Plan | None = None,
) -> int:
    """Serve while `scene` plays, then drain; returns the exit status. A task that the scene leaves is waited for."""
    model = model or Stalling()

    def toy_device(plan: Plan, link: Link) -> None:
        device.run(plan, link, model.load)

    async def play() -> int:
        worker = Worker(plan or whole_plan(run), toy_device)
        task = asyncio.create_task(worker.serve())
        socket = run / "engine.sock"
        while not socket.exists():
            await asyncio.sleep(0.001)
        try:
            rest = await scene(socket)
        finally:
            model.may_load.set()
            model.may_run.set()
            await ready(socket)
            worker.terminate()
        status = await asyncio.wait_for(task, SOON)
        if rest is not None:
            await rest
        return status

    return asyncio.run(play())


async def ready(socket: Path) -> Health:
    return await health(socket, lambda answer: answer.state != "loading")


async def health(socket: Path, wanted: Callable[[Health], bool]) -> Health:
    deadline = time.monotonic() + SOON
    while not wanted(answer := await ask_health(socket, SOON)):
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.002)
    return answer


async def story(channel: Channel, id: str) -> list[Message]:
    """Everything about one request, to its last word; other requests' letters are dropped."""
    found: list[Message] = []
    while not found or not isinstance(found[-1], Finished | Refused):
        message = await asyncio.wait_for(channel.receive(), SOON)
        assert message is not None, "the engine closed the channel"
        if getattr(message, "id", None) == id:
            found.append(message)
    return found


def text(found: list[Message]) -> list[int]:
    return [token for message in found if isinstance(message, Tokens) for token in message.tokens]


def test_it_answers_while_it_loads_and_serves_what_was_asked_meanwhile(run: Path) -> None:
    model = Stalling()
    model.may_load.clear()

    async def scene(socket: Path) -> None:
        answer = await health(socket, lambda answer: answer.progress > 0)
        assert (answer.ready, answer.state, answer.progress) == (False, "loading", 0.25)
        assert answer.sentence == "Loading: 25% of the weights"
        assert answer.resident_bytes > 0
        channel = await connect(socket)
        channel.send(ask("early"))
        model.may_load.set()
        assert text(await story(channel, "early")) == alone(ask("early"))
        answer = await ready(socket)
        assert answer.ready and answer.sentence == "0 of 2 slots busy, 0 waiting"
        assert answer.facts["row_bucket"] == "8"
        assert [slot.window for slot in answer.slots] == [64, 64]

    assert serving(run, scene, model) == 0


def test_not_ready_before_a_token_was_written(run: Path) -> None:
    model = Stalling()
    model.may_run.clear()

    async def scene(socket: Path) -> None:
        answer = await health(socket, lambda answer: "first token" in answer.sentence)
        assert not answer.ready and answer.state == "loading"

    assert serving(run, scene, model) == 0


def test_a_device_thread_that_hangs_is_seen_from_outside(run: Path) -> None:
    model = Stalling()

    async def scene(socket: Path) -> None:
        await ready(socket)
        channel = await connect(socket)
        model.may_run.clear()
        channel.send(ask("a"))
        answer = await health(socket, lambda answer: answer.running == 1)
        assert answer.ready
        later = await health(socket, lambda answer: answer.last_turn_age > 0.05)
        assert later.running == 1
        model.may_run.set()
        await story(channel, "a")
        await health(socket, lambda answer: answer.running == 0 and answer.last_turn_age < later.last_turn_age)

    assert serving(run, scene, model) == 0


def test_an_idle_engine_shows_life(run: Path) -> None:
    async def scene(socket: Path) -> None:
        await ready(socket)
        channel = await connect(socket)  # one for all questions: a peer that leaves would wake the device thread

        async def age() -> float:
            await asyncio.sleep(0.01)
            answer = await channel.ask(AskHealth(), SOON)
            assert isinstance(answer, Health)
            return answer.last_turn_age

        while (resting := await age()) < 0.1:
            pass
        while await age() >= resting:
            pass

    assert serving(run, scene) == 0


def test_several_peers_at_once_each_read_their_own(run: Path) -> None:
    async def scene(socket: Path) -> None:
        await ready(socket)
        channels = [await connect(socket) for _ in range(3)]
        requests = [ask("same-id", prompt=(number, 2, 3), max_tokens=20) for number in range(3)]
        for channel, request in zip(channels, requests, strict=True):
            channel.send(request)
        stories = await asyncio.gather(*(story(channel, "same-id") for channel in channels))
        assert [text(found) for found in stories] == [alone(request) for request in requests]

    assert serving(run, scene) == 0


def test_a_dead_peer_frees_its_slot(run: Path) -> None:
    plan = whole_plan(run, endless_plan())

    async def scene(socket: Path) -> None:
        await ready(socket)
        channel = await connect(socket)
        channel.send(ask("endless", max_tokens=ENDLESS))
        await health(socket, lambda answer: answer.running == 1)
        channel.close()
        answer = await health(socket, lambda answer: answer.running == 0)
        assert answer.counters is not None and answer.counters.cancelled == 1
        assert answer.slots[0].state == "idle"

    assert serving(run, scene, plan=plan) == 0


@pytest.mark.parametrize("junk", [b"\x00\x00\x00\x03abc", b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\xc1\xc1"])
def test_junk_ends_its_own_connection_only(run: Path, junk: bytes) -> None:
    async def scene(socket: Path) -> None:
        await ready(socket)
        good = await connect(socket)
        good.send(ask("a", max_tokens=40))
        reader, writer = await asyncio.open_unix_connection(str(socket))
        writer.write(junk)
        assert await asyncio.wait_for(reader.read(), SOON) == b""
        writer.close()
        assert len(text(await story(good, "a"))) == 40

    assert serving(run, scene) == 0


def test_a_live_edit_acts_and_one_that_is_no_plan_ends_its_sender(run: Path) -> None:
    plan = whole_plan(run, endless_plan())

    async def scene(socket: Path) -> None:
        await ready(socket)
        bad = await connect(socket)
        bad.send(SetLive(b'{"limits": 3}'))
        assert await asyncio.wait_for(bad.receive(), SOON) is None
        good = await connect(socket)
        good.send(Subscribe())  # not for an engine: passed over
        good.send(ask("a", max_tokens=ENDLESS))
        good.send(SetLive(msgspec.json.encode(live(floor=0, max_queue=0))))
        await health(socket, lambda answer: answer.running == 1)
        good.send(ask("b"))
        (refusal,) = await story(good, "b")
        assert isinstance(refusal, Refused) and refusal.code is RefusalCode.QUEUE_FULL
        good.send(Cancel("a"))
        (*_, last) = await story(good, "a")
        assert isinstance(last, Finished) and last.reason is FinishReason.CANCELLED

    assert serving(run, scene, plan=plan) == 0


def test_told_to_end_it_finishes_what_is_here_refuses_what_comes_and_ends_well(run: Path) -> None:
    model = Stalling()
    plan = whole_plan(run, engine_plan([64]))
    stories: dict[str, list[Message]] = {}

    async def scene(socket: Path) -> None:
        await ready(socket)
        channel = await connect(socket)
        model.may_run.clear()
        for id in ("running", "waiting"):
            channel.send(ask(id, max_tokens=30))
        await health(socket, lambda answer: answer.running == 1 and answer.queued == 1)
        channel.send(Drain())
        channel.send(ask("late"))
        model.may_run.set()
        for id in ("late", "running", "waiting"):
            stories[id] = []
        while not all(found and isinstance(found[-1], Finished | Refused) for found in stories.values()):
            message = await asyncio.wait_for(channel.receive(), SOON)
            assert message is not None
            stories[message.id].append(message)  # type: ignore[union-attr]

    assert serving(run, scene, model, plan) == 0
    late = stories["late"][-1]
    assert isinstance(late, Refused) and late.code is RefusalCode.DRAINING and late.retry_after
    for id in ("running", "waiting"):
        last = stories[id][-1]
        assert isinstance(last, Finished) and last.reason is FinishReason.LENGTH and len(text(stories[id])) == 30
    assert not (run / "engine.sock").exists()


def test_its_last_words_are_read_before_the_connection_ends(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that reads late: what waits for it is more than a socket holds."""
    monkeypatch.setattr("tandem.engine.worker.LAST_WORDS", SOON)
    count, read = 20_000, list[Message]()

    async def scene(socket: Path) -> asyncio.Task[None]:
        await ready(socket)
        channel = await connect(socket)
        for number in range(count):
            channel.send(ask(f"r{number}", max_tokens=0))
        refused = await health(socket, lambda answer: answer.counters is not None and answer.counters.refused == count)
        assert refused.ready

        async def listen() -> None:
            while socket.exists():
                await asyncio.sleep(0.001)  # until the engine ends
            while (message := await channel.receive()) is not None:
                read.append(message)

        return asyncio.create_task(listen())

    assert serving(run, scene) == 0
    assert len(read) == count


def test_a_model_that_does_not_load_ends_the_process_with_its_own_status(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(error: Exception) -> int:
        def broken_device(plan: Plan, link: Link) -> None:
            raise error

        return asyncio.run(Worker(whole_plan(run), broken_device).serve())

    assert failing(CannotStart("no such file: weights.gguf", help="tandem pull")) == 3
    assert "no such file: weights.gguf (tandem pull)" in caplog.text
    assert failing(ZeroDivisionError()) == 1
    assert "the device thread failed" in caplog.text


def test_a_plan_without_an_engine_socket_cannot_start(run: Path) -> None:
    with pytest.raises(CannotStart, match="no engine with a socket"):
        Worker(msgspec.structs.replace(whole_plan(run), programs=()))


def test_a_window_that_the_model_does_not_have_is_a_sentence_not_a_traceback(run: Path) -> None:
    link = Link(SimpleQueue(), lambda letters: None, Health(ready=False, state="loading", sentence=""), 0.0)
    with pytest.raises(CannotStart, match=r"a window of 1,048,577 rows; the model in .* has 1,048,576") as caught:
        device.run(whole_plan(run, engine_plan(windows=[(1 << 20) + 1])), link, lambda *asked: ToyModel())
    assert "`window: 1048576`" in str(caught.value.help)


def test_a_role_works_between_two_passes_and_the_answer_is_the_same(run: Path) -> None:
    model = Stalling()
    long = 60.0  # seconds: nobody's turn is over before he gives it back

    async def scene(socket: Path) -> None:
        await ready(socket)
        channel = await connect(socket)
        async with turn(socket, long, when_idle=True):
            before = len(model.passes)
            channel.send(ask("a", max_tokens=6))
            await health(socket, lambda answer: answer.running == 1)
            assert len(model.passes) == before, "the device is the role's"
        assert text(await story(channel, "a")) == alone(ask("a", max_tokens=6))
        channel.send(ask("b", max_tokens=ENDLESS))
        while not isinstance(await channel.receive(), Tokens):
            pass
        with pytest.raises(NoTurn, match="slot 0 is busy"):
            async with turn(socket, long, when_idle=True):
                pass
        with pytest.raises(NoTurn, match="not there"):
            async with turn(socket.with_name("nowhere"), long, when_idle=True):
                pass
        channel.close()

    assert serving(run, scene, model, whole_plan(run, endless_plan([64]))) == 0


def test_what_a_turn_says_leaves_as_one_piece_a_peer(run: Path) -> None:
    """A round writes a token of every slot: their reader is woken once."""

    class Heard:
        def __init__(self, is_gone: bool = False) -> None:
            self.pieces: list[tuple[Message, ...]] = []
            self.is_gone = is_gone

        def send(self, *messages: Message) -> None:
            if self.is_gone:
                raise ChannelClosed("the peer is gone")
            self.pieces.append(messages)

    async def deliver() -> None:
        worker = Worker(whole_plan(run), lambda plan, link: None)
        await worker.serve()
        near, gone, far = Heard(), Heard(is_gone=True), Heard()
        worker._channels.update({1: near, 2: gone, 3: far})  # type: ignore[dict-item]
        said = [Tokens("a", (5,)), Tokens("x", (6,)), Tokens("b", (7,)), Tokens("c", (8,))]
        worker._deliver([Sent(peer, message) for peer, message in zip((1, 2, 3, 1), said, strict=True)])
        assert near.pieces == [(said[0], said[3])]
        assert far.pieces == [(said[2],)]
        assert set(worker._channels) == {1, 3}

    asyncio.run(deliver())
