"""Looks at the world: supervisord, the kernel's word about deaths, what each process says of itself, memory.

Looking never waits for a process: a question that gets no answer is counted while the loop goes on.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import psutil
from msgspec.structs import replace

from tandem.contract.channel import ask_health
from tandem.director.state import COMING_UP, Answer, Facts, Process, ProgramState, State
from tandem.director.supervisord import Supervisord
from tandem.memory.reading import MemoryReading, read_memory

CALM: Final = 1.0  # seconds between questions while all is well; deaths and edits are seen at once anyway
BUSY: Final = 0.1  # and while something starts, drains or stops
ASK_TIMEOUT: Final = 3.0  # seconds for one answer about health
REAPING: Final = 20  # questions until supervisord has reaped what the kernel says is dead; it takes one or two

T = TypeVar("T")


class Observer:
    """What was seen last, and what is still being asked. Belongs to the loop's thread."""

    def __init__(self, supervisord: Path, wake: asyncio.Event) -> None:
        self.memory: MemoryReading = read_memory()
        self.answers: dict[str, Answer] = {}
        self.sizes: dict[str, int] = {}  # bytes each process holds alone, as often as supervisord is asked
        self._processes: dict[str, Process] = {}
        self._supervisord = Supervisord(supervisord)
        self._rpc = ThreadPoolExecutor(1, "supervisord")  # one connection, one thread
        self._wake = wake
        self._deaths = Deaths(wake)
        self._looked = 0.0  # when supervisord was asked last
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._asked: dict[str, float] = {}  # when each was asked last

    async def look(self, state: State, written: str) -> Facts:
        """Raises `SupervisordGone`."""
        now = time.monotonic()
        pause = BUSY if is_busy(state) else CALM
        if now >= self._looked + pause or self._deaths.pids:
            self._processes = await self._ask_supervisord()
            self._looked = now
            pids = {name: process.pid for name, process in self._processes.items()}
            held = {name: own_bytes(pid) for name, pid in pids.items() if pid is not None}
            self.sizes = held | {"director": own_bytes(os.getpid())}
        for name, process in self._processes.items():
            record = state.programs.get(name)
            if record is None or record.pid != process.pid:
                self.answers.pop(name, None)  # another process's
            if process.pid is not None:
                self._deaths.watch(process.pid)
                if name not in self._asking and now >= self._asked.get(name, 0.0) + pause:
                    self._ask(name, process.pid, state)
        self.memory = read_memory()
        return Facts(dict(self._processes), dict(self.answers), self.memory, written)

    async def command(self, method: Callable[[Supervisord], T]) -> T:
        """One call to supervisord, off the loop's thread; what it changed is looked at in the next step."""
        self._looked = 0.0
        return await asyncio.get_running_loop().run_in_executor(self._rpc, method, self._supervisord)

    def held(self) -> int:
        """Bytes our processes would give back to a new plan: their own pages, or what they say they hold."""
        held = 0
        for name, process in self._processes.items():
            health = self.answers.get(name, Answer()).health
            own = own_bytes(process.pid) if process.pid is not None else 0
            held += max(own, health.resident_bytes if health else 0)
        return held

    def close(self) -> None:
        self._rpc.shutdown(wait=False)

    async def _ask_supervisord(self) -> dict[str, Process]:
        for _ in range(REAPING):
            processes = await self.command(Supervisord.processes)
            self._deaths.pids &= {process.pid for process in processes.values() if process.pid is not None}
            if not self._deaths.pids:
                break
            await asyncio.sleep(0.002)
        return {name: process for name, process in processes.items() if process.pid != os.getpid()}

    def _ask(self, name: str, pid: int, state: State) -> None:
        program = state.plan.program(name)
        if program is None or program.socket is None:
            return
        task = asyncio.create_task(self._hear(name, pid, Path(program.socket)))
        self._asking[name] = task
        task.add_done_callback(lambda _: self._asking.pop(name))

    async def _hear(self, name: str, pid: int, socket: Path) -> None:
        """One question about health. The answer counts only if the process that was asked is still the one there."""
        self._asked[name] = asked = time.monotonic()
        before = self.answers.get(name, Answer())
        try:
            async with asyncio.timeout(ASK_TIMEOUT):
                answer = Answer(await ask_health(socket, ASK_TIMEOUT), asked)
        except (OSError, TimeoutError, msgspec.MsgspecError):
            answer = replace(before, unanswered=before.unanswered + 1)
        if name in self._processes and self._processes[name].pid == pid:
            self.answers[name] = answer
            if answer.health != before.health:
                self._wake.set()


def own_bytes(pid: int) -> int:
    """Resident memory that is this process's alone; 0 for one that is gone."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - memory.shared)


class Deaths:
    """Notices within a millisecond that a process has ended, whoever's child it is."""

    def __init__(self, wake: asyncio.Event) -> None:
        self.pids: set[int] = set()  # dead, and supervisord may not know yet
        self._wake = wake
        self._watched: dict[int, int] = {}  # pid -> pidfd

    def watch(self, pid: int) -> None:
        if pid in self._watched:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self.pids.add(pid)
            return
        self._watched[pid] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._died, pid)

    def _died(self, pid: int) -> None:
        descriptor = self._watched.pop(pid)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self.pids.add(pid)
        self._wake.set()


def is_busy(state: State) -> bool:
    """Whether something is on its way from one state to another."""
    moving = COMING_UP | {ProgramState.DRAINING, ProgramState.STOPPING}
    return state.stop or any(record.state in moving for record in state.programs.values())
