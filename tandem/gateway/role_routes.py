"""The routes of the deciders. Handlers only read and answer; see `systemone` and `conductor.agreement`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from litestar import Request, Response, get, post
from litestar.datastructures import State
from msgspec import Struct

from tandem.conductor.agreement import Agreement, agreements
from tandem.conductor.verdicts import read_verdicts
from tandem.gateway import statuses
from tandem.gateway.accounting import Account, told
from tandem.gateway.asgi import caller_of, client_of, read_body
from tandem.gateway.reading import read
from tandem.gateway.systemone import BODY_WITHIN, MAX_BODY, SystemOneRequest, SystemOneResult

ROUTE: Final = "/v1/systemone"
_STATUSES: Final = statuses.reading() | statuses.errors(
    _413="The body, or something in it, is larger than is taken; `param` names it",
    _422="A question cannot be asked; `param` names it",
    _429="The key's limit is reached; `Retry-After` says when to come back",
    _503="No decider can answer now: none is loaded, or all are busy; `Retry-After` says when to come back",
)


@post(ROUTE, status_code=200, responses=_STATUSES)
async def systemone(request: Request[Any, Any, State], state: State) -> Response[SystemOneResult]:
    """Answer typed questions about a state, with probabilities. A small model does, in one pass."""
    service, account = state.service, Account(f"systemone-{uuid4().hex}", ROUTE, time.time(), time.monotonic())
    account.caller, account.client = caller_of(request.scope), client_of(request.scope)
    account.request_id = request.scope["state"].get("request_id", "")
    with service.counted(account), told(account):
        service.quota.arrive(account.caller, False, service.live.limits, time.monotonic())
        with service.systemone.admitted():
            limit = min(MAX_BODY, service.live.limits.max_body)
            wanted, _ = read(SystemOneRequest, await read_body(request.scope, request.receive, limit, BODY_WITHIN))
            result, seconds = await service.systemone.answer(wanted)
        account.was_at_once, account.decider = True, result.model
        account.decider_tokens = result.usage.input_tokens
    took = f"{seconds * 1000:.2f}"
    return Response(result, headers={"Server-Timing": f"inference;dur={took}", "X-Inference-Time-Ms": took})


class ShadowReport(Struct, frozen=True):
    agreements: list[Agreement]


@get("/v1/shadow", responses=statuses.closed(), sync_to_thread=True)
def shadow(state: State) -> ShadowReport:
    """How far deciders, the shadow reader and the big model agree, by question and label; how sure they are of it."""
    return ShadowReport(agreements(read_verdicts(Path(state.service.plan.paths.state))))
