"""Raising an appliance, staying with it, and bringing it down: what `up` and `down` do once the plan is known."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from tandem.cli.appliance import (
    Lock,
    ask_to_stop,
    check_port,
    end,
    end_leftovers,
    kill,
    leftovers,
    longest_stop,
    pictures,
    prepare,
    rouse,
    spawn,
    supervisord_pid,
    terminate,
    tidy,
)
from tandem.cli.screen import Screen, complain, curl, url
from tandem.contract.messages import ApplianceState
from tandem.contract.plan import Paths, Plan, read_plan
from tandem.director.decide import STOPPING
from tandem.errors import CannotStart, ExitStatus

DIRECTOR_PATIENCE: Final = 30.0  # seconds without a word from the director before it counts as unable to come up
LEFTOVER_PATIENCE: Final = 10.0  # seconds for processes whose supervisord was killed to finish by themselves
LAST_WORDS: Final = 15  # lines of a log that are shown when a program cannot come up
INTERRUPTED: Final = 130
SAME_WISH: Final = 0.5  # seconds within which a second Ctrl-C is the first one, sent twice


async def raise_appliance(plan: Plan, *, detach: bool, variables: dict[str, str]) -> int:
    """Start it and stay until it ends, or with `detach` until it is ready. Returns the exit status.

    `variables` are the `--set` flags for the director, which reads the documents again on every edit.
    Raises `CannotStart` before anything was started.
    """
    lock = Lock(plan.paths).take()
    if lock is None:
        return await attend_existing(plan.paths)
    with Screen() as screen:
        try:
            if strays := leftovers(plan.paths):
                screen.say(f"waiting for {len(strays)} processes of an earlier run to finish")
                await asyncio.to_thread(end_leftovers, strays, plan.paths, LEFTOVER_PATIENCE)
            prepare(plan)
            check_port(plan.gateway.host, plan.gateway.port)
            supervisord = spawn(plan, lock, detach=detach, variables=variables)
        except OSError as error:
            raise CannotStart(f"{error.filename or plan.paths.run}: {error.strerror}") from None
        finally:
            os.close(lock)  # supervisord holds it now, or nobody does
        return await Attendance(plan, supervisord, screen, detach).run()


class Attendance:
    """Somebody who started an appliance and watches it. One signal ends it in order, a second Ctrl-C at once."""

    def __init__(self, plan: Plan, supervisord: subprocess.Popen[bytes], screen: Screen, detach: bool) -> None:
        self._plan = plan
        self._supervisord = supervisord
        self._screen = screen
        self._detach = detach
        self._was_ready = False
        self._status: int = ExitStatus.GOOD
        self._stopping = False
        self._quiet_since = time.monotonic()
        self._signalled_at = 0.0
        self._stop_task: asyncio.Task[None] | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in ending_signals():
            loop.add_signal_handler(number, self._signalled, number)
        await rouse(self._plan.paths)
        async with contextlib.aclosing(pictures(self._plan.paths, self._is_alive)) as stream:
            async for picture in stream:
                if picture is None:
                    self._check_silence()
                    continue
                self._quiet_since = time.monotonic()
                self._screen.show(picture)
                self._stopping |= picture.phase == "stopping"  # `tandem down` elsewhere
                if self._stopping:
                    continue
                if picture.phase == "serving" and not self._was_ready:
                    self._announce()
                    if self._detach:
                        return ExitStatus.GOOD
                self._give_up_on(picture)
        return self._ended()

    def _is_alive(self) -> bool:
        return self._supervisord.poll() is None

    def _announce(self) -> None:
        self._was_ready = True
        self._screen.settle()
        announce(self._plan)
        if not self._detach:
            self._screen.say("Ctrl-C stops it")

    def _give_up_on(self, picture: ApplianceState) -> None:
        """A vital program that fails again and again before it ever served ends the attempt; later it is mended."""
        failed = [p for p in picture.programs if p.state == "failed" and p.kind in ("gateway", "engine")]
        if self._was_ready or not failed:
            return
        refused = failed[0].exit_status == ExitStatus.DOES_NOT_FIT  # by what it found: no bug of ours
        status = ExitStatus.DOES_NOT_FIT if refused else ExitStatus.OUR_BUG
        self._fail(f"{failed[0].name} cannot come up: {failed[0].sentence}", failed[0].name, status)

    def _check_silence(self) -> None:
        if not self._stopping and not self._was_ready and time.monotonic() - self._quiet_since > DIRECTOR_PATIENCE:
            self._fail("the director does not come up", "director")

    def _fail(self, sentence: str, program: str, status: ExitStatus = ExitStatus.OUR_BUG) -> None:
        self._status = status
        self._screen.settle()
        complain(f"error: {sentence}")
        for line in last_words(self._plan.paths, program):
            complain(f"  {program} | {line}")
        self._stop()

    def _signalled(self, number: signal.Signals) -> None:
        """Terminals and wrappers send a signal more than once: only a second Ctrl-C after a moment is a wish."""
        now = time.monotonic()
        if self._stopping:
            if number is signal.SIGINT and now - self._signalled_at > SAME_WISH:
                self._screen.say("stopping at once")
                kill(self._plan.paths, self._supervisord.pid)
            return
        self._signalled_at = now
        self._screen.settle()
        if self._detach:
            self._status = INTERRUPTED
        self._screen.say("stopping: running requests finish first; another Ctrl-C does not wait")
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        self._stop_task = asyncio.create_task(self._see_it_stop())

    async def _see_it_stop(self) -> None:
        """The director stops it in order; what does not come down in time is brought down."""
        if not await ask_to_stop(self._plan.paths):
            self._supervisord.terminate()
        await asyncio.sleep(longest_stop(self._plan))
        kill(self._plan.paths, self._supervisord.pid)

    def _ended(self) -> int:
        """supervisord is gone: make sure that nothing else is left, and say how it went."""
        strays = leftovers(self._plan.paths)
        if not self._stopping:
            self._status = ExitStatus.OUR_BUG
            complain("error: supervisord died; its programs were ended")
            for line in last_words(self._plan.paths, "supervisord"):
                complain(f"  supervisord | {line}")
        end(strays, 0.0 if self._stopping else LEFTOVER_PATIENCE)
        tidy(self._plan.paths)
        if self._status == ExitStatus.GOOD:
            self._screen.say("stopped")
            if self._detach:  # it was to run on, and somebody else stopped it first
                return ExitStatus.OUR_BUG
        return self._status


def ending_signals() -> list[signal.Signals]:
    """HUP is left alone where it is ignored: `nohup tandem up` means it."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


async def attend_existing(paths: Paths) -> int:
    """Somebody else started it: wait until it serves, or say why it does not."""
    lock, quiet_since = Lock(paths), time.monotonic()
    with Screen(joins=True) as screen:
        async with contextlib.aclosing(pictures(paths, lock.is_held)) as stream:
            async for picture in stream:
                if picture is None:
                    if time.monotonic() - quiet_since > DIRECTOR_PATIENCE:
                        complain("error: an appliance runs here, but its director does not answer")
                        return ExitStatus.OUR_BUG
                    continue
                quiet_since = time.monotonic()
                screen.show(picture)
                if picture.phase == "serving":
                    screen.settle()
                    screen.say(f"already up: {url(read_plan(Path(paths.run)))}")
                    return ExitStatus.GOOD
                if picture.phase == "stopping":
                    raise CannotStart("it is just being stopped", "wait a moment, then `tandem up` again")
    complain("error: the appliance that was starting here has ended; `tandem logs` says why")
    return ExitStatus.OUR_BUG


async def bring_down(paths: Paths) -> int:
    """Ask for an orderly end, wait for it, and say what was done. Nothing running is no error."""
    lock, started, cut = Lock(paths), time.monotonic(), ""
    if not lock.is_held():
        strays = leftovers(paths)
        await asyncio.to_thread(end_leftovers, strays, paths, LEFTOVER_PATIENCE)
        tidy(paths)
        print(f"nothing was running; ended {len(strays)} leftover processes" if strays else "nothing was running")
        return ExitStatus.GOOD
    pid = supervisord_pid(paths)
    try:
        plan = read_plan(Path(paths.run))
    except OSError:
        raise CannotStart("an `up` is just beginning here", "try again in a moment") from None
    asked = await ask_to_stop(paths)
    if not asked:
        terminate(paths)
    deadline = started + longest_stop(plan)

    def is_alive() -> bool:
        return lock.is_held() and time.monotonic() < deadline

    with Screen(joins=True) as screen:
        async with contextlib.aclosing(pictures(paths, is_alive)) as stream:
            async for picture in stream:
                if picture is not None:
                    screen.show(picture)
                    cut = cut_off(picture) or cut
        screen.settle()
        overdue = lock.is_held()
        if overdue:
            kill(paths, pid)
        await asyncio.to_thread(end, leftovers(paths), 0.0)
        tidy(paths)
        took = f"{time.monotonic() - started:.1f} s"
        if overdue:
            screen.say(f"killed: it did not stop within {longest_stop(plan):.0f} s")
        elif asked:
            screen.say(f"stopped: {cut or 'running requests were finished'}, every process has ended ({took})")
        else:
            screen.say(f"stopped through supervisord, because the director did not answer ({took})")
    return ExitStatus.GOOD


def cut_off(picture: ApplianceState) -> str:
    """What the director says of requests that outlasted the drain; empty while there is nothing to say."""
    stopping = (p.sentence for p in picture.programs if p.kind == "engine" and p.state == "stopping")
    return next((sentence for sentence in stopping if sentence != STOPPING), "")


def announce(plan: Plan) -> None:
    """It serves: where, out of what memory, and a line to try."""
    from tandem.cli.plan_view import print_memory_table

    slots = len(plan.engine.slots)
    print(f"\n{plan.gateway.model} is up at {url(plan)}, {slots} slot{'s' if slots > 1 else ''}\n")
    print_memory_table(plan)
    print(f"\nTry it:\n  {curl(plan)}\n", flush=True)


def last_words(paths: Paths, program: str) -> list[str]:
    """The end of a program's log. For supervisord that is what it said before it could log."""
    name = "supervisord.err" if program == "supervisord" else f"{program}.log"
    try:
        text = Path(paths.logs, name).read_text(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-LAST_WORDS:]
