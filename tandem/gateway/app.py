"""The gateway process: binds first, then reads the vocabulary, then serves until it is told to stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
from pathlib import Path
from types import FrameType
from typing import Final

import psutil
import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from tandem.contract.channel import Channel, serve
from tandem.contract.messages import AskHealth, AskWhy, Health, Why
from tandem.contract.plan import Plan, read_plan
from tandem.contract.process import Stages, die_with_parent, set_up_logging
from tandem.errors import CannotStart
from tandem.gateway.gate import Gate
from tandem.gateway.routes import make_app
from tandem.gateway.service import Service
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import read_vocabulary
from tandem.units import format_duration

_log = logging.getLogger("tandem.gateway")

GONE_AFTER: Final = 60  # seconds a client may leave bytes unacknowledged before the kernel closes its connection
_KEEP_IDLE: Final = 75  # seconds an idle connection stays open for its client's next request


def main(run: Path) -> None:
    """Serve the plan in the run directory. Returns when it was stopped; raises `CannotStart`."""
    die_with_parent()
    set_up_logging()
    stages = Stages()
    plan = read_plan(run)
    listener = bind(plan.gateway.host, plan.gateway.port)
    stages.ended("runtime")
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:  # uvloop, where there is one
        runner.run(serve_http(plan, listener, stages))


def bind(host: str, port: int) -> socket.socket:
    """Listening from now on: whoever connects while the rest is read waits a moment and is answered.

    Clients that vanish, or stay and stop reading, are closed by the kernel after `GONE_AFTER` seconds, which frees
    their slots. Raises `CannotStart` when the port is taken or
    the host is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=host == "::")
    except (OSError, UnicodeError) as error:
        is_port = isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES)
        raise CannotStart(
            f"{host}:{port} cannot be bound: {getattr(error, 'strerror', None) or 'this is no name of a host'}",
            "`listen.port` in appliance.yaml chooses another port"
            if is_port
            else "`listen.host` in appliance.yaml takes an address of this machine; `0.0.0.0` is every one",
        ) from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_AFTER * 1000)
    return listener


async def serve_http(plan: Plan, listener: socket.socket, stages: Stages) -> None:
    """Until a signal. A background task that fails ends the process, which is started anew: better than half of it."""
    service = Service(plan, Tokenizer(read_vocabulary(Path(plan.gateway.weights))))
    stages.ended("vocabulary")
    server = DrainingServer(service)
    stages.ended("routes")
    own = plan.program("gateway")
    try:
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(service.engine.run()), group.create_task(service.director.run())]
            if own is not None and own.socket is not None:
                background.append(group.create_task(answer(Path(own.socket), service, server)))
            _log.info("ready after %s", stages)
            await server.serve(sockets=[listener])
            for task in background:
                task.cancel()
    finally:
        service.ledger.close()


class DrainingServer(uvicorn.Server):
    """The first signal lets running requests finish, while new ones are told to come back; a second one ends it."""

    def __init__(self, service: Service) -> None:
        super().__init__(
            uvicorn.Config(
                Gate(make_app(service), service),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_KEEP_IDLE,
                timeout_graceful_shutdown=1,
            )
        )
        self._service = service
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Runs in a signal handler: it only leaves word for the loop."""
        self._loop.call_soon_threadsafe(self._stop, sig)

    def _stop(self, sig: int) -> None:
        if self._service.is_stopping:
            self.should_exit = True
            return
        self._service.is_stopping = True
        limit = self._service.live.limits.drain_timeout
        _log.info(
            "%s: %d requests may finish within %s",
            signal.Signals(sig).name,
            self._service.in_flight,
            format_duration(limit),
        )
        self._draining = asyncio.create_task(self._drain(limit))

    async def _drain(self, limit: float) -> None:
        try:
            async with asyncio.timeout(limit):
                await self._service.wait_idle()
        except TimeoutError:
            _log.warning("%d requests did not finish in time", self._service.in_flight)
        self.should_exit = True


async def answer(path: Path, service: Service, server: uvicorn.Server) -> None:
    """The gateway's word about itself (ready means it answers HTTP, whatever the engine does) and about requests."""

    async def converse(channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            if isinstance(message, AskHealth):
                channel.send(health_of(service, server.started))
            elif isinstance(message, AskWhy):
                channel.send(Why(service.misses.tell(message.id)))

    listening = await serve(path, converse)
    async with listening:
        await listening.serve_forever()


def health_of(service: Service, has_started: bool) -> Health:
    state = "draining" if service.is_draining else "ready" if has_started else "loading"
    return Health(
        ready=has_started,
        state=state,
        sentence=f"{service.in_flight} request{'' if service.in_flight == 1 else 's'} in flight",
        running=service.in_flight,
        resident_bytes=psutil.Process().memory_info().rss,
    )
