"""The director, supervisord and `up` for real, over programs that stand in for gateway and engine (`standins.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tandem.cli import appliance as outside
from tandem.cli.raising import bring_down
from tandem.contract.channel import ask_health, connect
from tandem.contract.messages import ApplianceState, ProgramStatus, Subscribe
from tandem.contract.plan import Paths

pytestmark = pytest.mark.wire
STANDINS = Path(__file__).with_name("standins.py")


def until(seen: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for something that is on its way; only a failure takes the time."""
    deadline = time.monotonic() + seconds
    while not (value := seen()):
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
    return value


class Box:
    """One appliance in a directory of its own."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="td-", dir="/tmp"))  # short: sockets lie below
        self.document = self.base / "appliance.yaml"
        self.paths = Paths(str(self.base), str(self.base / "run"), str(self.base / "logs"))
        self.write()

    def write(self, **said: Any) -> float:
        """As careful editors do: a new file takes the old one's name. Returns when."""
        part = self.document.with_suffix(".part")
        part.write_text(json.dumps(said))
        part.replace(self.document)
        return time.time()

    @property
    def written(self) -> str:
        """The id of the plan of the document as it stands."""
        return hashlib.sha256(self.document.read_bytes()).hexdigest()[:12]

    def up(self, *flags: str, **streams: Any) -> subprocess.Popen[str]:
        command = [sys.executable, str(STANDINS), "up", "--document", str(self.document), *flags]
        streams = streams or {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, **streams)

    def picture(self) -> ApplianceState | None:
        return asyncio.run(outside.picture(self.paths, 5.0))

    def serving(self) -> ApplianceState | None:
        state = self.picture()
        return state if state is not None and state.phase == "serving" else None

    def program(self, name: str) -> ProgramStatus:
        state = until(self.picture)
        return next(program for program in state.programs if program.name == name)

    def pids(self) -> dict[str, int]:
        """Of everything, the director and supervisord too."""
        named = {}
        for process in outside.leftovers(self.paths):
            with contextlib.suppress(psutil.Error, IndexError):
                named[process.cmdline()[2]] = process.pid
        return {**named, "supervisord": outside.supervisord_pid(self.paths) or 0}

    def events(self) -> list[tuple[float, str, str]]:
        lines = (self.base / "events").read_text().splitlines() if (self.base / "events").exists() else []
        return [(float(at), name, word) for at, name, word in (line.split(" ", 2) for line in lines)]

    def words(self) -> list[str]:
        return [f"{name} {word.split()[0]}" for _, name, word in self.events()]

    def is_gone(self) -> bool:
        return not outside.Lock(self.paths).is_held() and not outside.leftovers(self.paths)

    def close(self) -> None:
        outside.kill(self.paths, outside.supervisord_pid(self.paths))
        shutil.rmtree(self.base)


@pytest.fixture
def box() -> Iterator[Box]:
    box = Box()
    yield box
    box.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Box]:
    box = Box()
    process = box.up("--detach")
    assert process.wait(60) == 0
    yield box
    box.close()


@pytest.fixture
def running(shared: Box) -> Box:
    """The shared appliance, healthy and with its plain document."""
    shared.write()
    until(lambda: (state := shared.serving()) and state.plan_id == shared.written)
    return shared


# --- coming up and going down -----------------------------------------------------------------------------------


def test_order_drain_and_exit_status(box: Box) -> None:
    box.write(engine=["--load", "0.2", "--busy", "0.5"], drain=100)
    process = box.up()
    until(box.serving)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    words = box.words()
    assert set(words[:4]) == {"gateway start", "gateway ready", "engine start", "engine ready"}
    assert words[4:] == [
        "engine drain",
        "engine term",
        "engine end",
        "gateway term",
        "gateway end",
    ]
    at = {f"{name} {word}": when for when, name, word in box.events()}
    assert 0.5 <= at["engine term"] - at["engine drain"] < 50  # as long as its requests ran, not as long as they may
    assert output.splitlines()[-1].endswith("stopped")
    assert box.is_gone() and not Path(box.paths.run).exists()
    assert "Traceback" not in Path(box.paths.logs, "director.log").read_text()


def test_detached_it_runs_on_and_a_second_up_finds_it(box: Box) -> None:
    first = box.up("--detach")
    assert first.wait(60) == 0
    second = box.up()
    output, _ = second.communicate(timeout=60)
    assert (second.returncode, "already up" in output) == (0, True)
    assert box.words().count("engine start") == 1
    assert asyncio.run(bring_down(box.paths)) == 0
    assert box.is_gone()
    assert asyncio.run(bring_down(box.paths)) == 0


def test_two_ups_at_once_start_one_appliance(box: Box) -> None:
    ups = [box.up("--detach") for _ in range(3)]
    assert [process.wait(60) for process in ups] == [0, 0, 0]
    assert box.words().count("gateway start") == box.words().count("engine start") == 1


def test_an_engine_that_cannot_come_up_ends_it_with_its_last_words(box: Box) -> None:
    box.write(engine=["--exit", "3"])
    process = box.up()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3  # the engine's own word: what it found does not fit
    assert "engine cannot come up: exited with status 3, 3 times in a row" in errors
    assert "engine | it does not work: no such weights" in errors
    starts = [when for when, name, word in box.events() if name == "engine" and word.startswith("start")]
    waits = [after - before for before, after in itertools.pairwise(starts)]
    assert len(starts) == 3 and sum(waits) >= 1.0  # that each is longer than the last is test_decide's to show
    assert box.is_gone()


def test_a_busy_port_is_one_sentence(box: Box) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        box.write(port=port)
        process = box.up()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert f"port {port} on 127.0.0.1 cannot be used: Address already in use (held by " in errors
    assert f"pid {os.getpid()}" in errors and "listen.port" in errors
    assert "Traceback" not in errors
    assert box.is_gone()


def test_a_second_ctrl_c_does_not_wait(box: Box) -> None:
    box.write(engine=["--busy", "600", "--deaf"], drain=600, stop=600)
    process = box.up()
    until(box.serving)
    process.send_signal(signal.SIGINT)
    until(lambda: "engine drain" in box.words())
    time.sleep(0.6)  # a person's second wish, not the same one twice
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert box.is_gone()


def test_a_terminal_that_dies_stops_it_in_order(box: Box) -> None:
    box.write(engine=["--busy", "0.5"])
    terminal, inside = pty.openpty()
    process = box.up(stdin=inside, stdout=inside, stderr=inside, preexec_fn=lambda: become_leader(inside))
    os.close(inside)
    until(box.serving)
    os.close(terminal)  # the kernel sends HUP; a shell may send it again
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0
    assert box.words()[-5:] == ["engine drain", "engine term", "engine end", "gateway term", "gateway end"]
    assert box.is_gone()


def become_leader(terminal: int) -> None:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def test_interrupted_while_it_starts_detached(box: Box) -> None:
    box.write(engine=["--load", "600"])
    process = box.up("--detach")
    until(lambda: "engine start" in box.words())
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert box.is_gone()


# --- no orphans -------------------------------------------------------------------------------------------------


def test_a_killed_up_takes_everything_with_it(box: Box) -> None:
    process = box.up()
    until(box.serving)
    process.kill()
    until(box.is_gone)
    assert "engine term" in box.words()


def test_a_killed_supervisord_leaves_nothing(box: Box) -> None:
    process = box.up()
    until(box.serving)
    os.kill(box.pids()["supervisord"], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "supervisord died" in errors) == (1, True)
    assert box.is_gone()


def test_a_killed_detached_supervisord_leaves_nothing_and_up_starts_anew(box: Box) -> None:
    box.write(engine=["--deaf"])  # the one that stays: nobody is left to kill it
    assert box.up("--detach").wait(60) == 0
    os.kill(box.pids()["supervisord"], signal.SIGKILL)
    until(lambda: not outside.Lock(box.paths).is_held())
    box.write()
    process = box.up("--detach")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "processes of an earlier run" in output
    assert len(outside.leftovers(box.paths)) == 4  # supervisord, director, gateway, engine: nobody of before


def test_up_starts_anew_where_the_state_directory_was_removed(box: Box) -> None:
    assert box.up("--detach").wait(60) == 0
    first = set(box.pids().values())
    for pid in first:
        os.kill(pid, signal.SIGSTOP)  # or some would have ended before anybody looks
    for folder in (box.paths.run, box.paths.logs):
        shutil.rmtree(folder)
    Path(box.paths.state, "appliance.lock").unlink()
    assert not outside.Lock(box.paths).is_held()
    process = box.up("--detach")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert "waiting for 4 processes of an earlier run" in output
    assert not first & set(box.pids().values())
    assert not any(psutil.pid_exists(pid) for pid in first)
    Path(box.paths.state, "appliance.lock").unlink()
    assert asyncio.run(bring_down(box.paths)) == 0
    assert box.is_gone()


def test_down_says_that_requests_were_cut_off(box: Box, capsys: pytest.CaptureFixture[str]) -> None:
    box.write(engine=["--busy", "60"], drain=0.3)
    assert box.up("--detach").wait(60) == 0
    assert asyncio.run(bring_down(box.paths)) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "stopped: 1 request ended unfinished after 0.3 s, every process has ended" in last


# --- recovery ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["engine", "gateway", "director"])
def test_kill_9_brings_it_back_and_touches_nobody_else(running: Box, name: str) -> None:
    before = running.pids()
    os.kill(before[name], signal.SIGKILL)
    until(lambda: running.pids().get(name, before[name]) != before[name])
    until(running.serving)
    after = running.pids()
    assert {other: pid for other, pid in after.items() if other != name} == {
        other: pid for other, pid in before.items() if other != name
    }


def test_a_death_is_noticed_within_a_tenth_of_a_second(running: Box) -> None:
    async def notice(name: str) -> float:
        channel = await connect(running.paths.director_socket)
        channel.send(Subscribe())
        await channel.receive()
        killed = time.monotonic()
        os.kill(running.pids()[name], signal.SIGKILL)
        while True:
            state = await channel.receive()
            assert isinstance(state, ApplianceState)
            program = next(program for program in state.programs if program.name == name)
            if program.state == "backoff":
                assert program.sentence.startswith("was killed by a signal")
                channel.close()
                return time.monotonic() - killed

    took = []
    for name in ("engine", "gateway", "engine"):  # a busy machine may be late itself, not every time
        took.append(asyncio.run(notice(name)))
        until(running.serving)
        if took[-1] < 0.1:
            return
    raise AssertionError(took)


def test_a_process_that_hangs_is_replaced(running: Box) -> None:
    before = running.pids()["engine"]
    os.kill(before, signal.SIGSTOP)
    until(lambda: running.pids().get("engine", before) != before)
    until(running.serving)
    assert not psutil.pid_exists(before)


# --- edits ------------------------------------------------------------------------------------------------------


def engine_health(box: Box) -> dict[str, str]:
    return asyncio.run(ask_health(Path(box.paths.run, "engine.sock"), 30.0)).facts


def test_a_live_edit_acts_within_a_second_and_restarts_nobody(running: Box) -> None:
    before = running.pids()
    edited = running.write(max_queue=3)
    at = until(lambda: next((when for when, _, word in running.events() if word == "live 3"), None))
    assert at - edited < 1.0
    assert engine_health(running) == {"max_queue": "3"}
    report = until(running.serving).reload
    assert report is not None and (report.outcome, report.change) == ("applied", "live")
    assert running.pids() == before


def test_an_engine_edit_drains_and_restarts_only_the_engine(running: Box) -> None:
    before = running.pids()
    running.write(engine=["--version", "2"])
    until(lambda: running.pids().get("engine", before["engine"]) != before["engine"])
    state = until(running.serving)
    assert state.reload is not None and (state.reload.outcome, state.reload.change) == ("applied", "engine")
    assert running.words()[-5:] == ["engine drain", "engine term", "engine end", "engine start", "engine ready"]
    after = running.pids()
    assert {**after, "engine": 0} == {**before, "engine": 0}


def test_a_plan_that_does_not_get_healthy_is_rolled_back(running: Box) -> None:
    before = running.pids()
    running.write(engine=["--exit", "3"])

    def rolled_back() -> ApplianceState | None:
        state = running.serving()
        return state if state and state.reload and state.reload.outcome == "rolled_back" else None

    state = until(rolled_back)
    assert "engine exited with status 3 under the new plan" in state.reload.sentence
    assert "no such weights" in state.reload.details
    after = running.pids()
    assert {**after, "engine": 0} == {**before, "engine": 0}
    assert "--exit" not in psutil.Process(after["engine"]).cmdline()
    assert running.program("engine").state == "ready"


def test_a_wrong_edit_changes_nothing_and_is_told(running: Box) -> None:
    before, words = running.pids(), running.words()
    running.write(wrong=True)

    def refused() -> ApplianceState | None:
        state = running.picture()
        return state if state and state.reload and state.reload.outcome == "refused" else None

    state = until(refused)
    assert state.phase == "serving"
    assert state.reload is not None and "unknown key `wrong`" in state.reload.details
    assert (running.pids(), running.words()) == (before, words)
    assert "unknown key `wrong`" in Path(running.paths.logs, "director.log").read_text()
    running.write()
    until(lambda: (state := running.serving()) and state.reload and state.reload.change == "none")


def test_a_director_that_dies_in_the_middle_of_an_edit_is_followed_by_one_that_ends_it(running: Box) -> None:
    engine = running.pids()["engine"]
    running.write(engine=["--busy", "1"])
    until(lambda: running.serving() and running.program("engine").pid not in (engine, None))
    before = running.pids()
    running.write(engine=["--version", "3"])
    until(lambda: running.words()[-1] == "engine drain")
    os.kill(before["director"], signal.SIGKILL)
    until(lambda: running.pids().get("engine", before["engine"]) != before["engine"])
    until(running.serving)
    after = running.pids()
    assert "3" in psutil.Process(after["engine"]).cmdline()
    assert after["gateway"] == before["gateway"]
