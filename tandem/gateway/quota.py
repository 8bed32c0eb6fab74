"""How much one API key may ask for: requests at once, and requests a minute.

A task comes together with its conversation's turn, from clients that do not know of each other's requests; tasks are
counted for themselves, so that neither takes the other's place. Where no keys are declared nobody is told from
another, and neither limit acts. Time is an argument.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from tandem.contract.plan import Limits
from tandem.gateway.auth import Caller
from tandem.gateway.errors import ApiError

MINUTE: Final = 60.0
RETRY: Final = 5.0  # seconds; nobody knows when a running request ends


Side: TypeAlias = tuple[str, bool]  # of which scope; whether it is a task


class Quota:
    def __init__(self) -> None:
        self._arrivals: dict[Side, deque[float]] = {}
        self._running: Counter[Side] = Counter()

    def arrive(self, caller: Caller, is_task: bool, limits: Limits, now: float) -> None:
        """Count a request. Raises `ApiError` 429, and counts nothing, when it is one too many for this minute."""
        most = limits.per_key_requests
        if most is None or not caller.scope:
            return
        arrivals = self._arrivals.setdefault((caller.scope, is_task), deque())
        while arrivals and arrivals[0] <= now - MINUTE:
            arrivals.popleft()
        if len(arrivals) >= most:
            sentence = f"`limits.per_key_requests` lets one key send {most} requests a minute, and this is one more"
            last = arrivals[len(arrivals) - most]  # once it is a minute old, the next one may come
            raise ApiError(429, "rate_limit_exceeded", sentence, retry_after=last + MINUTE - now)
        arrivals.append(now)

    @contextmanager
    def running(self, caller: Caller, is_task: bool, limits: Limits) -> Iterator[None]:
        """While a request is at the engine. Raises `ApiError` 429."""
        if not caller.scope:
            yield
            return
        side, most = (caller.scope, is_task), limits.per_key_running
        if most is not None and self._running[side] >= most:
            sentence = f"`limits.per_key_running` lets one key have {most} requests here at once, and this is one more"
            raise ApiError(429, "rate_limit_exceeded", sentence, retry_after=RETRY)
        self._running[side] += 1
        try:
            yield
        finally:
            self._running[side] -= 1
            if not self._running[side]:
                del self._running[side]
