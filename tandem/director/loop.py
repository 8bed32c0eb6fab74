"""The director's loop: look, decide, act, tell. `Director.step` is the whole of it; deciding is `decide.py`.

One task owns the state. What comes from elsewhere (an edit, a wish to stop) waits in the inbox for the next step;
what happens elsewhere (a death, an answer) is a fact of the next look. Both wake the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from tandem.contract import messages
from tandem.contract.channel import Channel, ChannelClosed, connect, serve
from tandem.contract.messages import ApplianceState
from tandem.contract.plan import read_plan
from tandem.contract.process import die_with_parent, set_up_logging
from tandem.director.decide import decide
from tandem.director.observe import BUSY, CALM, Observer, is_busy
from tandem.director.publish import publish
from tandem.director.reload import Judge, Judgement, apply, judge_documents, judge_edit
from tandem.director.roles import roles_freed
from tandem.director.rundir import read_memory_of_director, write_memory, write_plan
from tandem.director.state import (
    Action,
    Drain,
    Kill,
    Note,
    ProgramState,
    Remove,
    Resume,
    ShutDown,
    Start,
    State,
    Stop,
    TellLive,
    WritePlan,
    names,
)
from tandem.director.supervisord import Supervisord, SupervisordGone
from tandem.director.watch import Contents, edits
from tandem.residency.journal import Journal

TICK: Final = 0.2  # seconds between memory readings; while all is well nothing else happens that often

_log = logging.getLogger("director")


class Director:
    """Follows the plan in the run directory. `judge` reads the documents; a test may bring its own."""

    def __init__(self, run: Path, judge: Judge = judge_documents) -> None:
        plan = read_plan(run)
        self._run = run
        self._judge = judge
        self._state = read_memory_of_director(run) or State(plan=plan)
        self._written = plan.id
        self._inbox: list[Callable[[State], State]] = []
        self._wake = asyncio.Event()
        self._ended = False
        self._observer = Observer(plan.paths.supervisord_socket, self._wake)
        self._epoch = time.time() - time.monotonic()
        self._published = self._picture()
        self._subscribers: set[Channel] = set()
        self._asking_for_memory: list[asyncio.Future[messages.RolesFreed]] = []
        self._journal = Journal(Path(plan.paths.state))

    async def follow(self) -> None:
        """Until TERM, or until everything has stopped because somebody asked for that."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end)
        server = await serve(self._state.plan.paths.director_socket, self._converse)
        documents = asyncio.create_task(self._follow_documents())
        _log.info("follows plan %s", self._state.plan.id)
        try:
            while not self._ended:
                acted = await self.step()
                pause = 0.0 if acted else BUSY if is_busy(self._state) else TICK
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
                self._wake.clear()
        finally:
            documents.cancel()
            server.close()
            self._observer.close()

    async def step(self) -> bool:
        """Look, decide, act, tell. True when something was done, so that it is worth looking again at once."""
        try:
            facts = await self._observer.look(self._state, self._written)
        except SupervisordGone as error:
            _log.warning("supervisord does not answer: %s", error)
            return False
        before = self._state
        for event in self._inbox:
            self._state = event(self._state)
        self._inbox.clear()
        asking, self._asking_for_memory = self._asking_for_memory, []
        self._state, actions = decide(self._state, facts, time.monotonic())
        _log_changes(before, self._state)
        self._tell()
        for answer in asking:
            if not answer.done():
                answer.set_result(roles_freed(self._state))
        for action in actions:
            try:
                await self._act(action)
            except OSError as error:  # the next look sees that it is still to be done
                _log.warning("%s: %s", action, error)
        if self._state != before:
            self._remember()
        return bool(actions)

    # --- act ----------------------------------------------------------------------------------------------------

    async def _act(self, action: Action) -> None:
        match action:
            case WritePlan():
                write_plan(self._state.plan)
                self._written = self._state.plan.id
            case Start(name):
                await self._observer.command(partial(Supervisord.start, name=name))
            case Stop(name):
                await self._observer.command(partial(Supervisord.stop, name=name))
            case Kill(name):
                await self._observer.command(partial(Supervisord.kill, name=name))
            case Remove(name):
                await self._observer.command(partial(Supervisord.remove, name=name))
            case Drain(name):
                await self._send(name, messages.Drain())
            case Resume(name):
                await self._send(name, messages.Resume())
            case TellLive(name):
                await self._send(name, messages.SetLive(msgspec.json.encode(self._state.plan.live)))
            case Note(event):
                _log.info("[roles] %s: %s", event.subject, event.sentence)
                self._journal.write(event)
            case ShutDown():
                _log.info("everything has stopped")
                self._ended = True
                await self._observer.command(Supervisord.shut_down)

    async def _send(self, name: str, message: messages.Message) -> None:
        """No answer is waited for: a process that hangs must not hang the director."""
        program = self._state.plan.program(name)
        assert program is not None and program.socket is not None
        channel = await connect(Path(program.socket))
        channel.send(message)
        channel.close()

    def _remember(self) -> None:
        try:
            write_memory(self._run, self._state)
        except OSError as error:
            _log.warning("the director's memory could not be written: %s", error)

    # --- tell ---------------------------------------------------------------------------------------------------

    def _picture(self) -> ApplianceState:
        seen = self._observer
        return publish(self._state, seen.answers, seen.memory, time.monotonic(), self._epoch, seen.sizes)

    def _tell(self) -> None:
        """Everybody who subscribed, when something changed or a second has passed (memory always changes)."""
        picture = self._picture()
        if picture.at - self._published.at < CALM and _timeless(picture) == _timeless(self._published):
            return
        self._published = picture
        for channel in tuple(self._subscribers):
            try:
                channel.send(picture)
            except ChannelClosed:
                self._subscribers.discard(channel)

    async def _converse(self, channel: Channel) -> None:
        try:
            while (message := await channel.receive()) is not None:
                match message:
                    case messages.Subscribe():
                        self._subscribers.add(channel)
                        channel.send(self._published)
                    case messages.Stop():
                        _log.info("asked to stop the appliance")
                        self._put(lambda state: replace(state, stop=True))
                    case messages.FreeRoles(bytes=size):
                        channel.send(await self._free_roles(size))
                    case messages.AskHealth():
                        sentence = f"the appliance is {self._published.phase}"
                        channel.send(messages.Health(ready=True, state="ready", sentence=sentence))
                    case _:
                        _log.warning("does not understand %s", type(message).__name__)
        except ChannelClosed:
            pass
        finally:
            self._subscribers.discard(channel)

    async def _free_roles(self, size: int) -> messages.RolesFreed:
        """Decided with the next step, as everything is."""
        answer: asyncio.Future[messages.RolesFreed] = asyncio.get_running_loop().create_future()
        self._asking_for_memory.append(answer)
        self._put(lambda state: replace(state, asked=max(state.asked, size)))
        return await answer

    # --- what comes from elsewhere ------------------------------------------------------------------------------

    async def _follow_documents(self) -> None:
        """As long as the appliance lives, whatever happens: nobody else would notice that edits are not seen."""
        judged: Contents | None = self._state.documents
        while True:
            try:
                judged = await self._take_edit(judged)
            except Exception:
                _log.exception("our bug: an edit could not be followed; looking again")
                await asyncio.sleep(CALM)

    async def _take_edit(self, judged: Contents | None) -> Contents:
        """Wait for an edit and judge it in a thread of its own; the loop goes on meanwhile."""
        files = map(Path, judged or self._state.plan.documents)
        async with contextlib.aclosing(edits(files, judged)) as stream:
            contents = await anext(stream)
        judge = partial(self._judge, self._state.plan, self._observer.held())
        judgement, contents = await asyncio.to_thread(judge_edit, judge, contents)
        self._put(partial(_take, judgement=judgement, contents=contents))
        return contents

    def _put(self, event: Callable[[State], State]) -> None:
        self._inbox.append(event)
        self._wake.set()

    def _end(self) -> None:
        self._ended = True
        self._wake.set()


def _take(state: State, judgement: Judgement, contents: Contents) -> State:
    return replace(apply(state, judgement, time.time()), documents=dict(contents))


def _timeless(picture: ApplianceState) -> ApplianceState:
    return replace(picture, at=0.0, memory_available=0, memory=None)


def _log_changes(before: State, after: State) -> None:
    for name in names(after):
        old, new = before.programs.get(name), after.programs.get(name)
        if new is not None and new.state is not (old.state if old else ProgramState.STOPPED):
            level = logging.WARNING if new.state is ProgramState.BACKOFF else logging.INFO
            why = f" ({new.sentence})" if new.sentence.casefold() not in ("", new.state) else ""
            _log.log(level, "%s: %s%s", name, new.state, why)
    report = after.report
    if report is not None and report != before.report:
        level = logging.WARNING if report.outcome in ("refused", "rolled_back") else logging.INFO
        _log.log(level, "edit %s (%s): %s", report.outcome, report.change, report.sentence)
        for line in report.details.splitlines():
            _log.log(level, "  %s", line)


def main(run: Path) -> None:
    """The director's process."""
    die_with_parent()
    set_up_logging()
    asyncio.run(Director(run).follow())
