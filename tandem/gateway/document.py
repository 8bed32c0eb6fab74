"""The OpenAPI document: paths and answers as Litestar routes them, bodies from the structs that validate them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, Reference, SecurityScheme
from msgspec import Struct

from tandem.gateway.answers import ChatCompletion, Completion
from tandem.gateway.anthropic import MessagesAnswer
from tandem.gateway.anthropic_request import CountRequest, MessagesRequest
from tandem.gateway.auth import ROUTES, Access
from tandem.gateway.ollama import OllamaAnswer
from tandem.gateway.ollama_models import ShowRequest
from tandem.gateway.ollama_request import OllamaChatRequest, OllamaGenerateRequest
from tandem.gateway.openai import ChatRequest, CompletionRequest
from tandem.gateway.responses import ResponsesAnswer
from tandem.gateway.responses_request import ResponsesRequest
from tandem.gateway.systemone import SystemOneRequest
from tandem.gateway.tokens import DetokenizeRequest, TokenizeRequest


class Body(Struct, frozen=True):
    """What a route reads, and answers where the framework does not see it; `stream` is the type of an answer that is
    sent as it is written."""

    request: type[Struct]
    answer: type[Struct] | None = None
    stream: str | None = None


_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"

# The framework does not read these bodies itself, so it cannot describe them.
_BODIES: Final = {
    "/v1/chat/completions": Body(ChatRequest, ChatCompletion, _EVENTS),
    "/v1/completions": Body(CompletionRequest, Completion, _EVENTS),
    "/v1/responses": Body(ResponsesRequest, ResponsesAnswer, _EVENTS),
    "/v1/messages": Body(MessagesRequest, MessagesAnswer, _EVENTS),
    "/v1/messages/count_tokens": Body(CountRequest),
    "/v1/systemone": Body(SystemOneRequest),
    "/api/chat": Body(OllamaChatRequest, OllamaAnswer, _LINES),
    "/api/generate": Body(OllamaGenerateRequest, OllamaAnswer, _LINES),
    "/api/show": Body(ShowRequest),
    "/tokenize": Body(TokenizeRequest),
    "/detokenize": Body(DetokenizeRequest),
    "/apply-template": Body(ChatRequest),
}
_STREAMS: Final[dict[str, dict[str, Any]]] = {
    _EVENTS: {
        "type": "object",
        "description": "With `stream`: one event.",
        "required": ["data"],
        "properties": {
            "event": {"type": "string", "description": "What happened, where the API names its events."},
            "data": {
                "type": "string",
                "description": "JSON of what happened or of an error; OpenAI's ends in `[DONE]`",
            },
        },
    },
    _LINES: {"description": "Unless `stream` is false: a line of JSON for each piece of the answer, or for an error."},
}
_KEYS: Final[dict[str, SecurityScheme | Reference]] = {
    "bearer": SecurityScheme(type="http", scheme="bearer"),
    "x-api-key": SecurityScheme(type="apiKey", name="x-api-key", security_scheme_in="header"),
}


def describe(handlers: Sequence[HTTPRouteHandler]) -> bytes:
    """JSON. The application itself is made without the framework's documentation routes; this reads a second one."""
    config = OpenAPIConfig(
        title="tandem",
        version=version("tandem-appliance"),
        components=Components(security_schemes=_KEYS),
        use_handler_docstrings=True,
    )
    described = Litestar(list(handlers), openapi_config=config, logging_config=None)
    document: dict[str, Any] = described.openapi_schema.to_schema()
    kinds = [kind for body in _BODIES.values() for kind in (body.request, body.answer) if kind is not None]
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    named = document["components"].setdefault("schemas", {})
    assert not named.keys() & schemas.keys(), "two structs of one name"
    named |= schemas
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(path, operation)
    return msgspec.json.encode(_any_of(document))


def _complete(path: str, operation: dict[str, Any]) -> None:
    if ROUTES.get(path.replace("{id}", "{id:path}"), Access.USER) is not Access.OPEN:
        operation["security"] = [{name: []} for name in _KEYS]
    if operation.get("parameters"):
        operation["responses"].pop("400", None)  # the framework expects one wherever a path has a parameter
    if (body := _BODIES.get(path)) is None:
        return
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _reference(body.request)}}}
    if body.answer is not None:
        answered = {"application/json": {"schema": _reference(body.answer)}}
        streamed = {body.stream: {"schema": _STREAMS[body.stream]}} if body.stream is not None else {}
        operation["responses"]["200"]["content"] = answered | streamed


def _any_of(part: Any) -> Any:
    """A known caller's health is also a stranger's: unions here say "at least one", where the framework writes
    "exactly one"."""
    if isinstance(part, dict):
        return {"anyOf" if key == "oneOf" else key: _any_of(value) for key, value in part.items()}
    return [_any_of(value) for value in part] if isinstance(part, list) else part


def _reference(kind: type[Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
