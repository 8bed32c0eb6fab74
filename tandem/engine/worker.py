"""The engine's process: one thread owns the channels (this file), one owns the model (`device`).

This side speaks the contract's messages with any number of peers, answers `AskHealth` by itself (so a device thread
that loads or hangs is visible), and knows nothing of slots. It is up before the model is loaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec
import psutil

from tandem.contract.channel import Channel, ChannelClosed, connect, serve
from tandem.contract.messages import (
    AskHealth,
    AskLease,
    Cancel,
    Drain,
    FreeRoles,
    Generate,
    Grammar,
    Health,
    Message,
    Resume,
    ReturnLease,
    RolesFreed,
    SetLive,
)
from tandem.contract.plan import Live, Plan, read_plan
from tandem.contract.process import die_with_parent, set_up_logging
from tandem.engine.grammar.compiling import Compiler, Compiles
from tandem.engine.letters import Leave, Link, PeerGone, Received, Sent
from tandem.engine.preparing import Preparing
from tandem.errors import CannotStart, ExitStatus, TandemError
from tandem.memory.reading import read_memory

log = logging.getLogger("tandem.engine")

DIRECTOR_ANSWERS: Final = 0.5  # seconds it gets; all slots wait meanwhile
ROLES_LEAVE: Final = 1.0  # seconds from its answer until what roles held is back, or somebody else has it
LOOK_AGAIN: Final = 0.01
LAST_WORDS: Final = 2.0  # seconds that peers get to read what was sent before the process ends
ENDED_AT_ONCE: Final = 128 + signal.SIGTERM


def main(run: Path) -> None:
    """`tandem engine --run DIR`. Ends the process with the engine's exit status."""
    set_up_logging()
    die_with_parent()
    raise SystemExit(asyncio.run(_run(read_plan(run))))


async def _run(plan: Plan) -> int:
    worker = Worker(plan)
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, worker.terminate)
    return await worker.serve()


def run_device(plan: Plan, link: Link) -> None:
    from tandem.engine import device  # here, on its own thread: see there

    device.run(plan, link)


class Worker:
    def __init__(
        self, plan: Plan, device: Callable[[Plan, Link], None] = run_device, compiler: Compiles | None = None
    ) -> None:
        """`compiler` reads grammars; None takes one for the plan's weights."""
        program = plan.program("engine")
        if program is None or program.socket is None:
            raise CannotStart("the plan has no engine with a socket")
        self._plan = plan
        self._socket = Path(program.socket)
        self._device = device
        self._compiler = compiler
        self._channels: dict[int, Channel] = {}
        self._numbers = count(1)
        self._leaving = False

    async def serve(self) -> int:
        """Until the device thread ends; returns the exit status."""
        loop = asyncio.get_running_loop()
        self._status: asyncio.Future[int] = loop.create_future()

        def post(letters: list[Sent]) -> None:
            loop.call_soon_threadsafe(self._deliver, letters)

        self._link = Link(
            inbox=SimpleQueue(),
            outbox=post,
            health=Health(ready=False, state="loading", sentence="Loading", progress=0.0),
            beat=time.monotonic(),
            ask_roles=lambda size: self._ask_roles(loop, size),
        )
        self._preparing = Preparing(self._compiler or Compiler(Path(self._plan.engine.weights)), self._link.inbox.put)
        server = await serve(self._socket, self._converse)
        threading.Thread(target=self._run_device, args=(loop,), name="device", daemon=True).start()
        status = await self._status
        self._socket.unlink(missing_ok=True)
        server.close()
        await self._close_channels()
        return status

    def terminate(self) -> None:
        """The first time: finish what is here, refuse what comes, end. The second time: end at once."""
        if self._leaving:
            log.warning("told twice to end: ending at once")
            os._exit(ENDED_AT_ONCE)
        self._leaving = True
        if self._link.health.state == "loading":
            log.info("told to end while loading")
            os._exit(ExitStatus.GOOD)  # not by returning: the device thread is deep in native code
        log.info("told to end: draining")
        self._link.inbox.put(Received(0, Leave()))
        self._preparing.hand_over()

    # --- the device thread ---

    def _run_device(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._device(self._plan, self._link)
            status = ExitStatus.GOOD
        except TandemError as error:
            log.error("%s%s", error, f" ({error.help})" if error.help else "")
            status = error.exit_status
        except BaseException:
            log.exception("the device thread failed")
            status = ExitStatus.OUR_BUG
        loop.call_soon_threadsafe(self._status.set_result, int(status))

    def _deliver(self, letters: list[Sent]) -> None:
        """What a turn said, one piece a peer: it wakes each of them once."""
        by_peer: dict[int, list[Message]] = {}
        for letter in letters:
            by_peer.setdefault(letter.peer, []).append(letter.message)
        for peer, messages in by_peer.items():
            if channel := self._channels.get(peer):
                try:
                    channel.send(*messages)
                except ChannelClosed:
                    self._forget(peer)

    def _ask_roles(self, loop: asyncio.AbstractEventLoop, size: int) -> int:
        """For the device thread. The director decides and acts; a moment is waited until the kernel has the memory."""
        if not self._plan.roles:
            return 0
        before = read_memory().available
        asking = asyncio.run_coroutine_threadsafe(free_roles(self._plan.paths.director_socket, size), loop)
        try:
            freed = asking.result(DIRECTOR_ANSWERS)
        except (OSError, TimeoutError) as error:
            asking.cancel()
            log.warning("the director does not answer about roles: %s", error or "too late")
            return 0
        deadline = time.monotonic() + ROLES_LEAVE
        while freed and read_memory().available < before + freed // 2 and time.monotonic() < deadline:
            time.sleep(LOOK_AGAIN)
        return freed

    # --- channels ---

    async def _converse(self, channel: Channel) -> None:
        peer = next(self._numbers)
        self._channels[peer] = channel
        try:
            while (message := await channel.receive()) is not None:
                match message:
                    case AskHealth():
                        channel.send(self._health())
                    case SetLive(live=live):
                        msgspec.json.decode(live, type=Live)  # a broken plan ends its sender, not the device thread
                        self._link.inbox.put(Received(peer, message))
                    case Generate(grammar=Grammar() as grammar):
                        self._preparing.take(peer, message, grammar)
                    case Cancel(id=id) if (finished := self._preparing.cancel(peer, id)) is not None:
                        channel.send(finished)
                    case Generate() | Cancel() | Drain() | Resume() | AskLease() | ReturnLease():
                        self._link.inbox.put(Received(peer, message))
                    case _:
                        log.warning("peer %d sent a %s: nothing for an engine", peer, type(message).__name__)
        except ChannelClosed:
            pass
        except msgspec.DecodeError as error:
            log.warning("peer %d sent what is no message of ours (%s); its connection ends", peer, error)
        finally:
            self._forget(peer)

    def _forget(self, peer: int) -> None:
        if self._channels.pop(peer, None):
            self._preparing.forget(peer)
            self._link.inbox.put(Received(peer, PeerGone()))

    def _health(self) -> Health:
        health, age = self._link.health, time.monotonic() - self._link.beat
        resident = psutil.Process().memory_info().rss
        return msgspec.structs.replace(health, last_turn_age=age, resident_bytes=resident)

    async def _close_channels(self) -> None:
        """Let the last words out: a client should read how its request ended, not a closed connection."""
        channels = list(self._channels.values())
        for channel in channels:
            channel.close()
        if channels:
            await asyncio.wait([asyncio.create_task(channel.wait_closed()) for channel in channels], timeout=LAST_WORDS)


async def free_roles(director: Path, size: int) -> int:
    """Ask for `size` bytes of roles; returns what that frees. Raises `OSError` when the director is away."""
    channel = await connect(director)
    try:
        answer = await channel.ask(FreeRoles(size), DIRECTOR_ANSWERS)
    finally:
        channel.close()
    return answer.bytes if isinstance(answer, RolesFreed) else 0
