"""supervisord's door: the only place that speaks XML-RPC.

supervisord keeps processes alive and knows neither order nor readiness. Every call here returns at once: a call that
waits costs it a whole core while it waits. Deaths are seen through pidfds, because left alone it notices one up to
two seconds late; any call makes it look.
"""

from __future__ import annotations

import http.client
import signal
import socket
import xmlrpc.client
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from tandem.director.state import Process
from tandem.errors import CannotStart

CONFIGURATION: Final = "supervisor/supervisord.conf"
_TIMEOUT: Final = 10.0  # seconds for one call; supervisord answers in about a millisecond
_LAST_WORDS: Final = 4096  # bytes of a dead process's log that may explain its death
_ALIVE: Final = frozenset({"STARTING", "RUNNING", "STOPPING"})
_SHUTTING_DOWN, _BAD_NAME, _SPAWN_ERROR, _ALREADY_STARTED, _NOT_RUNNING, _ALREADY_ADDED = 6, 10, 50, 60, 70, 90

T = TypeVar("T")


class SupervisordGone(ConnectionError):
    """Nobody answers on supervisord's socket, or not in time."""


def configuration() -> Path:
    """supervisord's static file: beside the package in a checkout, under /opt/tandem in the image.

    Raises `CannotStart` with both places.
    """
    candidates = [root / CONFIGURATION for root in (Path(__file__).parents[2], Path("/opt/tandem"))]
    for path in candidates:
        if path.is_file():
            return path
    raise CannotStart(
        f"{CONFIGURATION} is neither in {candidates[0].parents[1]} nor in /opt/tandem",
        "copy the folder `supervisor` of the source to /opt/tandem",
    )


class Supervisord:
    """One connection; use from one thread. Every method may raise `SupervisordGone`."""

    def __init__(self, path: Path) -> None:
        # The address is never used: the transport connects to the socket instead.
        self._rpc: Any = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=_UnixTransport(path)).supervisor
        self._refused: dict[str, str] = {}  # why the last start came to nothing: supervisord forgets it

    def pid(self) -> int:
        pid: int = self._call(self._rpc.getPID)
        return pid

    def processes(self) -> dict[str, Process]:
        """Every program supervisord knows. A log is read only for those that have died."""
        return {info["name"]: self._process(info) for info in self._call(self._rpc.getAllProcessInfo)}

    def start(self, name: str) -> None:
        """Take the program's section as it is on disk now, then start it. Readiness is for others to see."""
        self._refused.pop(name, None)
        try:
            self._take_section(name)
            self._call(self._rpc.startProcess, name, False)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode not in (_ALREADY_STARTED, _SPAWN_ERROR):  # supervisord keeps the words of a spawn error
                self._refused[name] = f"could not be started: {fault.faultString.partition(':')[2].strip()}"

    def stop(self, name: str) -> None:
        """TERM now; supervisord sends KILL itself when the program's time is over."""
        self._forgiving({_NOT_RUNNING, _BAD_NAME}, self._rpc.stopProcess, name, False)

    def kill(self, name: str) -> None:
        self._forgiving({_NOT_RUNNING, _BAD_NAME}, self._rpc.signalProcess, name, str(int(signal.SIGKILL)))

    def remove(self, name: str) -> None:
        self._forgiving({_BAD_NAME}, self._rpc.removeProcessGroup, name)

    def shut_down(self) -> None:
        self._call(self._rpc.shutdown)

    def _take_section(self, name: str) -> None:
        """`reloadConfig` only reads and compares; a changed section counts after its group was taken out and in."""
        ((added, changed, _),) = self._call(self._rpc.reloadConfig)
        if name in changed:
            self._call(self._rpc.removeProcessGroup, name)
        if name in changed or name in added:
            self._forgiving({_ALREADY_ADDED}, self._rpc.addProcessGroup, name)

    def _process(self, info: dict[str, Any]) -> Process:
        name, state = info["name"], info["statename"]
        if state in _ALIVE and info["pid"]:
            return Process(pid=info["pid"], stopping=state == "STOPPING")
        if name in self._refused:
            return Process(pid=None, exit=self._refused[name])
        last_words = _tail(info["stdout_logfile"]) if info["stop"] else ""
        return Process(pid=None, exit=_exit(info), status=_status(info), last_words=last_words)

    def _forgiving(self, faults: set[int], method: Callable[..., T], *arguments: object) -> None:
        """A fault that says the thing is already so is no failure: the next look decides."""
        try:
            self._call(method, *arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode not in faults:
                raise

    def _call(self, method: Callable[..., T], *arguments: object) -> T:
        try:
            return method(*arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode == _SHUTTING_DOWN:
                raise SupervisordGone("supervisord is shutting down") from fault
            raise
        except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
            raise SupervisordGone(str(error)) from error


class _UnixTransport(xmlrpc.client.Transport):
    """XML-RPC over supervisord's socket, one kept connection."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: object) -> http.client.HTTPConnection:
        if self._connection[1] is None:
            self._connection = "", _UnixConnection(self._path)
        return self._connection[1]  # type: ignore[return-value]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _exit(info: dict[str, Any]) -> str:
    """How the last process ended, as a clause. A process that never ran has no ending."""
    if info["statename"] in ("BACKOFF", "FATAL"):
        return f"could not be started: {info['spawnerr']}"
    if not info["stop"]:
        return ""
    if info["exitstatus"] == -1:  # supervisord keeps no more than that
        return "was killed by a signal"
    return f"exited with status {info['exitstatus']}"


def _status(info: dict[str, Any]) -> int | None:
    ended = info["stop"] and info["statename"] not in ("BACKOFF", "FATAL") and info["exitstatus"] != -1
    return int(info["exitstatus"]) if ended else None


def _tail(file: str) -> str:
    """The last whole lines of a log."""
    try:
        with Path(file).open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - _LAST_WORDS))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-12:])
