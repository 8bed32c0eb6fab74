"""What the director says about the appliance: live limits, phase, the last reload. The gateway runs without it, too.

The last word stands while the director is away: it restarts by itself and nothing else is hurt by that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tandem.contract.channel import ChannelClosed, connect
from tandem.contract.messages import ApplianceState, Subscribe
from tandem.contract.plan import Live

_log = logging.getLogger("tandem.gateway.director")

_RETRY: Final = 0.5
NO_NEW_REQUESTS: Final = frozenset({"draining", "stopping"})


class DirectorView:
    """`live` starts as the plan's and follows the director's frames."""

    def __init__(self, socket: Path, live: Live, on_live: Callable[[Live], None]) -> None:
        self.live = live
        self.state: ApplianceState | None = None
        self._socket = socket
        self._on_live = on_live

    @property
    def is_draining(self) -> bool:
        return self.state is not None and self.state.phase in NO_NEW_REQUESTS

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except (OSError, ChannelClosed, msgspec.MsgspecError) as error:
                _log.debug("the director does not answer: %s", error)
            await asyncio.sleep(_RETRY)

    async def _follow(self) -> None:
        channel = await connect(self._socket)
        try:
            channel.send(Subscribe())
            while (message := await channel.receive()) is not None:
                if isinstance(message, ApplianceState):
                    self._hear(message)
        finally:
            channel.close()

    def _hear(self, state: ApplianceState) -> None:
        self.state = state
        live = msgspec.json.decode(state.live, type=Live)
        if live != self.live:
            _log.info("live settings changed")
            self.live = live
            self._on_live(live)
