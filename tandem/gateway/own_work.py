"""What the appliance itself asks the big model: short, behind every client, and given up rather than waited for."""

from __future__ import annotations

import asyncio
from typing import Final

from tandem.contract.messages import Finished, FinishReason, Generate, Progress, Refused, RequestState, Tokens
from tandem.gateway.engine_client import EngineAway, EngineClient
from tandem.gateway.inbox import Happening, Signal

_WAITS: Final = frozenset({RequestState.QUEUED, RequestState.WAITING_MEMORY})


class NotWritten(Exception):
    """`str()` is one word for the ledger: busy, late, refused, away."""


async def write(engine: EngineClient, ask: Generate, within: float) -> list[int]:
    """The tokens of the whole answer. Raises `NotWritten`; at once where it would have to wait for a slot."""
    inbox: asyncio.Queue[Happening] = asyncio.Queue()
    written: list[int] = []
    try:
        engine.submit(ask, inbox.put_nowait)
        async with asyncio.timeout(within):
            while True:
                match await inbox.get():
                    case Tokens(tokens=tokens):
                        written += tokens
                    case Finished(reason=FinishReason.STOP | FinishReason.LENGTH):
                        return written
                    case Progress(state=state) if state in _WAITS:
                        raise NotWritten("busy")
                    case Refused() | Finished():
                        raise NotWritten("refused")
                    case Signal.ENGINE_LOST:
                        raise NotWritten("away")
    except TimeoutError:
        raise NotWritten("late") from None
    except EngineAway:
        raise NotWritten("away") from None
    finally:
        engine.abandon(ask.id)
