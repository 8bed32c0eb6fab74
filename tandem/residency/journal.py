"""What was done about memory, one line of JSON an event, with the figures that led to it. Never a text of a user."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from msgspec import Struct

FILE = "residency.jsonl"


class Event(Struct, frozen=True, omit_defaults=True):
    """`sentence` says it for people; `figures` are bytes unless their name says otherwise."""

    act: str  # reclaimed | ended | loading | loaded | refused | unloaded | freed | reloading | reloaded | failed
    sentence: str
    figures: dict[str, int] = {}
    subject: str = ""  # a request's id, a role's name


class Journal:
    """The file `residency.jsonl` in a folder that is kept. Several processes may write: a line is one write."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def write(self, event: Event) -> None:
        """Raises `OSError` when it cannot be written."""
        line = msgspec.json.encode({"at": round(time.time(), 3), **msgspec.to_builtins(event)}) + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
