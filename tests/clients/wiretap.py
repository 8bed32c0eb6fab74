"""Stands between a client and the appliance and keeps what either said, for what neither of them tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Wiretap:
    def __init__(self, url: str) -> None:
        self.url = url
        self.asked = bytearray()
        self.answered = bytearray()


@asynccontextmanager
async def tapping(port: int) -> AsyncIterator[Wiretap]:
    """`url` leads to the appliance at `port` of this machine."""
    running: set[asyncio.Task[None]] = set()

    async def serve(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        server, on = await asyncio.open_connection("127.0.0.1", port)
        ways = (_pass(client, on, tap.asked), _pass(server, back, tap.answered))
        running.update(tasks := [asyncio.create_task(way) for way in ways])
        await asyncio.wait(tasks)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    tap = Wiretap(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    try:
        yield tap
    finally:
        listening.close()
        for task in running:
            task.cancel()


async def _pass(come: asyncio.StreamReader, go: asyncio.StreamWriter, kept: bytearray) -> None:
    """Until either side hangs up."""
    try:
        while data := await come.read(1 << 16):
            kept += data
            go.write(data)
            await go.drain()
    except ConnectionError:
        pass
    finally:
        go.close()
