"""The gateway's parts, made once from the plan, and whether it takes new requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tandem.contract.plan import Live, Plan
from tandem.gateway.accounting import Account
from tandem.gateway.auth import Keys
from tandem.gateway.conducting import Conductor
from tandem.gateway.director_client import DirectorView
from tandem.gateway.engine_client import EngineClient, EngineState
from tandem.gateway.errors import RETRY_SOON, ApiError
from tandem.gateway.metrics import Metrics
from tandem.gateway.prompts import Prompts
from tandem.gateway.quota import Quota
from tandem.gateway.role_client import RoleClient
from tandem.gateway.systemone import SystemOne
from tandem.gateway.why import Misses
from tandem.ledger.ledger import Ledger
from tandem.text.tokenizer import Tokenizer

_log = logging.getLogger("tandem.gateway")

# What a client hears while the engine takes no requests: code and seconds until it may try again. An engine that
# seems hung still takes them: a box under load may only be slow, and one that is truly stuck is restarted, which every
# request then hears.
_CLOSED: Final[dict[EngineState, tuple[str, float]]] = {
    EngineState.AWAY: ("loading", RETRY_SOON),
    EngineState.LOADING: ("loading", RETRY_SOON),
    EngineState.DRAINING: ("draining", RETRY_SOON),
    EngineState.FAILED: ("engine_failed", 10.0),
}
_LAST_WORD: Final = 0.5  # seconds a request waits for it before it is refused


class Service:
    """Raises `ValueError` when the plan names no engine."""

    def __init__(self, plan: Plan, tokenizer: Tokenizer) -> None:
        self.plan = plan
        self.started_at = time.time()
        self.in_flight = 0
        self._went_idle = asyncio.Event()
        self.is_stopping = False
        self.engine = EngineClient(_socket_of(plan, "engine"))
        self.director = DirectorView(plan.paths.director_socket, plan.live, self._take_live)
        self.keys = Keys(plan.live.keys)
        self.quota = Quota()
        self.prompts = Prompts(tokenizer, plan.gateway.window, plan.gateway.model, plan.gateway.calls)
        self.roles = RoleClient(Path(plan.paths.run), lambda: self.director.state)
        self.systemone = SystemOne(self.roles)
        self.conductor = Conductor(
            self.roles, self.engine, self.prompts, plan.gateway.model, state=Path(plan.paths.state)
        )
        self.metrics = Metrics(lambda: self.engine.health, lambda: self.director.state)
        self.misses = Misses(tokenizer)
        self.ledger = Ledger(Path(plan.gateway.ledger), plan.live.ledger_days)

    @property
    def live(self) -> Live:
        return self.director.live

    @property
    def is_draining(self) -> bool:
        return self.is_stopping or self.director.is_draining

    def check_model(self, name: str | None) -> None:
        """None is the one model there is. Raises `ApiError` 404."""
        gateway = self.plan.gateway
        if name is not None and name != gateway.model and name not in gateway.aliases:
            sentence = f"there is no model of this name here; this appliance serves `{gateway.model}`"
            raise ApiError(404, "model_not_found", sentence, param="model")

    async def check_open(self) -> None:
        """Raises `ApiError` 503 with the reason while no new request is taken.

        Before a refusal the engine is asked anew: it may have become ready since its last word, and whoever was just
        told so must not be turned away.
        """
        if self.is_draining:
            raise ApiError(503, "draining", "running requests are finished first", retry_after=RETRY_SOON)
        status = self.engine.status
        if status.state in _CLOSED:
            status = await self.engine.refresh(0.0, _LAST_WORD)
        if status.state in _CLOSED:
            code, wait = _CLOSED[status.state]
            raise ApiError(503, code, status.sentence or "the model loads", retry_after=wait, source="engine")

    async def wait_idle(self) -> None:
        """Until no request is in flight."""
        while self.in_flight:
            self._went_idle.clear()
            await self._went_idle.wait()

    @contextmanager
    def counted(self, account: Account) -> Iterator[None]:
        """One request, from its arrival to its row in the ledger."""
        self.in_flight += 1
        self.metrics.in_flight.inc()
        try:
            yield
        finally:
            self.in_flight -= 1
            self._went_idle.set()
            self.metrics.in_flight.dec()
            row = account.row(self.plan.gateway.model, time.monotonic())
            if account.missed is not None:
                self.misses.note(account.id, account.missed)
            self.metrics.count(row)
            self.ledger.write(row)
            _log.info(
                "%s %d %s slot=%s prompt=%d cached=%d written=%d ttft=%s total=%.3f",
                row.route,
                row.status,
                row.finish,
                row.slot,
                row.prompt_tokens,
                row.cached_tokens,
                row.completion_tokens,
                "-" if row.ttft_seconds is None else f"{row.ttft_seconds:.3f}",
                row.total_seconds,
            )

    def _take_live(self, live: Live) -> None:
        self.keys = Keys(live.keys)
        self.ledger.days = live.ledger_days


def _socket_of(plan: Plan, name: str) -> Path:
    program = plan.program(name)
    if program is None or program.socket is None:
        raise ValueError(f"the plan has no socket for the {name}")
    return Path(program.socket)
