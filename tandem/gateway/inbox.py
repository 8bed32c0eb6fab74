"""Everything that happens to one request, in order, with one reader: the engine, the client and the clock write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, TypeAlias

from tandem.contract.messages import Finished, Narrated, Progress, Refused, Started, Tokens

MAX_BEHIND: Final = 4096  # happenings a client may be behind before its request is given up


class Signal(Enum):
    """What happens besides the engine's messages."""

    ENGINE_LOST = auto()
    CLIENT_LEFT = auto()
    CLIENT_STALLED = auto()  # it stays connected and does not read
    SILENCE = auto()  # nothing was sent for a while
    WAITED_TOO_LONG = auto()
    TOOK_TOO_LONG = auto()
    UNSETTLED = auto()  # the engine did not confirm a cancel


EngineEvent: TypeAlias = Progress | Started | Tokens | Finished | Refused
Happening: TypeAlias = EngineEvent | Narrated | Signal


class Inbox:
    """`put` never waits. Beyond `MAX_BEHIND`, tokens are dropped and `on_stalled` is called, once: the reader itself
    may be stuck in a write that the client does not take."""

    def __init__(self, on_stalled: Callable[[], None]) -> None:
        self._items: list[Happening] = []
        self._reader: asyncio.Future[None] | None = None
        self._on_stalled = on_stalled
        self._is_stalled = False

    def put(self, happening: Happening) -> None:
        if len(self._items) >= MAX_BEHIND and isinstance(happening, Tokens):
            if not self._is_stalled:
                self._is_stalled = True
                self._items.append(Signal.CLIENT_STALLED)
                self._on_stalled()
            return
        self._items.append(happening)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> list[Happening]:
        """All that waits; at least one."""
        if not self._items:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        items, self._items = self._items, []
        return items
