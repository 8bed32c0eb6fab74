"""Frames over a real unix socket, however the bytes are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from tandem.contract import channel as module
from tandem.contract.channel import Channel, ChannelClosed, connect, serve
from tandem.contract.messages import AnyMessage, AskHealth, Cancel, Drain, Resume, Tokens, encode

Work = Callable[[Channel, Channel], Awaitable[None]]
SENT = [Cancel("a"), Drain(), Tokens("b", tuple(range(300))), Cancel("c"), Resume()]


def between(path: Path, work: Work) -> None:
    """Both ends of one connection, in one loop."""

    async def run() -> None:
        arrived: asyncio.Queue[Channel] = asyncio.Queue()

        async def hold(channel: Channel) -> None:
            arrived.put_nowait(channel)
            await over.wait()

        over = asyncio.Event()
        server = await serve(path / "s", hold)
        near = await connect(path / "s")
        far = await arrived.get()
        try:
            await asyncio.wait_for(work(near, far), 20)
        finally:
            over.set()
            near.close()
            server.close()

    asyncio.run(run())


def framed(*messages: AnyMessage) -> bytes:
    return b"".join(len(data).to_bytes(4, "big") + data for data in map(encode, messages))


def test_messages_come_whole_and_in_order_however_they_are_cut(tmp_path: Path) -> None:
    async def work(near: Channel, far: Channel) -> None:
        data = framed(*SENT)
        for size in (1, 3, 7, len(data)):
            for at in range(0, len(data), size):
                near._transport.write(data[at : at + size])
                await asyncio.sleep(0)
            assert [await far.receive() for _ in SENT] == SENT

    between(tmp_path, work)


def test_what_is_sent_together_comes_as_if_sent_one_by_one(tmp_path: Path) -> None:
    async def work(near: Channel, far: Channel) -> None:
        near.send(*SENT)
        near.send(SENT[0])
        assert [await far.receive() for _ in range(len(SENT) + 1)] == [*SENT, SENT[0]]

    between(tmp_path, work)


def test_what_came_before_the_end_is_still_received(tmp_path: Path) -> None:
    async def work(near: Channel, far: Channel) -> None:
        near.send(*SENT)
        near.close()
        assert [await far.receive() for _ in range(len(SENT) + 1)] == [*SENT, None]
        with pytest.raises(ChannelClosed):
            near.send(Drain())

    between(tmp_path, work)


def test_a_peer_that_has_closed_its_end_may_still_be_answered(tmp_path: Path) -> None:
    async def work(near: Channel, far: Channel) -> None:
        near.send(AskHealth())
        near._transport.write_eof()
        assert (await far.receive(), await far.receive()) == (AskHealth(), None)
        far.send(Drain())
        assert await near.receive() == Drain()

    between(tmp_path, work)


def test_all_that_comes_is_taken_at_once_until_the_end(tmp_path: Path) -> None:
    async def work(near: Channel, far: Channel) -> None:
        near.send(SENT[0])
        await asyncio.sleep(0.01)  # it waits there when the taking begins
        taken: list[AnyMessage] = []
        taking = asyncio.create_task(far.receive_all(taken.append))
        near.send(*SENT[1:])
        near.close()
        await taking
        assert taken == SENT

    between(tmp_path, work)


def test_what_the_taker_raises_ends_the_taking(tmp_path: Path) -> None:
    def refuse(message: AnyMessage) -> None:
        raise ZeroDivisionError

    async def work(near: Channel, far: Channel) -> None:
        taking = asyncio.create_task(far.receive_all(refuse))
        await asyncio.sleep(0.01)
        near.send(*SENT)
        with pytest.raises(ZeroDivisionError):
            await taking

    between(tmp_path, work)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (framed(Drain()) + b"\xff\xff\xff\xff", ChannelClosed),
        (framed(Drain()) + b"\x00\x00\x00\x03abc", msgspec.MsgspecError),
    ],
)
def test_what_is_no_message_is_told_after_those_before_it(tmp_path: Path, sent: bytes, error: type[Exception]) -> None:
    async def work(near: Channel, far: Channel) -> None:
        near._transport.write(sent)
        assert await far.receive() == Drain()
        with pytest.raises(error):
            await far.receive()

    async def taken(near: Channel, far: Channel) -> None:
        near._transport.write(sent)
        heard: list[AnyMessage] = []
        with pytest.raises(error):
            await far.receive_all(heard.append)
        assert heard == [Drain()]

    between(tmp_path, work)
    between(tmp_path, taken)


def test_who_does_not_take_stops_reading_and_then_reads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNTAKEN", 8)

    async def work(near: Channel, far: Channel) -> None:
        many = [Tokens(f"{n}", tuple(range(100_000))) for n in range(40)]
        for message in many:
            near.send(message)
            await asyncio.sleep(0.001)
        assert far._is_paused and len(far._frames) < len(many)
        assert [await far.receive() for _ in many] == many

    between(tmp_path, work)


def test_a_peer_that_does_not_read_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT", 1 << 16)
    monkeypatch.setattr(module, "MAX_UNTAKEN", 1)

    async def work(near: Channel, far: Channel) -> None:
        with pytest.raises(ChannelClosed, match="does not read"):
            for _ in range(1000):
                near.send(Tokens("a", tuple(range(10_000))))
                await asyncio.sleep(0)

    between(tmp_path, work)
