"""Caches as a plan declares them."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from pathlib import Path

from tandem.caches.caches import Caches
from tandem.caches.disk import Disk
from tandem.caches.folder import Folder
from tandem.caches.holdings import Holdings
from tandem.caches.prefix import SECRET_SIZE, Grid
from tandem.caches.shelf import Shelf
from tandem.errors import CannotStart
from tandem.model.state import SequenceState

log = logging.getLogger("tandem.caches")


@dataclass(frozen=True, slots=True)
class DiskTier:
    """What may be kept on disk, and where."""

    folder: Path
    limit: int  # bytes of all files
    max_age: float  # seconds since the last use
    waiting_limit: int  # bytes of memory for copies that wait to be written


def open_caches(
    chunk: int,
    fingerprint: bytes,
    like: SequenceState,
    holdings: Holdings,
    memory_limit: int,
    disk: DiskTier | None = None,
    *,
    any_row: bool,
) -> Caches:
    """`fingerprint`: whatever the rows of the model's sequences depend on beside their tokens (weights, compute mode,
    device, code); `like`: one of its states; `memory_limit`: bytes, without anchors.

    A folder that cannot be used is said in the log, and there is no disk tier then.
    """
    fingerprint = b"\0".join([fingerprint, str(chunk).encode(), like.format.encode()])
    folder = _open_folder(disk, fingerprint) if disk is not None else None
    secret = folder.secret if folder else secrets.token_bytes(SECRET_SIZE)
    return Caches(
        Grid(chunk, fingerprint, secret),
        holdings,
        Shelf(memory_limit, holdings),
        Disk(folder, disk.waiting_limit) if folder and disk else None,
        any_row=any_row,
        can_rewind=like.can_rewind,
    )


def _open_folder(disk: DiskTier, fingerprint: bytes) -> Folder | None:
    try:
        return Folder(disk.folder, fingerprint, disk.limit, disk.max_age)
    except CannotStart as error:
        log.error("[caches] %s: there is no disk tier", error)
        return None
