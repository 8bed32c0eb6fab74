"""Each peer's own environment below `.cache/peers`: made once, stamped last, and never the project's.

Owns that folder. Every step is bounded in time and, where something is downloaded, in bytes; what it says goes to a log
beside the environment and the log's last line to the terminal.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.machine import PROJECT
from bench.turns import progress
from tandem.units import GIB

PEERS = PROJECT / ".cache" / "peers"
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9}


class NotMeasured(Exception):
    """Why a peer is left out: one sentence."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with a folder of its own, which may hold more than packages."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def install(
        self,
        packages: Sequence[str],
        most_bytes: int,
        seconds: float,
        finish: Callable[[Environment], None] = lambda made: None,
    ) -> None:
        """Does nothing when `packages` are what was installed here last. Raises `NotMeasured`, as `finish` may."""
        stamp, wanted = self.folder / "stamp.json", stamp_of(packages)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(self.folder / "venv", ignore_errors=True)
        stamp.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        if (room := shutil.disk_usage(self.folder).free) < 3 * most_bytes:
            raise NotMeasured(f"{room / GIB:.1f} GiB are free on the disk, {3 * most_bytes / GIB:.1f} may be needed")
        run([sys.executable, "-m", "venv", str(self.folder / "venv")], self.folder / "venv.log", 120)
        command = [str(self.python), *_PIP, "install", "--progress-bar=off", *packages]
        run(command, self.folder / "pip.log", seconds, most_bytes=most_bytes)
        finish(self)
        stamp.write_text(wanted)


def stamp_of(packages: Sequence[str]) -> str:
    return json.dumps({"python": sys.version, "packages": list(packages)})


def run(
    command: Sequence[str],
    log: Path,
    seconds: float,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    most_bytes: int | None = None,
) -> None:
    """One step of an installation, at low priority. Raises `NotMeasured` when it fails, when it takes longer than
    `seconds`, or when pip has downloaded more than `most_bytes`."""
    name, begun = log.parent.name, time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["nice", "-n", "10", *command],
            cwd=folder or log.parent,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    told = begun
    try:
        while True:
            try:
                status = process.wait(timeout=1)
                break
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if now - begun > seconds:
                raise NotMeasured(f"setting it up took longer than {seconds:.0f} s; see {log}")
            said = log.read_text(errors="replace")
            if most_bytes is not None and downloaded(said) > most_bytes:
                raise NotMeasured(f"it would download more than {most_bytes / 10**9:.1f} GB; see {log}")
            if now - told > (1 if sys.stderr.isatty() else 30):
                told = now
                progress(f"{name}: {now - begun:.0f} s  {last_line(said)[:90]}")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    if status:
        raise NotMeasured(f"setting it up failed: {last_line(log.read_text(errors='replace'))}; see {log}")


def downloaded(said: str) -> int:
    """Bytes of what pip says that it downloads."""
    found = re.findall(r"Downloading \S+ \(([\d.]+) ([kMG]B)\)", said)
    return sum(round(float(size) * _UNITS[unit]) for size, unit in found)


def last_line(said: str) -> str:
    """The last that an error may be read from: pip ends with notices, which say nothing."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(ERROR|error)\b", line)]
    return (errors or lines or ["it said nothing"])[-1]


def digest(path: Path) -> str:
    """Names a file's content, for what is made from it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
