"""One file from a server to this disk, whole or not at all.

A download grows in `NAME.part` beside its final name, goes on from there after any interruption, and is renamed only
when its size and hash are right. A token is shown to the server that was declared and to no other.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import httpx

from tandem.contract.content import sha256_of
from tandem.errors import CannotStart
from tandem.units import format_bytes

Report = Callable[[str, int, int | None], None]  # (what is being done, bytes done, bytes in all when known)

_PIECE: Final = 1 << 20
_TRIES: Final = 5  # in a row without a single new byte
_REDIRECTS: Final = 5
_TIMEOUT: Final = httpx.Timeout(30.0, connect=10.0)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Server:
    """Where files come from. The token never stands in a message."""

    endpoint: str
    token: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        if self.token is None:
            return {}
        address = httpx.URL(self.endpoint)
        if address.scheme != "https" and address.host not in ("127.0.0.1", "::1", "localhost"):
            raise CannotStart(
                f"the token of `downloads` would travel readable for all to {address.host}",
                "write an `https://` address as `downloads.endpoint`",
            )
        return {"Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file on a server, and what is known of it before it arrives."""

    url: str
    size: int | None
    sha256: str | None


def ask(url: str, server: Server) -> Wanted | None:
    """What a hub says of a file before it is fetched; None when it has no such file.

    A file of its large-file storage is announced with its sha256 and its size in the answer that points there.
    """
    try:
        with httpx.Client(headers=server.headers, timeout=_TIMEOUT) as client:
            answer, host = client.head(url, headers={"Accept-Encoding": "identity"}), httpx.URL(url).host
            for _ in range(_REDIRECTS):
                following = answer.next_request
                if following is None or following.url.host != host or "X-Linked-Etag" in answer.headers:
                    break
                answer = client.send(following)
    except httpx.TransportError as error:
        raise CannotStart(
            f"{httpx.URL(url).host} cannot be reached ({str(error) or type(error).__name__})", "try again later"
        ) from None
    if answer.status_code == httpx.codes.NOT_FOUND:
        return None
    if answer.is_error:
        raise CannotStart(*refusal(answer.status_code, url, server))
    headers = answer.headers
    length = headers.get("X-Linked-Size") or (None if answer.is_redirect else headers.get("Content-Length"))
    tag = headers.get("X-Linked-Etag", "").removeprefix("W/").strip('"')
    return Wanted(url, None if length is None else int(length), tag if _SHA256.fullmatch(tag) else None)


def download(wanted: Wanted, path: Path, server: Server, report: Report, wait: Callable[[float], None]) -> None:
    """To `path`, through `path.part`. Raises `CannotStart`; what has arrived stays for the next try."""
    part = path.with_name(path.name + ".part")
    with plain_words(path), only_one(part) as file:
        tries = 0
        while tries < _TRIES:
            before = file.seek(0, os.SEEK_END)
            try:
                _append(wanted, file, server.headers, report)
                break
            except httpx.HTTPStatusError as error:
                raise CannotStart(*refusal(error.response.status_code, wanted.url, server)) from None
            except httpx.TransportError as error:
                tries = 1 if file.seek(0, os.SEEK_END) > before else tries + 1
                reason = str(error) or type(error).__name__
                report(f"interrupted ({reason}), going on", file.tell(), wanted.size)
                wait(min(2.0**tries, 10.0) if tries < _TRIES else 0)
        else:
            raise CannotStart(
                f"the connection to {httpx.URL(wanted.url).host} dropped after {format_bytes(file.tell())}",
                "run `tandem pull` again: it goes on from there",
            )
        _finish(file, part, path, wanted, report)


def _append(wanted: Wanted, file: BinaryIO, shown: Mapping[str, str], report: Report) -> None:
    """One request for what is missing. A server that cannot send a part sends the whole, and we begin anew."""
    have = file.seek(0, os.SEEK_END)
    if wanted.size is not None and have >= wanted.size:
        return
    room(Path(file.name).parent, None if wanted.size is None else wanted.size - have)
    headers = {**shown, "Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with httpx.stream("GET", wanted.url, headers=headers, follow_redirects=True, timeout=_TIMEOUT) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return  # all there, or too much: the hash will say
        answer.raise_for_status()
        if have and answer.status_code != httpx.codes.PARTIAL_CONTENT:
            have = 0
            file.seek(0)
            file.truncate()
        length = answer.headers.get("Content-Length")
        total = wanted.size or (have + int(length) if length else None)
        room(Path(file.name).parent, None if total is None else total - have)
        for piece in answer.iter_raw():  # as it arrives: nothing waits in a buffer that a drop would empty
            file.write(piece)
            have += len(piece)
            report("fetching", have, total)


def _finish(file: BinaryIO, part: Path, path: Path, wanted: Wanted, report: Report) -> None:
    file.flush()
    os.fsync(file.fileno())
    if wanted.sha256 is not None and (found := sha256_of(part, partial(report, "verifying"))) != wanted.sha256:
        part.unlink()  # going on from wrong bytes would never end well
        raise CannotStart(
            f"what arrived is not the file that is pinned: {path.name} has sha256 {found[:12]}..., "
            f"not {wanted.sha256[:12]}...",
            "check `source` and `sha256` in the profile, then run `tandem pull` again",
        )
    if wanted.size is not None and (size := part.stat().st_size) != wanted.size:
        part.unlink()
        raise CannotStart(
            f"{path.name} arrived with {size:,} bytes and should have {wanted.size:,}", "run `tandem pull` again"
        )
    part.replace(path)


@contextmanager
def only_one(part: Path) -> Iterator[BinaryIO]:
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart("another `tandem pull` is fetching this file", "wait for it") from None
        yield file


@contextmanager
def plain_words(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"the disk is full: {path.parent}"
            raise CannotStart(message, "free some space and run `tandem pull` again: it goes on from there") from None
        raise CannotStart(f"{path} cannot be written: {error.strerror or error}") from None


def room(folder: Path, needed: int | None) -> None:
    free = shutil.disk_usage(folder).free
    if needed is not None and needed > free:
        raise CannotStart(
            f"the disk is too small: {format_bytes(needed)} to come, {format_bytes(free)} free in {folder}",
            "free some space, or put `state` on another disk",
        )


def refusal(status: int, url: str, server: Server) -> tuple[str, str]:
    """A sentence and what to do, for an answer that is an error."""
    host, path = httpx.URL(url).host, httpx.URL(url).path
    match status:
        case 401 | 403 if server.token is None:
            return (
                f"{host} wants permission for {path} (status {status})",
                "accept the model's terms on its page, then name where your token is read with "
                "`downloads.token_variable` or `downloads.token_file`; or fetch the weights yourself, for `path:`",
            )
        case 401 | 403:
            return (
                f"{host} does not give {path} to the owner of the token (status {status})",
                "accept the model's terms on its page with that account, or read another token; "
                "it must be allowed to read gated models",
            )
        case 404 | 410:
            return f"{host} has no {path} (status {status})", "check `source` in the profile"
        case 429 | 503:
            return f"{host} is busy (status {status})", "try again later: what has arrived is kept"
        case _:
            return f"{host} answered {status} for {path}", "check `downloads.endpoint`, or try again later"
