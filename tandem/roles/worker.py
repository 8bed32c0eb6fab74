"""A role's process: one thread owns the channels (this file), one owns the model.

A caller hears from this side within its deadline whatever the model does. A model that works on one thing for longer
than `HUNG_AFTER` has failed: the process says so of itself and is started anew, and nobody else is touched.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import psutil

from tandem.contract.channel import Channel, ChannelClosed, serve
from tandem.contract.messages import AskDecider, AskHealth, Health, Message, Narrate, Observe, RoleRefusal, Undecided
from tandem.contract.plan import Plan, RolePlan, read_plan
from tandem.contract.process import die_with_parent, set_up_logging
from tandem.errors import CannotStart, ExitStatus, TandemError
from tandem.roles.lease import NoTurn, turn
from tandem.roles.role import Ask, Role

log = logging.getLogger("tandem.role")

HUNG_AFTER: Final = 20.0  # seconds on one piece of work; the slowest whole one takes about two
TURN: Final = 2.0  # seconds of a shared device's turn
MAX_WAITING: Final = 16  # pieces of work that wait for the model
OBSERVED_WITHIN: Final = 60.0  # seconds after which nobody is interested in what a shadow reader thinks

Open = Callable[[RolePlan, Plan], Role]


def main(run: Path, name: str) -> None:
    """`tandem role NAME --run DIR`. Ends the process with the role's exit status."""
    set_up_logging()
    die_with_parent()
    plan = read_plan(run)
    raise SystemExit(asyncio.run(RoleWorker(plan, name, open_role).serve()))


def open_role(role: RolePlan, plan: Plan) -> Role:
    """On the model's thread: importing torch takes seconds. Raises `CannotStart`."""
    match role.kind:
        case "decider":
            from tandem.conductor.conductor import Deciding
            from tandem.roles.decider import Decider, open_backend

            return Decider(open_backend(role), Deciding(plan.live.conducting).all)
        case "narrator":
            from tandem.roles.narrator import Narrator
            from tandem.roles.small_model import open_small_model

            return Narrator(open_small_model(role))
        case _:
            from tandem.conductor.verdicts import Verdicts
            from tandem.roles.decider import open_backend
            from tandem.roles.shadow import ShadowReader

            return ShadowReader(open_backend(role), Verdicts(Path(plan.paths.state)).write)


class Work(msgspec.Struct, frozen=True):
    ask: Ask
    until: float  # monotonic
    done: Callable[[Message | None], None]


class RoleWorker:
    def __init__(self, plan: Plan, name: str, open: Open) -> None:
        """Raises `CannotStart` when the plan has no such role, or gives it no socket."""
        role = next((role for role in plan.roles if role.name == name), None)
        program = plan.program(name)
        if role is None or program is None or program.socket is None:
            raise CannotStart(f"the plan has no role `{name}` with a socket")
        engine = plan.program("engine")
        shares = role.device != "cpu" and role.device == plan.engine.device
        self._engine = Path(engine.socket) if shares and engine is not None and engine.socket else None
        self._plan, self._role, self._open = plan, role, open
        self._socket = Path(program.socket)
        self._waiting: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._num_here = 0  # pieces of work that wait or are being done
        self._health = Health(ready=False, state="loading", sentence="Loading", progress=0.0)
        self._began: float | None = None  # when the model's thread took what it is doing; written by it alone
        self._takes: type[Ask] | None = None

    async def serve(self) -> int:
        """Until TERM, or until the model's thread ends; returns the exit status."""
        loop = asyncio.get_running_loop()
        self._status: asyncio.Future[int] = loop.create_future()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self._leave)
        server = await serve(self._socket, self._converse)
        threading.Thread(target=self._run_model, args=(loop,), name="model", daemon=True).start()
        status = await self._status
        self._socket.unlink(missing_ok=True)
        server.close()
        return status

    def _leave(self) -> None:
        """At once: a role holds nothing of a user's, and whoever waits for it has a deadline."""
        self._socket.unlink(missing_ok=True)
        os._exit(ExitStatus.GOOD)  # not by returning: the model's thread may be deep in native code

    # --- the model's thread ---

    def _run_model(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            role = self._open(self._role, self._plan)
            role.warm_up()
            self._takes = role.takes
            self._health = Health(ready=True, state="ready", sentence=f"{self._role.kind} on {self._role.device}")
            log.info("%s is ready", self._role.name)
            while True:
                self._work(role, self._waiting.get(), loop)
        except TandemError as error:
            log.error("%s%s", error, f" ({error.help})" if error.help else "")
            status = error.exit_status
        except BaseException:
            log.exception("the model's thread failed")
            status = ExitStatus.OUR_BUG
        loop.call_soon_threadsafe(self._status.set_result, int(status))

    def _work(self, role: Role, work: Work, loop: asyncio.AbstractEventLoop) -> None:
        """Work whose time is over before it begins is not begun. A failure is that of one piece of work."""
        self._began = time.monotonic()
        reply: Message | None = Undecided(work.ask.id, RoleRefusal.LATE, "other work took until the deadline")
        if self._began < work.until:
            try:
                reply = role.perform(work.ask, work.until)
            except Exception as error:  # which may quote a user
                log.error("%s could not be done: %s", type(work.ask).__name__, type(error).__name__)
                reply = Undecided(work.ask.id, RoleRefusal.FAILED, f"the model failed ({type(error).__name__})")
        self._began = None
        loop.call_soon_threadsafe(work.done, reply)

    # --- channels ---

    async def _converse(self, channel: Channel) -> None:
        try:
            while (message := await channel.receive()) is not None:
                match message:
                    case AskHealth():
                        channel.send(self.health())
                    case AskDecider() | Narrate() if isinstance(message, self._takes or ()):
                        channel.send(await self._answer(message))
                    case Observe() if self._takes is Observe:
                        await self._observe(message)
                    case AskDecider() | Narrate():
                        channel.send(Undecided(message.id, RoleRefusal.AWAY, f"this {self._role.kind} is not ready"))
                    case _:
                        log.warning("a peer sent a %s: nothing for a role", type(message).__name__)
        except ChannelClosed:
            pass
        except msgspec.DecodeError:
            log.warning("a peer sent what is no message of ours; its connection ends")

    async def _answer(self, ask: AskDecider | Narrate) -> Message:
        """Within the asker's time, counted from here; the work itself may go on."""
        work = asyncio.create_task(self._do(ask, time.monotonic() + ask.within))
        try:
            answer = await asyncio.wait_for(asyncio.shield(work), ask.within)
        except TimeoutError:
            work.add_done_callback(lambda task: task.exception())  # whatever became of it, nobody is left to be told
            return Undecided(ask.id, RoleRefusal.LATE, f"no answer within {ask.within * 1000:.0f} ms")
        except (NoTurn, queue.Full) as error:
            return Undecided(ask.id, RoleRefusal.BUSY, str(error))
        assert answer is not None, "only what nobody waits for goes unanswered"
        return answer

    async def _observe(self, ask: Observe) -> None:
        """Off everybody's path: without a turn it is left out."""
        try:
            await self._do(ask, time.monotonic() + OBSERVED_WITHIN)
        except (NoTurn, queue.Full) as error:
            log.info("not observed: %s", error)

    async def _do(self, ask: Ask, until: float) -> Message | None:
        """On the engine's device inside a turn. Work that outlives it ends the process: the engine counts on that."""
        if self._engine is None:
            return await self._queue(ask, until)
        async with turn(self._engine, TURN, when_idle=not isinstance(ask, Narrate)):
            try:
                return await asyncio.wait_for(self._queue(ask, until), TURN)
            except TimeoutError:
                log.error("the device's turn is over and the model still works: ending")
                os._exit(ExitStatus.OUR_BUG)

    def _queue(self, ask: Ask, until: float) -> asyncio.Future[Message | None]:
        """Raises `queue.Full`."""
        if self._num_here >= MAX_WAITING:
            raise queue.Full("too many questions wait for it")
        self._num_here += 1
        done: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

        def finish(reply: Message | None) -> None:
            self._num_here -= 1
            if not done.done():
                done.set_result(reply)

        self._waiting.put(Work(ask, until, finish))
        return done

    def health(self) -> Health:
        """For a model's thread that hangs, too."""
        age = time.monotonic() - began if (began := self._began) is not None else 0.0
        health = self._health
        if age > HUNG_AFTER:
            sentence = f"hung: one piece of work has taken {age:.0f} s"
            health = Health(ready=False, state="failed", sentence=sentence)
        return msgspec.structs.replace(
            health,
            last_turn_age=age,
            running=int(self._began is not None),
            queued=max(0, self._num_here - 1),
            resident_bytes=psutil.Process().memory_info().rss,
        )
