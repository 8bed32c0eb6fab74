"""Messages over a unix socket: a 4-byte big-endian length, then msgpack.

A channel belongs to one asyncio loop. The peer's death is seen at once: `receive` returns None at end of file.
Sending does not wait for the peer to read; a peer that stops reading is cut once `MAX_UNSENT` bytes wait for it,
so that one stuck process cannot fill another's memory.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tandem.contract.messages import AnyMessage, AskHealth, Health, Message, decode, encode
from tandem.units import MIB

MAX_FRAME: Final = 64 * MIB
MAX_UNSENT: Final = 64 * MIB
_LENGTH: Final = struct.Struct(">I")


class ChannelClosed(ConnectionError):
    """The peer is gone."""


class Channel:
    """One connection. `send` from the loop's thread only."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> None:
        """Queue one message. Raises `ChannelClosed` when the peer is gone or no longer reads."""
        if self._writer.is_closing():
            raise ChannelClosed("the peer is gone")
        data = encode(message)
        self._writer.write(_LENGTH.pack(len(data)) + data)
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT:
            self._writer.transport.abort()
            raise ChannelClosed("the peer does not read")

    async def receive(self) -> AnyMessage | None:
        """The next message, or None when the peer closed. A frame that is no message ends the connection."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > MAX_FRAME:
                raise ChannelClosed(f"a frame of {length} bytes is over the limit of {MAX_FRAME}")
            return decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            return None

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
        self._writer.close()

    async def wait_closed(self) -> None:
        """After `close`: until what was sent has left, or the peer is gone."""
        with suppress(ConnectionError):
            await self._writer.wait_closed()


async def connect(path: Path) -> Channel:
    """Raises `OSError` when nobody listens."""
    return Channel(*await asyncio.open_unix_connection(str(path)))


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

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer)
        try:
            await handler(channel)
        except asyncio.CancelledError:
            pass  # only ever at the end of the process; asyncio would log it as a failure of ours
        finally:
            channel.close()

    server = await asyncio.start_unix_server(run, str(path))
    path.chmod(0o600)
    return server
