"""Stands before every route, known or not: name of the host, origin of the page, key, request id."""

from __future__ import annotations

import logging
import re
from typing import Final, TypeAlias
from uuid import uuid4

from litestar.enums import HttpMethod, ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from tandem.gateway.asgi import respond
from tandem.gateway.auth import (
    ANYONE,
    NEEDED,
    Access,
    Caller,
    access_of,
    is_host_allowed,
    is_same_site,
    key_of,
)
from tandem.gateway.envelopes import envelope
from tandem.gateway.errors import ApiError, our_fault
from tandem.gateway.service import Service

_log = logging.getLogger("tandem.gateway")
Headers: TypeAlias = dict[bytes, bytes]

_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


# What a page may read of our answers, and how long its browser may remember that it may call.
_EXPOSED: Final = b"retry-after, x-request-id, x-tandem-ignored, x-tandem-max-tokens, x-tandem-wait"
_REMEMBERED: Final = b"600"


class Gate:
    """Wraps the application. Adds `X-Request-Id` to every answer; that and `state["caller"]` to scopes it lets in."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == ScopeType.HTTP  # the server speaks no other protocol and runs no lifespan
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        added = [(b"x-request-id", request_id)]
        if scope["path"].startswith("/v1/messages"):
            added.append((b"request-id", request_id))  # where Anthropic's clients look for it
        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                message["headers"] = [*message["headers"], *added]
            await send(message)

        try:
            self._check_host(headers)
            added += self._check_origin(headers)
            if is_preflight(scope["method"], headers):
                await respond(send_with_headers, 204, _preflight(headers), b"")
                return
            state = scope.setdefault("state", {})
            state["request_id"] = request_id.decode()
            state["caller"] = self._authenticate(access_of(scope["path"]), headers)
            await self._app(without_head(scope), receive, send_with_headers)
        except ApiError as error:
            await respond(send_with_headers, error.status, error.headers, envelope(scope["path"], error))
        except Exception:
            _log.exception("request %s failed by our fault", request_id.decode())
            if has_begun:
                raise  # the server closes the connection, so that a broken answer does not look whole
            ours = our_fault()
            await respond(send_with_headers, ours.status, ours.headers, envelope(scope["path"], ours))

    def _check_host(self, headers: Headers) -> None:
        plan = self._service.plan.gateway
        if not is_host_allowed(headers.get(b"host", b"").decode("latin-1"), plan.host, plan.allowed_hosts):
            raise ApiError(403, "host_not_allowed", "this `Host` is not served; name it in `listen.allowed_hosts`")

    def _check_origin(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """What lets a declared page read the answer; nothing for a caller that is no page of another site.

        Raises `ApiError` 403 for any other page: a browser sends simple requests before it asks.
        """
        if b"origin" not in headers:
            return []
        origin, host = headers[b"origin"].decode("latin-1"), headers.get(b"host", b"").decode("latin-1")
        declared = self._service.plan.gateway.cors_origins
        if "*" in declared or origin in declared:
            allowed = b"*" if "*" in declared else headers[b"origin"]
            return [
                (b"access-control-allow-origin", allowed),
                (b"access-control-expose-headers", _EXPOSED),
                (b"vary", b"origin"),
            ]
        if not is_same_site(origin, host):
            sentence = "pages of this origin may not call; declare it in `listen.cors_origins`"
            raise ApiError(403, "origin_not_allowed", sentence)
        return []

    def _authenticate(self, access: Access, headers: Headers) -> Caller | None:
        """Who calls; None where a summary is given to anyone. Raises `ApiError` 401 without a key, 403 for one that
        does not open this route."""
        if access is Access.OPEN:
            return ANYONE
        caller = self._service.keys.caller(key_of(headers))
        if access is Access.SUMMARY:
            return caller if caller is not None and caller.may_use(access) else None
        if caller is None:
            raise ApiError(401, "invalid_api_key", "show a valid key: `Authorization: Bearer KEY` or `x-api-key: KEY`")
        if not caller.may_use(access):
            raise ApiError(403, "key_not_allowed", NEEDED[access])
        return caller


def is_preflight(method: str, headers: Headers) -> bool:
    """A browser asking whether a page may call; it shows no key then."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


def without_head(scope: HTTPScope) -> HTTPScope:
    """HEAD is GET whose body the server leaves away; it knows by its own scope, so this is another one."""
    return {**scope, "method": HttpMethod.GET} if scope["method"] == "HEAD" else scope


def _preflight(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-methods", b"GET, POST"),
        (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"content-type")),
        (b"access-control-max-age", _REMEMBERED),
    ]


def _request_id(headers: Headers) -> bytes:
    """The client's, when it is a plain word; else a new one."""
    shown = headers.get(b"x-request-id", b"")
    return shown if _REQUEST_ID.fullmatch(shown) else uuid4().hex.encode()
