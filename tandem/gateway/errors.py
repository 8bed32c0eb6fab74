"""What a client hears when something is not right: OpenAI's error envelope, plus `source`, naming who failed."""

from __future__ import annotations

import math
from typing import Final

import msgspec
from msgspec import Struct

from tandem.contract.messages import RefusalCode, Refused
from tandem.text.callgrammar import place_of


class ErrorDetail(Struct, frozen=True):
    message: str
    type: str
    code: str
    param: str | None = None  # the field that is wrong: `messages[0].role`
    source: str = "gateway"  # gateway | engine | model


class ErrorBody(Struct, frozen=True):
    error: ErrorDetail


_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "unavailable_error",
    504: "server_error",
}


class ApiError(Exception):
    """An answer that is an error. Clients act on `code`, people on the sentence. Logs carry the code alone."""

    def __init__(
        self,
        status: int,
        code: str,
        sentence: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        source: str = "gateway",
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.detail = ErrorDetail(sentence, _TYPES.get(status, "invalid_request_error"), code, param, source)

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(ErrorBody(self.detail))

    @property
    def sentence(self) -> str:
        return self.detail.message

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(self.retry_after))))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers


RETRY_SOON: Final = 2.0  # seconds: an engine that loads, restarts or drains

# Every word the engine refuses with, as a status, and when to come back (None: the same request cannot succeed).
REFUSALS: Final[dict[RefusalCode, tuple[int, float | None]]] = {
    RefusalCode.QUEUE_FULL: (429, 5.0),
    RefusalCode.TOO_LONG: (400, None),
    RefusalCode.DRAINING: (503, RETRY_SOON),
    RefusalCode.QUEUE_TIMEOUT: (503, 5.0),
    RefusalCode.MEMORY_TIMEOUT: (503, 15.0),
    RefusalCode.TOO_BIG: (400, None),
    RefusalCode.BAD_REQUEST: (400, None),
    RefusalCode.NO_MEMORY: (503, 15.0),
    RefusalCode.YIELDED: (503, 1.0),
    RefusalCode.FAILED: (500, None),
}


def from_refusal(refused: Refused) -> ApiError:
    status, wait = REFUSALS[refused.code]
    wait = refused.retry_after if refused.retry_after is not None else wait
    sentence, param = refused.sentence, refused.param
    if param is not None and (place := place_of(param)) != param:
        sentence, param = sentence.replace(f"`{param}`", f"`{place}`"), place
    return ApiError(status, refused.code, sentence, retry_after=wait, param=param, source="engine")


def our_fault() -> ApiError:
    return ApiError(500, "internal_error", "the gateway failed; its log says why")


def engine_restarted() -> ApiError:
    return ApiError(
        503,
        "engine_restarted",
        "the engine stopped while it worked on this request; it starts again by itself",
        retry_after=RETRY_SOON,
        source="engine",
    )
