"""An appliance from outside: does it run, start it, ask it, end it. Knows no screen and no documents.

Whether one runs is a lock on a file in the state directory, held by supervisord for as long as it lives: the kernel
frees it on any way of dying, and no process id is ever guessed at.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

import psutil

from tandem.contract.channel import connect
from tandem.contract.messages import ApplianceState, Stop, Subscribe
from tandem.contract.plan import Paths, Plan
from tandem.contract.process import die_with_parent
from tandem.director.rundir import write_plan
from tandem.director.supervisord import Supervisord, SupervisordGone, configuration
from tandem.errors import CannotStart
from tandem.units import MIB, format_bytes

ROOM: Final = 256 * MIB  # of disk for logs, ledger and plan; a full disk in the middle of a request helps nobody
LOCK_PATIENCE: Final = 1.0  # seconds: another command may be looking at the lock just now
SUPERVISORD: Final = "supervisor.supervisord"
AGAIN: Final = 0.1  # seconds between attempts to reach a director that is starting or restarting
SLEEPS: Final = 1.0  # seconds that supervisord waits when nobody asks it anything
SOCKET_AGAIN: Final = 0.02  # seconds between looks for its socket, which is there after some tenths


class Lock:
    """The right to run one appliance. Whoever inherits the descriptor holds it."""

    def __init__(self, paths: Paths) -> None:
        self._path = Path(paths.state, "appliance.lock")

    def take(self) -> int | None:
        """The open descriptor, or None when an appliance runs or starts. Raises `CannotStart`."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self._path.parent, "written", error) from None
        deadline = time.monotonic() + LOCK_PATIENCE
        while not _flock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(0.02)
        return descriptor

    def is_held(self) -> bool:
        """Raises `CannotStart` where no state directory can be."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _unusable(self._path.parent, "read", error) from None
        try:
            return not _flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def _unusable(folder: Path, done: str, error: OSError) -> CannotStart:
    help = "set `state` to a folder you may write, or mend its owner"
    return CannotStart(f"{folder} cannot be {done}: {error.strerror}", help)


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# --- before it starts -------------------------------------------------------------------------------------------


def prepare(plan: Plan) -> None:
    """Directories made, writable and with room; nothing left of an earlier run. Raises `CannotStart`."""
    for folder in (plan.paths.state, plan.paths.run, plan.paths.logs):
        make(Path(folder))
    _check_ours(Path(plan.paths.run))
    free = shutil.disk_usage(plan.paths.state).free
    if free < ROOM:
        raise CannotStart(
            f"the disk under {plan.paths.state} is full: {format_bytes(free)} free, {format_bytes(ROOM)} needed",
            "free some space, or set `state` to a folder on another disk",
        )
    for path in Path(plan.paths.run).iterdir():
        path.unlink() if path.is_file() or path.is_symlink() or path.is_socket() else shutil.rmtree(path)


def tidy(paths: Paths) -> None:
    """The run directory lives as long as the appliance. Does nothing when another one has just started there."""
    if not os.path.lexists(paths.run):
        return  # so that no state directory is made where there is none
    lock = Lock(paths).take()
    if lock is not None:
        shutil.rmtree(paths.run, ignore_errors=True)
        os.close(lock)


def make(folder: Path) -> None:
    """A folder of ours that can be written. Raises `CannotStart`."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _unusable(folder, "written", error) from None


def _check_ours(run: Path) -> None:
    """A run directory may lie in /tmp, where anyone could have put a folder or a link of that name before us."""
    look = run.lstat()
    if run.is_symlink() or look.st_uid != os.getuid():
        raise CannotStart(f"{run} is not ours: it belongs to user {look.st_uid}", "remove it, or set a shorter `state`")


def check_port(host: str, port: int) -> None:
    """Raises `CannotStart` with who listens there, when that can be seen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CannotStart(
                f"port {port} on {host} cannot be used: {error.strerror}{_listener(port)}",
                f"stop it, or take another port: `listen.port` in appliance.yaml, or `--set listen.port={port + 1}`",
            ) from None


def _listener(port: int) -> str:
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    break
                process = psutil.Process(connection.pid)
                return f" (held by {process.name()}, pid {process.pid})"
    return ""


def leftovers(paths: Paths) -> list[psutil.Process]:
    """This appliance's processes. Those of an earlier run are finishing, or hang, or lost their state directory."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        ours = ("--run", paths.run) in itertools.pairwise(command) or _is_supervisord(process, command, paths)
        if ours and process.pid != os.getpid():
            found.append(process)
    return found


def _is_supervisord(process: psutil.Process, command: list[str], paths: Paths) -> bool:
    """Its command line is the same for every appliance; its environment names the run directory."""
    if SUPERVISORD not in command:
        return False
    try:
        return process.environ().get("TANDEM_RUN") == paths.run
    except (psutil.Error, OSError):
        return False  # another user's, or gone


def end_leftovers(processes: list[psutil.Process], paths: Paths, patience: float) -> None:
    """End what an earlier run left. A supervisord among it was never told to stop, and would restart the others."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if SUPERVISORD in process.cmdline():
                process.terminate()
    end(processes, patience)
    end(leftovers(paths), 0.0)


def end(processes: list[psutil.Process], patience: float) -> None:
    """TERM was sent already, by whatever ended their parent; KILL after `patience` seconds."""
    _, alive = psutil.wait_procs(processes, timeout=patience)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)


# --- its life ---------------------------------------------------------------------------------------------------


def spawn(plan: Plan, lock: int, *, detach: bool, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """Write the plan, start supervisord, hand it the lock. It ends with this process unless `detach`.

    It gets a session of its own, so that a Ctrl-C in the terminal reaches only this process, which then ends the
    appliance in order. Relative names and imports must not depend on where the user stood: it runs in `/`.
    """
    write_plan(plan)
    environment = {**os.environ, **variables, "TANDEM_RUN": plan.paths.run, "TANDEM_LOGS": plan.paths.logs}
    with Path(plan.paths.logs, "supervisord.err").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", SUPERVISORD, "-n", "-c", str(configuration())],
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=(lock,),
            start_new_session=True,
            umask=0o077,
            preexec_fn=None if detach else die_with_parent,
        )


async def rouse(paths: Paths) -> None:
    """Ask supervisord anything as soon as it listens: left alone it starts the director a second after its birth."""
    deadline = time.monotonic() + SLEEPS
    while time.monotonic() < deadline:
        try:
            await asyncio.to_thread(Supervisord(paths.supervisord_socket).pid)
            return
        except SupervisordGone:
            await asyncio.sleep(SOCKET_AGAIN)


async def pictures(paths: Paths, is_alive: Callable[[], bool]) -> AsyncGenerator[ApplianceState | None]:
    """What the director publishes, until the appliance is gone. None: it does not answer just now."""
    while is_alive():
        try:
            channel = await connect(paths.director_socket)
        except OSError:
            yield None
            await asyncio.sleep(AGAIN)
            continue
        try:
            channel.send(Subscribe())
            while isinstance(message := await channel.receive(), ApplianceState):
                yield message
        except ConnectionError:
            pass
        finally:
            channel.close()
        yield None
        await asyncio.sleep(AGAIN)


async def picture(paths: Paths, patience: float = 2.0) -> ApplianceState | None:
    """One look, or None when the director does not answer within `patience` seconds."""
    deadline = time.monotonic() + patience
    async with contextlib.aclosing(pictures(paths, lambda: time.monotonic() < deadline)) as stream:
        async for state in stream:
            if state is not None:
                return state
    return None


def supervisord_pid(paths: Paths) -> int | None:
    """Only meaningful while the lock is held."""
    try:
        pid = int(Path(paths.run, "supervisord.pid").read_text())
        return pid if any("supervisor" in word for word in psutil.Process(pid).cmdline()) else None
    except (OSError, ValueError, psutil.Error):
        return None


async def ask_to_stop(paths: Paths) -> bool:
    """In order, with running requests finished: the director's work. False when it cannot be reached."""
    try:
        channel = await connect(paths.director_socket)
        channel.send(Stop())
        channel.close()
    except OSError:
        return False
    return True


def terminate(paths: Paths) -> None:
    """Without the director: supervisord stops everything, one after the other."""
    if (pid := supervisord_pid(paths)) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def kill(paths: Paths, pid: int | None) -> None:
    """At once, whatever runs. supervisord first, so that it restarts nothing."""
    family: list[psutil.Process] = []
    if pid is not None:
        with contextlib.suppress(psutil.Error):
            supervisord = psutil.Process(pid)
            family = [supervisord, *supervisord.children(recursive=True)]
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(family, timeout=5)
    end(leftovers(paths), patience=0)


def longest_stop(plan: Plan) -> float:
    """Seconds after which a stop is no longer in order: draining, then every program's own time, then supervisord's."""
    return plan.live.limits.drain_timeout + sum(program.stop_timeout for program in plan.programs) + 10.0
