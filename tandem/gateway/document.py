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
from tandem.gateway.auth import ROUTES, Access
from tandem.gateway.openai import ChatRequest, CompletionRequest

# The framework does not read these bodies itself, so it cannot describe them.
_BODIES: Final[dict[str, tuple[type[Struct], type[Struct]]]] = {
    "/v1/chat/completions": (ChatRequest, ChatCompletion),
    "/v1/completions": (CompletionRequest, Completion),
}
_EVENT: Final = {
    "type": "object",
    "description": "With `stream`: one event.",
    "required": ["data"],
    "properties": {"data": {"type": "string", "description": "JSON of a chunk or of an error; `[DONE]` last"}},
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
    kinds = [kind for pair in _BODIES.values() for kind in pair]
    _, schemas = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    document["components"].setdefault("schemas", {}).update(schemas)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(path, operation)
    return msgspec.json.encode(_any_of(document))


def _complete(path: str, operation: dict[str, Any]) -> None:
    if ROUTES.get(path.replace("{id}", "{id:path}"), Access.USER) is not Access.OPEN:
        operation["security"] = [{name: []} for name in _KEYS]
    if path not in _BODIES:
        operation["responses"].pop("400", None)  # the framework expects one wherever a path has a parameter
        return
    body, answer = (_reference(kind) for kind in _BODIES[path])
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    operation["responses"]["200"]["content"] = {
        "application/json": {"schema": answer},
        "text/event-stream": {"schema": _EVENT},
    }


def _any_of(part: Any) -> Any:
    """A known caller's health is also a stranger's: unions here say "at least one", where the framework writes
    "exactly one"."""
    if isinstance(part, dict):
        return {"anyOf" if key == "oneOf" else key: _any_of(value) for key, value in part.items()}
    return [_any_of(value) for value in part] if isinstance(part, list) else part


def _reference(kind: type[Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
