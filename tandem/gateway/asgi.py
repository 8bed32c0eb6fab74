"""The bare form of HTTP that the request path speaks: bodies in, answers out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Final

from litestar.types import Receive, Scope, Send

from tandem.gateway.auth import ANYONE, Caller
from tandem.gateway.errors import ApiError

BODY_WITHIN: Final = 60.0  # seconds for a body to arrive
_CLIENT: Final = re.compile(r"[A-Za-z0-9._-]{1,40}")
_PLAIN: Final = re.compile(r"[A-Za-z_]\w{0,63}(\[\d+\]|\.\w{1,64})?", re.ASCII)
# What curl says of a body unless told otherwise, as in every example of Ollama's. A page of another site can send it
# without asking first, and is refused by its origin.
_OF_CURL: Final = b"application/x-www-form-urlencoded"
_MAX_NAMED: Final = 20  # ignored fields that the header names


class ClientLeft(Exception):
    """Before its request was whole."""


async def respond(send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def read_body(scope: Scope, receive: Receive, limit: int, within: float = BODY_WITHIN) -> bytes:
    """The whole body, within so many seconds.

    Raises `ApiError` when it is no JSON by its own word (415), too large (413) or too slow (408), and `ClientLeft`.
    """
    headers = dict(scope["headers"])
    kind = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if kind != b"application/json" and not (kind == _OF_CURL and scope["path"].startswith("/api/")):
        raise ApiError(415, "unsupported_media_type", "send JSON, with `Content-Type: application/json`")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise ApiError(415, "unsupported_media_type", "send the body as it is, without `Content-Encoding`")
    if int(headers.get(b"content-length", b"0")) > limit:
        raise too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(within):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientLeft
                body += message["body"]
                if len(body) > limit:
                    raise too_large(limit)
                if not message["more_body"]:
                    return bytes(body)
    except TimeoutError:
        sentence = f"the body did not arrive within {within:.0f} s"
        raise ApiError(408, "request_timeout", sentence) from None


def too_large(limit: int) -> ApiError:
    sentence = f"the body is larger than {limit} bytes (`limits.max_body`)"
    return ApiError(413, "request_too_large", sentence)


def caller_of(scope: Scope) -> Caller:
    caller = scope["state"].get("caller")
    return caller if isinstance(caller, Caller) else ANYONE


def name_list(names: tuple[str, ...]) -> bytes:
    """Names that fit a header: a client wrote them, so anything else than a plain place is only counted."""
    plain = [name for name in names if _PLAIN.fullmatch(name)][:_MAX_NAMED]
    others = len(names) - len(plain)
    return ", ".join([*plain, *([f"and {others} more"] if others else [])]).encode()


def client_of(scope: Scope) -> str:
    """The caller's program by its user agent, without versions: `curl/8.5` -> `curl`,
    `AsyncOpenAI/Python 3.57.0` -> `AsyncOpenAI-Python`. Empty when it is no plain name."""
    agent = dict(scope["headers"]).get(b"user-agent", b"").decode("latin-1")
    product, _, rest = agent.partition("/")
    language = rest.partition(" ")[0]
    name = f"{product}-{language}" if language.isalpha() else product.partition(" ")[0]
    return name if _CLIENT.fullmatch(name) else ""
