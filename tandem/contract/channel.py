"""Messages over a unix socket: a 4-byte big-endian length, then msgpack.

A channel belongs to one asyncio loop. The peer's death is seen at once: `receive` returns None at end of file.
Sending does not wait for the peer to read; a peer that stops reading is cut once `MAX_UNSENT` bytes wait for it,
so that one stuck process cannot fill another's memory. Who does not take what it is sent stops reading.

Frames are found as bytes come in, without a stream and a task between: there is a message a token.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, cast

from tandem.contract.messages import AnyMessage, AskHealth, Health, Message, decode, encode
from tandem.units import MIB

MAX_FRAME: Final = 64 * MIB
MAX_UNSENT: Final = 64 * MIB
MAX_UNTAKEN: Final = 1024  # messages that may wait here before no more are read
_LENGTH: Final = struct.Struct(">I")


class ChannelClosed(ConnectionError):
    """The peer is gone."""


class Channel(asyncio.Protocol):
    """One connection. `send` from the loop's thread only; one task receives."""

    def __init__(self, connected: Callable[[Channel], None] = lambda channel: None) -> None:
        self._connected = connected
        self._transport: asyncio.Transport
        self._closed: asyncio.Future[None]
        self._bytes = bytearray()  # that are no whole frame yet
        self._frames = deque[bytes]()  # that nobody has taken yet
        self._take: Callable[[AnyMessage], None] | None = None
        self._news: asyncio.Future[None] | None = None  # someone waits for a frame or the end
        self._fault: Exception | None = None  # after which nothing is read
        self._is_ended = False  # nothing more comes
        self._is_paused = False

    def send(self, *messages: Message) -> None:
        """Queue messages, as one piece. Raises `ChannelClosed` when the peer is gone or no longer reads."""
        if self._transport.is_closing():
            raise ChannelClosed("the peer is gone")
        self._transport.write(b"".join(map(_frame, messages)))
        if self._transport.get_write_buffer_size() > MAX_UNSENT:
            self._transport.abort()
            raise ChannelClosed("the peer does not read")

    async def receive(self) -> AnyMessage | None:
        """The next message, or None when the peer closed. A frame that is no message ends the connection."""
        while not self._frames:
            if self._has_ended():
                return None
            await self._wait_for_news()
        frame = self._frames.popleft()
        if self._is_paused and not self._frames:
            self._is_paused = False
            self._transport.resume_reading()
        return decode(frame)

    async def receive_all(self, take: Callable[[AnyMessage], None]) -> None:
        """Until the peer closes, `take` gets every message in the moment in which it comes. Raises as `receive` does,
        and what `take` raises."""
        while self._frames:
            take(decode(self._frames.popleft()))
        self._take = take
        while not self._has_ended():
            await self._wait_for_news()

    async def ask(self, message: Message, timeout: float) -> AnyMessage:
        """Send and take the next message; for conversations of one question at a time.

        Raises `ChannelClosed` when the peer closes first and `TimeoutError` after `timeout` seconds.
        """
        self.send(message)
        answer = await asyncio.wait_for(self.receive(), timeout)
        if answer is None:
            raise ChannelClosed("the peer closed before it answered")
        return answer

    def close(self) -> None:
        self._transport.close()

    async def wait_closed(self) -> None:
        """After `close`: until what was sent has left, or the peer is gone."""
        await asyncio.shield(self._closed)

    # --- what the loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._closed = asyncio.get_running_loop().create_future()
        self._connected(self)

    def data_received(self, data: bytes) -> None:
        if self._fault is not None:
            return
        self._bytes += data
        try:
            for frame in self._cut():
                if self._take is None:
                    self._frames.append(frame)
                else:
                    self._take(decode(frame))
        except Exception as fault:  # whoever receives is told
            self._fault = fault
        if len(self._frames) > MAX_UNTAKEN and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        if self._take is None or self._fault is not None:
            self._tell()

    def eof_received(self) -> bool:
        """The peer may still read: what it is owed leaves before `close`."""
        self._is_ended = True
        self._tell()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ended = True
        self._tell()
        if not self._closed.done():
            self._closed.set_result(None)

    # --- frames ---

    def _cut(self) -> Iterator[bytes]:
        """The whole frames, in order; what is left is the beginning of one. Raises `ChannelClosed`."""
        at = 0
        while len(self._bytes) >= at + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes, at)
            if length > MAX_FRAME:
                raise ChannelClosed(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
            start, end = at + _LENGTH.size, at + _LENGTH.size + length
            if len(self._bytes) < end:
                break
            yield bytes(self._bytes[start:end])
            at = end
        del self._bytes[:at]

    def _has_ended(self) -> bool:
        """Raises what ended the reading, unless that was the peer."""
        if self._fault is not None:
            raise self._fault
        return self._is_ended

    async def _wait_for_news(self) -> None:
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


def _frame(message: Message) -> bytes:
    data = encode(message)
    return _LENGTH.pack(len(data)) + data


async def connect(path: Path) -> Channel:
    """Raises `OSError` when nobody listens."""
    _, channel = await asyncio.get_running_loop().create_unix_connection(Channel, str(path))
    return channel


async def ask_health(path: Path, timeout: float) -> Health:
    """One connection, one question. Raises `OSError` or `TimeoutError` when there is no answer."""
    channel = await connect(path)
    try:
        answer = await channel.ask(AskHealth(), timeout)
    finally:
        channel.close()
    if not isinstance(answer, Health):
        raise ChannelClosed(f"asked for health, got {type(answer).__name__}")
    return answer


Handler = Callable[[Channel], Awaitable[None]]


async def serve(path: Path, handler: Handler) -> asyncio.Server:
    """Listen on `path` (mode 0600) and run `handler` for each connection; a stale socket file is replaced."""
    path.unlink(missing_ok=True)
    loop = asyncio.get_running_loop()
    conversations = set[asyncio.Task[None]]()

    async def run(channel: Channel) -> None:
        try:
            await handler(channel)
        except asyncio.CancelledError:
            pass  # only ever at the end of the process; asyncio would log it as a failure of ours
        finally:
            channel.close()

    def begin(channel: Channel) -> None:
        conversation = loop.create_task(run(channel))
        conversations.add(conversation)
        conversation.add_done_callback(conversations.discard)

    server = await loop.create_unix_server(lambda: Channel(begin), str(path))
    path.chmod(0o600)
    return server
