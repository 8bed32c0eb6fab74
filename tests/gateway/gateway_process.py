"""The gateway as supervisord starts it: a process of its own. Its engine double runs in a thread of the test's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection

import httpx
from engine_double import EngineDouble
from gateway_appliance import make_live, make_plan
from ports import free_port

from tandem.contract.plan import Plan, encode_plan


@dataclass
class GatewayProcess:
    plan: Plan
    process: subprocess.Popen[bytes]
    engine: EngineDouble
    loop: asyncio.AbstractEventLoop  # the double's
    url: str

    def until(self, path: str, status: int, within: float = 60.0) -> None:
        """Ask until the answer has this status."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            try:
                if httpx.get(self.url + path, timeout=30).status_code == status:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise TimeoutError(f"{path} did not become {status}")

    def on_loop(self, work: object) -> None:
        """Run a coroutine of the double's where it lives."""
        asyncio.run_coroutine_threadsafe(work, self.loop).result(60)  # type: ignore[arg-type]


@contextmanager
def gateway_process(directory: Path, weights: Path, answer: list[int]) -> Iterator[GatewayProcess]:
    port = free_port()
    plan = make_plan(directory, weights, make_live(), port=port)
    (directory / "plan.json").write_bytes(encode_plan(plan))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    engine = EngineDouble(directory / "engine.sock", answer)
    asyncio.run_coroutine_threadsafe(engine.start(), loop).result(60)
    command = [sys.executable, "-m", "tandem", "gateway", "--run", str(directory)]
    with (directory / "gateway.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        _wait_for(port)
        yield GatewayProcess(plan, process, engine, loop, f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()
        loop.call_soon_threadsafe(engine.die)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _wait_for(port: int) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return
