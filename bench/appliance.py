"""An appliance of the bench's own: its own state folder, its own port, stopped with the block that started it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from bench.machine import PROJECT

LONGEST_START = 300.0  # seconds; the weights may have to be fetched first
LONGEST_STOP = 60.0
NEWS = 0.6  # seconds; `/health` repeats what the engine said up to half a second ago


class DidNotStart(Exception):
    """Why there is nothing to measure."""


@dataclass(frozen=True, slots=True)
class Appliance:
    url: str
    slots: int
    model: str
    pid: int  # of `tandem up`, which started all others

    def health(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.url}/health", timeout=10).raise_for_status().json())

    def rounds_by_size(self) -> Mapping[int, int]:
        """Decode rounds since the engine started, by how many slots decoded together. The engine's own counters.

        For when nothing runs: it waits until no older word of the engine is repeated.
        """
        time.sleep(NEWS)
        counters = self.health()["engine"]["counters"]
        return {int(size): int(rounds) for size, rounds in counters["rounds_by_size"].items()}


@contextmanager
def started(slots: int, state: Path, settings: tuple[str, ...]) -> Iterator[Appliance]:
    """`settings` are further `--set` values. Raises `DidNotStart` with the end of the appliance's own words.

    From now on SIGTERM ends this process as Ctrl-C does: the appliance must not outlive it.
    """
    signal.signal(signal.SIGTERM, _interrupted)
    port = free_port()
    ours = (f"slots.count={slots}", f"listen.port={port}", "listen.host=127.0.0.1", f"state={state}")
    flags = [word for setting in (*settings, *ours) for word in ("--set", setting)]
    said = state / "said.log"
    state.mkdir(parents=True, exist_ok=True)
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tandem", "up", *flags],
            cwd=PROJECT,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_ready(process, url, said)
        model = httpx.get(f"{url}/v1/models", timeout=10).raise_for_status().json()["data"][0]["id"]
        yield Appliance(url, slots, model, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=LONGEST_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], url: str, said: Path) -> None:
    until = time.monotonic() + LONGEST_START
    while time.monotonic() < until:
        if process.poll() is not None:
            raise DidNotStart(f"tandem up ended with {process.returncode}:\n{tail(said)}")
        try:
            if httpx.get(f"{url}/readyz", timeout=5).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise DidNotStart(f"not ready after {LONGEST_START:.0f} s:\n{tail(said)}")


def tail(said: Path) -> str:
    return "\n".join(said.read_text(errors="replace").splitlines()[-20:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
