"""Asks the narrator, now and then, for a line about one streamed request while its answer has not begun.

It is shown what a person at the screen could see: the beginning of the task, our own line, the end of the thinking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tandem.contract.messages import Narrate, Narrated
from tandem.gateway.call import HEARD, Call
from tandem.gateway.role_client import RoleClient

FIRST: Final = 1.5  # seconds of waiting before anything is narrated
EVERY: Final = 5.0  # between two lines
WITHIN: Final = 2.0  # for one


async def narrate(roles: RoleClient, call: Call, id: str, task: str, tell: Callable[[Narrated], None]) -> None:
    """Until cancelled. While the narrator is busy, held or late, the line in our own words stands."""
    await asyncio.sleep(FIRST)
    while True:
        if (status := call.status).doing is not None:
            heard = "".join(choice.heard for choice in call.choices)[-HEARD:]
            said = await roles.narrate(Narrate(id, task[:HEARD], status.sentence, heard, WITHIN))
            if isinstance(said, Narrated):
                tell(said)
        await asyncio.sleep(EVERY)
