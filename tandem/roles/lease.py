"""The turn of a shared device: the engine grants it between two of its own passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

from tandem.contract.channel import ChannelClosed, connect
from tandem.contract.messages import AskLease, Lease, ReturnLease

_ids: Final = count(1)


class NoTurn(Exception):
    """The engine keeps its turn, is away, or did not answer in time."""


@asynccontextmanager
async def turn(engine: Path, seconds: float, when_idle: bool) -> AsyncIterator[None]:
    """Inside, the device is ours, for `seconds` at most. Raises `NoTurn`.

    The turn ends with the connection, so that a role that dies gives it back.
    """
    id = str(next(_ids))
    try:
        async with asyncio.timeout(seconds):
            channel = await connect(engine)
    except (OSError, TimeoutError) as error:
        raise NoTurn("the engine is not there") from error
    try:
        try:
            answer = await channel.ask(AskLease(id, seconds, when_idle), seconds)
        except (ChannelClosed, TimeoutError) as error:
            raise NoTurn("the engine gave no turn in time") from error
        if not isinstance(answer, Lease) or not answer.granted:
            raise NoTurn(answer.sentence if isinstance(answer, Lease) else "the engine speaks of something else")
        try:
            yield
        finally:
            with suppress(ChannelClosed):
                channel.send(ReturnLease(id))
    finally:
        channel.close()
