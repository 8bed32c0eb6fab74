"""Statuses that are errors, as the OpenAPI document tells of them."""

from __future__ import annotations

from typing import Final

from litestar.openapi.datastructures import ResponseSpec
from msgspec import Struct

from tandem.gateway.errors import ErrorBody


def errors(kind: type[Struct] = ErrorBody, /, **sentences: str) -> dict[int, ResponseSpec]:
    """Statuses (`_404="..."`) whose body is an error envelope."""
    return {
        int(status[1:]): ResponseSpec(kind, generate_examples=False, description=sentence)
        for status, sentence in sentences.items()
    }


_KEYS: Final = {"_401": "No valid key was shown", "_403": "The key, the host or the page's origin is not allowed"}
_BODY: Final = {
    "_400": "The request asks for what cannot be; `param` names the field",
    "_408": "The body did not arrive in time",
    "_413": "The body is larger than `limits.max_body`",
    "_415": "The body is not JSON",
    "_500": "The appliance failed",
}
_ANSWER: Final = {
    "_404": "There is no model of this name",
    "_429": "The queue is full, or the key's limit is reached; `Retry-After` says when to come back",
    "_503": "The model loads, restarts or drains, or no slot came free in time",
}


def closed(kind: type[Struct] = ErrorBody) -> dict[int, ResponseSpec]:
    """Of a route that needs a key."""
    return errors(kind, **_KEYS)


def reading(kind: type[Struct] = ErrorBody) -> dict[int, ResponseSpec]:
    """Of a route that reads a body."""
    return errors(kind, **_KEYS, **_BODY)


def generation(kind: type[Struct] = ErrorBody) -> dict[int, ResponseSpec]:
    """Of a route on which the model answers."""
    return errors(kind, **_KEYS, **_BODY, **_ANSWER)
