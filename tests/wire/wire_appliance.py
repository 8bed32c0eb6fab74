"""One real appliance: `tandem up` over real supervisord, the real gateway and engine, the real default model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai

from tandem.cli import appliance as outside
from tandem.contract.plan import Paths

ROOT = Path(__file__).parents[2]


def until(seen: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for something that is on its way; fails when it does not come."""
    deadline = time.monotonic() + seconds
    while not (value := seen()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)
    return value


class Appliance:
    """An appliance in a directory of its own, seen as its owner and its clients see it."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="tandem-"))  # short: sockets lie below
        for kind in ("profiles", "residency"):
            shutil.copytree(ROOT / kind, self.base / kind)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
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
            answer: dict[str, Any] = httpx.get(f"{self.url}/health", timeout=5).json()
            return answer
        return None

    def ready_health(self) -> dict[str, Any] | None:
        health = self.health()
        return health if health and health.get("ready") else None

    def pids(self) -> dict[str, int]:
        """Of the programs that are ready, and of the director."""
        state = asyncio.run(outside.picture(self.paths, 1.0))
        if state is None or state.phase != "serving":
            return {}
        pids = {program.name: program.pid for program in state.programs if program.pid and program.state == "ready"}
        for process in outside.leftovers(self.paths):
            if "director" in process.cmdline():
                pids["director"] = process.pid
        return pids

    def all_pids(self) -> dict[str, int] | None:
        pids = self.pids()
        return pids if {"gateway", "engine", "director"} <= pids.keys() else None

    def close(self) -> None:
        self.run("down")
        outside.kill(self.paths, outside.supervisord_pid(self.paths))
        shutil.rmtree(self.base)
