"""The route of the deciders. The handler only reads and answers; see `systemone`."""

from __future__ import annotations

import time
from typing import Any, Final

from litestar import Request, Response, post
from litestar.datastructures import State

from tandem.gateway import statuses
from tandem.gateway.asgi import caller_of, read_body
from tandem.gateway.reading import read
from tandem.gateway.systemone import BODY_WITHIN, MAX_BODY, SystemOneRequest, SystemOneResult

_STATUSES: Final = statuses.reading() | statuses.errors(
    _413="The body, or something in it, is larger than is taken; `param` names it",
    _422="A question cannot be asked; `param` names it",
    _429="The key's limit is reached; `Retry-After` says when to come back",
    _503="No decider can answer now: none is loaded, or all are busy; `Retry-After` says when to come back",
)


@post("/v1/systemone", status_code=200, responses=_STATUSES)
async def systemone(request: Request[Any, Any, State], state: State) -> Response[SystemOneResult]:
    """Answer typed questions about a state, with probabilities. A small model does, in one pass."""
    service = state.service
    service.quota.arrive(caller_of(request.scope), False, service.live.limits, time.monotonic())
    with service.systemone.admitted():
        limit = min(MAX_BODY, service.live.limits.max_body)
        wanted, _ = read(SystemOneRequest, await read_body(request.scope, request.receive, limit, BODY_WITHIN))
        result, seconds = await service.systemone.answer(wanted)
    took = f"{seconds * 1000:.2f}"
    return Response(result, headers={"Server-Timing": f"inference;dur={took}", "X-Inference-Time-Ms": took})
