"""The real gateway on a real port, before an engine double on a real unix socket, all in one loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
from engine_double import EngineDouble

from tandem.contract.plan import (
    Api,
    Box,
    EnginePlan,
    Floors,
    GatewayPlan,
    Hysteresis,
    KeySource,
    Limits,
    Live,
    Paths,
    Plan,
    Program,
    SamplingDefaults,
    SlotPlan,
)
from tandem.gateway.app import DrainingServer, bind
from tandem.gateway.service import Service
from tandem.text.tokenizer import Tokenizer

SOON = 20.0  # seconds: only a failure takes them
MODEL = "smollm2-135m"
TEXT = "Hello, world! 🙂🏽 This is the end."  # what the double answers; three of its tokens are one emoji
LIMITS = Limits(
    request_timeout=30.0,
    queue_timeout=10.0,
    drain_timeout=5.0,
    max_queue=4,
    max_body=1 << 20,
    default_max_tokens=64,
    keepalive=5.0,
)


def make_live(keys: KeySource | None = None, api: Api = Api(), **limits: Any) -> Live:  # noqa: B008, it is frozen
    return Live(
        limits=msgspec.structs.replace(LIMITS, **limits),
        floors=Floors(1 << 30, 1 << 29, 1 << 28),
        hysteresis=Hysteresis(1 << 30, 60.0, 600.0, 3600.0, False),
        keys=keys or KeySource(),
        sampling=SamplingDefaults(temperature=0.7, top_p=0.9),
        conductor=False,
        ledger_days=30,
        api=api,
    )


def make_plan(directory: Path, weights: Path, live: Live | None = None, port: int = 0, **gateway: Any) -> Plan:
    slots = (SlotPlan(0, 8192, 0), SlotPlan(1, 4096, 0))
    sockets = {name: str(directory / f"{name}.sock") for name in ("engine", "gateway")}
    values: dict[str, Any] = {
        "host": "127.0.0.1", "port": port, "model": MODEL, "aliases": ("default",), "weights": str(weights),
        "window": 8192, "side_window": 4096, "ledger": str(directory / "ledger.sqlite"), "cors_origins": (),
        "allowed_hosts": (),
    }  # fmt: skip
    return Plan(
        id="plan-1",
        appliance=str(directory / "appliance.yaml"),
        documents=(),
        paths=Paths(str(directory), str(directory), str(directory)),
        box=Box("test", 8 << 30, 6 << 30, 2, True),
        live=live or make_live(),
        engine=EnginePlan(
            "native", "llama", str(weights), None, "int8", "cpu", 2, 256, slots, 46080, 1, False, 256, False, 1
        ),
        gateway=GatewayPlan(**(values | gateway)),
        roles=(),
        programs=tuple(Program(name, name, (), (), path, 60.0, 30.0, "f") for name, path in sockets.items()),
        memory=(),
        placements=(),
    )


@dataclass
class Appliance:
    service: Service
    server: DrainingServer
    engine: EngineDouble
    url: str
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI

    async def chat(self, content: str = "hi", **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": content}], **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what another task is about to do; a test that waits in vain runs into its time limit."""
        while not condition():
            await asyncio.sleep(0.002)


class Reading:
    """A streamed chat, read as it comes; a script may wait for what its client has read."""

    def __init__(self) -> None:
        self.text = ""
        self._more = asyncio.Event()

    async def chat(self, appliance: Appliance, content: str = "hi", **fields: Any) -> str:
        body = {"messages": [{"role": "user", "content": content}], "stream": True, **fields}
        async with appliance.http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for piece in response.aiter_text():
                self.text += piece
                self._more.set()
        return self.text

    async def until(self, has_come: Callable[[str], bool]) -> None:
        while not has_come(self.text):
            self._more.clear()
            await self._more.wait()


Start = Callable[..., AbstractAsyncContextManager[Appliance]]


@asynccontextmanager
async def starting(
    directory: Path,
    weights: Path,
    tokenizer: Tokenizer,
    live: Live | None = None,
    engine_runs: bool = True,
    **gateway: Any,
) -> AsyncIterator[Appliance]:
    """Everything is up; unless told otherwise, the engine is ready."""
    plan = make_plan(directory, weights, live, **gateway)
    listener = bind(plan.gateway.host, 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    engine = EngineDouble(directory / "engine.sock", tokenizer.encode(TEXT))
    if engine_runs:
        await engine.start()
    service = Service(plan, tokenizer)
    server = DrainingServer(service)
    tasks = [asyncio.create_task(job) for job in (service.engine.run(), service.director.run())]
    serving = asyncio.create_task(_serve(server, listener))
    async with (
        httpx.AsyncClient(base_url=url, timeout=20) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        appliance = Appliance(service, server, engine, url, http, client)
        await appliance.until(lambda: server.started)
        if engine_runs:
            await appliance.until(lambda: service.engine.health is not None)
        try:
            yield appliance
        finally:
            server.should_exit = True
            engine.die()
    await serving
    for task in tasks:
        task.cancel()
    service.ledger.close()


async def _serve(server: DrainingServer, listener: socket.socket) -> None:
    """Without the signal handlers, which belong to the test runner."""
    await server._serve(sockets=[listener])
