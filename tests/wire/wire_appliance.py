"""One real appliance: `tandem up` over real supervisord, the real gateway and engine, the real default model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
from ports import free_port

from tandem.cli import appliance as outside
from tandem.contract.channel import ask_health
from tandem.contract.messages import Health
from tandem.contract.plan import Paths

ROOT = Path(__file__).parents[2]


def until(seen: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait for something that is on its way; only a failure takes the time."""
    deadline = time.monotonic() + seconds
    while not (value := seen()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
    return value


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Appliance:
    """An appliance in a directory of its own, seen as its owner and its clients see it."""

    plain: str  # id of the plan of its first document, where tests come back to that

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="tandem-"))  # short: sockets lie below
        for kind in ("profiles", "residency"):
            shutil.copytree(ROOT / kind, self.base / kind)
        self.port = free_port()
        self.document = self.base / "appliance.yaml"
        self.write()
        state = self.base / ".tandem"
        self.paths = Paths(str(state), str(state / "run"), str(state / "logs"))

    def write(self, **sections: Any) -> float:
        """Save the document, by renaming as careful editors do. Returns when (monotonic)."""
        said = {"profile": "smollm2-135m", "residency": "laptop", "listen": {"port": self.port}} | sections
        part = self.document.with_suffix(".part")
        part.write_text(json.dumps(said, indent=1))
        part.replace(self.document)
        return time.monotonic()

    def run(self, *arguments: str, timeout: float = 180.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tandem", *arguments, str(self.document)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=os.environ | {"COLUMNS": "160"},
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def health(self) -> dict[str, Any] | None:
        """`/health` while the gateway answers, ready or not."""
        with contextlib.suppress(httpx.TransportError):
            answer: dict[str, Any] = httpx.get(f"{self.url}/health", timeout=30).json()
            return answer
        return None

    def ready_health(self) -> dict[str, Any] | None:
        health = self.health()
        return health if health and health.get("ready") else None

    def pids(self) -> dict[str, int]:
        """Of the programs that are ready, and of the director."""
        state = asyncio.run(outside.picture(self.paths, 5.0))
        if state is None or state.phase != "serving":
            return {}
        pids = {program.name: program.pid for program in state.programs if program.pid and program.state == "ready"}
        for process in outside.leftovers(self.paths):
            if "director" in process.cmdline():
                pids["director"] = process.pid
        return pids

    def ready_since(self, name: str) -> float:
        """Unix time at which this program was ready."""
        state = until(lambda: asyncio.run(outside.picture(self.paths, 5.0)))
        return next(float(each.since) for each in state.programs if each.name == name and each.state == "ready")

    def engine(self) -> Health:
        """The engine's own word as it is now; the gateway's may be half a second old."""
        return asyncio.run(ask_health(Path(self.paths.run, "engine.sock"), 60.0))

    def settled(self) -> Health:
        """The engine's word after a turn that began now: what the last request left to do has been handed on."""
        now = time.monotonic()

        def later() -> Health | None:
            asked, health = time.monotonic(), self.engine()
            return health if asked - health.last_turn_age > now and not health.running else None

        found: Health = until(later)
        return found

    def all_pids(self) -> dict[str, int] | None:
        pids = self.pids()
        return pids if {"gateway", "engine", "director"} <= pids.keys() else None

    def in_flight(self) -> int:
        """Requests that the gateway has taken."""
        metrics = httpx.get(f"{self.url}/metrics", timeout=30).text
        return int(float(re.findall(r"^tandem_in_flight (\S+)", metrics, re.MULTILINE)[0]))

    def close(self) -> None:
        self.run("down")
        outside.kill(self.paths, outside.supervisord_pid(self.paths))
        shutil.rmtree(self.base)
