"""The routes. Handlers only choose; the work is in `exchange` and `health`."""

from __future__ import annotations

import logging
from typing import Any, Final

from litestar import Litestar, Request, Response, get, post
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath
from litestar.types import ASGIApp

from tandem.gateway import metrics, statuses
from tandem.gateway.accounting import LEFT
from tandem.gateway.answers import ModelCard, ModelList, ModelMeta
from tandem.gateway.asgi import ClientLeft
from tandem.gateway.chat import Chat
from tandem.gateway.completions import Completions
from tandem.gateway.document import describe
from tandem.gateway.door_routes import DOORS
from tandem.gateway.envelopes import envelope
from tandem.gateway.errors import ApiError, our_fault
from tandem.gateway.exchange import Exchange
from tandem.gateway.health import Ready, Summary, WholeState, readiness, summary_of, whole_state
from tandem.gateway.role_routes import shadow, systemone
from tandem.gateway.service import Service

_log = logging.getLogger("tandem.gateway")


@post("/v1/chat/completions", status_code=200, responses=statuses.generation())
async def chat_completions(state: State) -> ASGIApp:
    """Answer a conversation, at once or as a stream of events."""
    return Exchange(state.service, Chat(state.service.live.api.reasoning))


@post("/v1/completions", status_code=200, responses=statuses.generation())
async def completions(state: State) -> ASGIApp:
    """Continue a text, or a list of token ids, as it stands."""
    return Exchange(state.service, Completions())


@get("/v1/models", responses=statuses.closed())
async def models(state: State) -> ModelList:
    """The one model, with its window and whether it can answer now."""
    return ModelList([_card(state.service)])


@get("/v1/models/{id:path}", responses=statuses.closed() | statuses.errors(_404="There is no model of this name"))
async def model(state: State, id: FromPath[str]) -> ModelCard:
    """The same, asked for by name."""
    state.service.check_model(id.lstrip("/"))
    return _card(state.service)


def _card(service: Service) -> ModelCard:
    plan = service.plan
    return ModelCard(
        id=plan.gateway.model,
        created=int(service.started_at),
        max_model_len=plan.gateway.window,
        context_length=plan.gateway.window,
        meta=ModelMeta(
            n_ctx=plan.gateway.window,
            n_ctx_side=plan.gateway.side_window,
            n_vocab=service.prompts.tokenizer.num_tokens,
            slots=len(plan.engine.slots),
        ),
        status="draining" if service.is_draining else str(service.engine.status.state),
        aliases=list(plan.gateway.aliases),
    )


@get("/livez", responses=statuses.errors(_403="The host or the page's origin is not allowed"))
async def livez() -> dict[str, bool]:
    """Whether this process answers; nothing about the model."""
    return {"alive": True}


_NOT_READY: Final = {503: ResponseSpec(Ready, generate_examples=False, description="A request would not be served now")}


@get("/readyz", responses=statuses.errors(_403="The host or the page's origin is not allowed") | _NOT_READY)
async def readyz(state: State) -> Response[Ready]:
    """Whether a request would be served now; asks the engine."""
    ready = await readiness(state.service)
    return Response(ready, status_code=200 if ready.ready else 503)


_HEALTH: Final[Any] = WholeState | Summary  # the framework takes a union; its annotation does not say so
_NOT_OK: Final = {503: ResponseSpec(_HEALTH, generate_examples=False, description="As 200, not ready")}


@get(
    ["/health", "/v1/health"],
    responses=statuses.errors(_403="The host or the page's origin is not allowed") | _NOT_OK,
)
async def health(request: Request[object, object, State], state: State) -> Response[WholeState | Summary]:
    """How everything stands: the engine, its slots and counters, memory, the last reload. One word without a key."""
    ready = await readiness(state.service)
    is_known = request.scope["state"].get("caller") is not None
    answer = whole_state(state.service, ready) if is_known else summary_of(ready)
    return Response(answer, status_code=200 if ready.ready else 503)


@get("/metrics", responses=statuses.closed(), media_type=metrics.CONTENT_TYPE)
async def prometheus(state: State) -> Response[bytes]:
    """Counters and histograms in Prometheus' text form."""
    return Response(state.service.metrics.render(), media_type=metrics.CONTENT_TYPE)


_OPENAI: Final = (chat_completions, completions, models, model)
_DESCRIBED: Final = (*_OPENAI, livez, readyz, health, prometheus, systemone, shadow, *DOORS)


@get("/openapi.json", include_in_schema=False)
async def document(state: State) -> Response[bytes]:
    """The description of all the above."""
    if "document" not in state:
        state.document = describe(_DESCRIBED)
    return Response(state.document, media_type="application/json")


def make_app(service: Service) -> Litestar:
    return Litestar(
        [*_DESCRIBED, document],
        state=State({"service": service}),
        exception_handlers={
            ApiError: _api_error,
            ClientLeft: _nobody,
            HTTPException: _http_error,
            Exception: _our_error,
        },
        openapi_config=None,
        logging_config=None,
    )


def _api_error(request: Request[object, object, State], error: ApiError) -> Response[bytes]:
    headers = {name.decode(): value.decode() for name, value in error.headers}
    return Response(
        envelope(request.scope["path"], error), status_code=error.status, headers=headers, media_type="application/json"
    )


def _nobody(_: Request[object, object, State], __: ClientLeft) -> Response[bytes]:
    """Nobody is there to read it."""
    return Response(b"", status_code=LEFT)


_CODES: Final = {404: "not_found", 405: "method_not_allowed"}


def _http_error(request: Request[object, object, State], error: HTTPException) -> Response[bytes]:
    """The framework's own refusals, in our envelope."""
    code = _CODES.get(error.status_code, "invalid_request")
    response = _api_error(request, ApiError(error.status_code, code, _SENTENCES.get(code, error.detail)))
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


_SENTENCES: Final = {
    "not_found": "nothing is served under this path; /openapi.json lists what is",
    "method_not_allowed": "this path is served, but not with this method",
}


def _our_error(request: Request[object, object, State], error: Exception) -> Response[bytes]:
    _log.error("%s failed by our fault", request.scope["path"], exc_info=error)
    return _api_error(request, our_fault())
