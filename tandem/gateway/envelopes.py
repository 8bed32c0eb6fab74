"""An error in the words of the API whose path was called. Whoever refuses a request, the envelope is its client's."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct

from tandem.gateway.errors import ApiError


class MessagesErrorDetail(Struct, frozen=True):
    """`code`, `param` and `source` as in OpenAI's envelope; clients of this one skip them."""

    type: str
    message: str
    code: str
    param: str | None
    source: str


class MessagesError(Struct, frozen=True, kw_only=True):
    """Anthropic's."""

    type: Literal["error"] = "error"
    error: MessagesErrorDetail


class OllamaError(Struct, frozen=True):
    error: str
    code: str  # clients of Ollama skip it


_MESSAGES_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def messages_error(error: ApiError) -> bytes:
    other = "api_error" if error.status >= 500 else "invalid_request_error"
    kind, detail = _MESSAGES_TYPES.get(error.status, other), error.detail
    told = MessagesErrorDetail(kind, detail.message, detail.code, detail.param, detail.source)
    return msgspec.json.encode(MessagesError(error=told))


def ollama_error(error: ApiError) -> bytes:
    return msgspec.json.encode(OllamaError(error.sentence, error.code))


def envelope(path: str, error: ApiError) -> bytes:
    """JSON. Of paths that nobody serves, OpenAI's."""
    if path.startswith("/v1/messages"):
        return messages_error(error)
    return ollama_error(error) if path.startswith("/api/") else error.body
