"""Who may call what: API keys, the table of routes, and the checks on `Host` and `Origin`.

Everything is closed unless the table opens it; a path that nobody serves needs a key like any other.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from tandem.contract.keys import read_keys
from tandem.contract.plan import KeySource

_log = logging.getLogger("tandem.gateway.auth")


class Access(Enum):
    """What opens a route."""

    OPEN = auto()  # no key: says whether the process lives, and nothing else
    SUMMARY = auto()  # no key for one word; the whole with a user's key
    USER = auto()
    METRICS = auto()  # any key: counts of all clients together
    ADMIN = auto()  # shows what every client's requests do; never a text


class Role(Enum):
    """What a key is for. One that is named nowhere is a user's."""

    USER = auto()
    METRICS = auto()
    ADMIN = auto()


_OPENS: Final[dict[Role, frozenset[Access]]] = {
    Role.USER: frozenset({Access.SUMMARY, Access.USER, Access.METRICS}),
    Role.METRICS: frozenset({Access.METRICS}),
    Role.ADMIN: frozenset({Access.SUMMARY, Access.USER, Access.METRICS, Access.ADMIN}),
}


# What a key that does not open a route hears; `METRICS` is opened by every key.
NEEDED: Final = {
    Access.USER: "this key opens `/metrics` only (`keys.metrics_only`); requests need a user's key",
    Access.ADMIN: "this route shows every client's requests; name the key in `keys.admin` to open it",
}

ROUTES: Final[dict[str, Access]] = {
    "/livez": Access.OPEN,
    "/readyz": Access.OPEN,
    "/health": Access.SUMMARY,
    "/v1/health": Access.SUMMARY,
    "/metrics": Access.METRICS,
    "/openapi.json": Access.USER,
    "/v1/models": Access.USER,
    "/v1/models/{id:path}": Access.USER,
    "/v1/chat/completions": Access.USER,
    "/v1/completions": Access.USER,
    "/v1/responses": Access.USER,
    "/v1/messages": Access.USER,
    "/v1/messages/count_tokens": Access.USER,
    "/v1/embeddings": Access.USER,
    "/v1/systemone": Access.USER,
    "/v1/shadow": Access.ADMIN,
    "/api/version": Access.USER,
    "/api/tags": Access.USER,
    "/api/ps": Access.USER,
    "/api/show": Access.USER,
    "/api/chat": Access.USER,
    "/api/generate": Access.USER,
    "/api/embed": Access.USER,
    "/api/embeddings": Access.USER,
    "/tokenize": Access.USER,
    "/detokenize": Access.USER,
    "/apply-template": Access.USER,
    "/props": Access.USER,
    "/slots": Access.ADMIN,
}


def access_of(path: str) -> Access:
    return ROUTES.get(path.rstrip("/") or "/", Access.USER)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose key was shown. Requests of different scopes never share cached rows."""

    name: str = ""
    scope: str = ""
    role: Role = Role.USER

    def may_use(self, access: Access) -> bool:
        return access is Access.OPEN or access in _OPENS[self.role]


ANYONE: Final = Caller()
UNLOCKED: Final = Caller(role=Role.ADMIN)  # without declared keys, whoever reaches the appliance may do everything


class Keys:
    """The keys a source holds now: a file is read again when it changes, a variable once."""

    def __init__(self, source: KeySource, environment: Mapping[str, str] = os.environ) -> None:
        self._source = source
        self._file = Path(source.file) if source.file is not None else None
        self._stamp: tuple[int, ...] | None = None
        self._callers: dict[bytes, Caller] = {}  # by the key's digest
        self.is_open = source.file is None and source.variable is None
        self._fixed = _read(environment.get(source.variable, ""), source) if source.variable is not None else {}
        self._reload()

    def caller(self, key: bytes | None) -> Caller | None:
        """Whose key this is, or None. Takes as long for a wrong key as for a right one."""
        if self.is_open:
            return UNLOCKED
        self._reload()
        shown = hashlib.sha256(key or b"").digest()
        found = None
        for digest, caller in self._callers.items():
            if hmac.compare_digest(digest, shown):
                found = caller
        return found

    def _reload(self) -> None:
        """A file that cannot be read opens nothing: with it, its keys are gone."""
        if self._file is None:
            self._callers = self._fixed
            return
        try:
            status = self._file.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            text = self._file.read_text(encoding="utf-8")
            self._callers, self._stamp = self._fixed | _read(text, self._source), stamp
            _log.info("read %d keys", len(self._callers))
        except (OSError, UnicodeDecodeError) as error:
            if self._stamp != ():
                _log.error("the key file cannot be read (%s); its keys are void until it can", type(error).__name__)
            self._callers, self._stamp = self._fixed, ()


def _read(text: str, source: KeySource) -> dict[bytes, Caller]:
    lines = read_keys(text)
    for number in lines.bad:
        _log.error("line %d of the keys is not `name:key`; it is skipped", number)
    callers: dict[bytes, Caller] = {}
    for name, key in lines.keys:
        scope = hashlib.sha256(b"scope:" + key.encode()).hexdigest()[:16]
        callers[hashlib.sha256(key.encode()).digest()] = Caller(name, scope, _role(name, source))
    return callers


def _role(name: str, source: KeySource) -> Role:
    if name in source.metrics_only:
        return Role.METRICS
    return Role.ADMIN if name in source.admin else Role.USER


def key_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """`Authorization: Bearer KEY` or `x-api-key: KEY`."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and token.strip():
        return token.strip()
    return headers[b"x-api-key"].strip() if b"x-api-key" in headers else None


_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERY_INTERFACE: Final = frozenset({"0.0.0.0", "::", ""})


def host_name(header: str) -> str:
    """The name in a `Host` header, or in an origin, without its port."""
    authority = header.rpartition("://")[2]
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].rstrip(".").lower()


def is_host_allowed(header: str, bound: str, allowed: tuple[str, ...]) -> bool:
    """Whether a browser led here by a foreign name (DNS rebinding) is kept out.

    Bound to every interface without declared names, any name may be the box's own, and keys are the protection.
    """
    if bound in _EVERY_INTERFACE and not allowed:
        return True
    return host_name(header) in _LOOPBACK | {bound.lower(), *(name.lower() for name in allowed)}


def is_same_site(origin: str, host: str) -> bool:
    """Whether a page calls the very server that it came from."""
    return origin.rpartition("://")[2].lower() == host.lower()
