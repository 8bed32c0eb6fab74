"""Servers as a bench sees them: how one is started and asked, and those that run now.

Only what this module started is ever stopped, and with it everything that it started. A peer that is not asked is
suspended, so that nothing of it can take the processors from whoever is; tandem's processes are not, because its
director would take a suspended engine for a hung one. What they take while idle is measured instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.appliance import LONGEST_STOP, Appliance, free_port, tail
from bench.peers.environments import NotMeasured
from bench.turns import progress

LONGEST_START = 600.0  # seconds; vLLM compiles its passes when it first sees a model


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a peer is started. `{port}` stands in the command for a free one."""

    name: str
    command: Sequence[str]
    settings: str  # what was chosen, for the record
    needs: int  # bytes it may take, all its processes together
    model: str = "bench"  # what requests call it
    ready: str = "/health"  # answers 200 when it serves
    environment: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)  # of each request, so that answers have equal lengths
    kinds: frozenset[str] | None = None  # of work that it is asked for; None: all


@dataclass(frozen=True, slots=True)
class Server:
    """One that runs and answers on loopback."""

    name: str
    url: str
    model: str
    pid: int  # of the process that started all others of it
    more: Mapping[str, Any] = field(default_factory=dict)
    kinds: frozenset[str] | None = None
    appliance: Appliance | None = None  # tandem's

    def does(self, kind: str) -> bool:
        return self.kinds is None or kind in self.kinds

    def processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.pid)
            return [first, *first.children(recursive=True)]
        return []

    def cpu_seconds(self) -> float:
        """What its processes have taken so far, those that ended left out."""
        total = 0.0
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total


def server_of(name: str, appliance: Appliance) -> Server:
    return Server(name, appliance.url, appliance.model, appliance.pid, appliance=appliance)


@contextmanager
def asked(server: Server) -> Iterator[None]:
    """A peer runs inside the block and is suspended outside of it."""
    if server.appliance is not None:
        yield
        return
    _signal_all(server, resume=True)
    try:
        yield
    finally:
        _signal_all(server, resume=False)


def _signal_all(server: Server, *, resume: bool) -> None:
    for process in server.processes():
        with suppress(psutil.NoSuchProcess):
            process.resume() if resume else process.suspend()


@contextmanager
def running(recipe: Recipe, folder: Path) -> Iterator[Server]:
    """Suspended until it is `asked`. Raises `NotMeasured` when it does not come up."""
    port = free_port()
    log = folder / f"{recipe.name.replace(' ', '-')}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [word.format(port=port) for word in recipe.command],
            env={**os.environ, **recipe.environment},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    server = Server(recipe.name, url, recipe.model, process.pid, recipe.more, recipe.kinds)
    try:
        _wait_ready(process, recipe, url, log)
        _signal_all(server, resume=False)
        yield server
    finally:
        _signal_all(server, resume=True)
        _stop(process)


def _wait_ready(process: subprocess.Popen[bytes], recipe: Recipe, url: str, log: Path) -> None:
    begun = told = time.monotonic()
    while (now := time.monotonic()) - begun < LONGEST_START:
        if process.poll() is not None:
            raise NotMeasured(f"its server ended with {process.returncode}:\n{tail(log)}")
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}{recipe.ready}", timeout=5).status_code == httpx.codes.OK:
                return
        if now - told > 15:
            told = now
            progress(f"{recipe.name}: starting for {now - begun:.0f} s")
        time.sleep(0.2)
    raise NotMeasured(f"its server was not ready after {LONGEST_START:.0f} s:\n{tail(log)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Its whole session: what it started goes with it."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=LONGEST_STOP)
            break
    with suppress(ProcessLookupError):  # children that outlived it
        os.killpg(process.pid, signal.SIGKILL)
