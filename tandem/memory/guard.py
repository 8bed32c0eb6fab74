"""The last thing before the kernel: memory falls through the hard floor faster than the ladder answers.

A commit that is refused ends the request that asked. This is for memory that somebody else takes: then a request
that asks for nothing must end too, before the kernel ends all of them. Pure: readings and the time come in.

It acts at the boundary between two passes, on the thread that owns the slots. No other place can: memory behind a
slot's rows may only go when no pass reads them, and a pass cannot be left in its middle.
"""

from __future__ import annotations

from typing import Final

HORIZON: Final = 3.0  # seconds; when memory would be gone by then there is no time for another look
SETTLE: Final = 1.0  # seconds in which what an act returns becomes visible; one act at a time
LAST_SHARE: Final = 4  # below a quarter of the hard floor it acts however slowly memory falls


class Guard:
    """Follows readings of what is available, oldest first."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None
        self._quiet_until = 0.0

    def must_act(self, available: int, hard_floor: int, now: float) -> bool:
        """Whether something has to end now, after the ladder gave all it could. Bytes, and seconds on any clock."""
        before, self._last = self._last, (now, available)
        if available >= hard_floor or now < self._quiet_until:
            return False
        return available < hard_floor // LAST_SHARE or _is_gone_soon(before, available, now)

    def acted(self, now: float) -> None:
        self._quiet_until = now + SETTLE


def _is_gone_soon(before: tuple[float, int] | None, available: int, now: float) -> bool:
    if before is None or now <= before[0]:
        return False
    fall = (before[1] - available) / (now - before[0])  # bytes a second
    return fall > 0 and available / fall < HORIZON
