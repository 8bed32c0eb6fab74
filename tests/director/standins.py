"""Programs that stand in for gateway and engine, and a director and an `up` that start those.

    standins.py engine|gateway --run DIR [--load S] [--exit STATUS] [--deaf] [--busy S]
    standins.py director --run DIR
    standins.py up --document FILE [--detach]

The document is JSON: `{"engine": ["--load", "0.1"], "gateway": [], "max_queue": 8, "drain": 5, "roles": ["narrator"],
"reload": 60}`. What happens to a stand-in is written to `events` beside the run directory, one `time name word` a line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from appliances import make_live, make_plan, make_program, make_role
from msgspec.structs import replace

from tandem.contract import messages
from tandem.contract.channel import Channel, serve
from tandem.contract.plan import Live, Plan, read_plan
from tandem.contract.process import die_with_parent, set_up_logging
from tandem.units import MIB

CLAIM = 8 * MIB  # of every role
HERE = Path(__file__).resolve()


# --- a document becomes a plan ----------------------------------------------------------------------------------


def plan_of(document: Path) -> Plan:
    """Raises `ValueError` with a sentence when the document is wrong."""
    said = json.loads(document.read_text())
    if "wrong" in said:
        raise ValueError("unknown key `wrong`")
    base = document.parent
    run = base / "run"
    programs = []
    roles = said.get("roles", [])
    for kind in ("director", "gateway", "engine", *roles):
        command = (sys.executable, str(HERE), kind, "--run", str(run), *said.get(kind, []))
        timeouts = {"start_timeout": said.get("start", 10.0), "stop_timeout": said.get("stop", 3.0)}
        programs.append(
            make_program(
                kind,
                command=command,
                socket=None if kind == "director" else str(run / f"{kind}.sock"),
                fingerprint=hashlib.sha256(repr(command).encode()).hexdigest()[:12],
                **timeouts,
            )
        )
    live = make_live(max_queue=said.get("max_queue", 8), drain_timeout=said.get("drain", 5.0))
    live = replace(live, hysteresis=replace(live.hysteresis, reload_after=said.get("reload", 60.0)))
    plan_id = hashlib.sha256(document.read_bytes()).hexdigest()[:12]
    plan = make_plan(
        plan_id, programs, live=live, run=run, state=base, documents=(str(document),), port=said.get("port", 0)
    )
    return replace(plan, roles=tuple(make_role(name, CLAIM) for name in roles))


# --- the programs -----------------------------------------------------------------------------------------------


class StandIn:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.run = Path(options.run)
        self.state = "loading"
        self.live = read_plan(self.run).live.limits.max_queue
        self.idle_at = 0.0  # when the last request of a drain is finished

    def note(self, word: str) -> None:
        with (self.run.parent / "events").open("a") as events:
            events.write(f"{time.time():.4f} {self.options.kind} {word}\n")

    def health(self) -> messages.Health:
        running = int(self.state == "draining" and time.monotonic() < self.idle_at)
        facts = {"max_queue": str(self.live)}
        ready = self.state == "ready"
        return messages.Health(
            ready=ready, state=self.state, sentence=self.state, progress=0.5, running=running, facts=facts
        )

    async def converse(self, channel: Channel) -> None:
        while (message := await channel.receive()) is not None:
            match message:
                case messages.AskHealth():
                    channel.send(self.health())
                case messages.SetLive(live):
                    self.live = msgspec.json.decode(live, type=Live).limits.max_queue
                    self.note(f"live {self.live}")
                case messages.Drain():
                    self.state, self.idle_at = "draining", time.monotonic() + self.options.busy
                    self.note("drain")
                case messages.Resume():
                    self.state = "ready"
                    self.note("resume")

    async def live_on(self) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def term() -> None:
            self.note("term")
            if not self.options.deaf:
                ended.set()

        loop.add_signal_handler(signal.SIGTERM, term)
        self.note(f"start {os.getpid()}")
        async with contextlib.AsyncExitStack() as stack:
            server = await serve(self.run / f"{self.options.kind}.sock", self.converse)
            stack.callback(server.close)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), self.options.load)
            if self.options.exit is not None:
                print("it does not work: no such weights", flush=True)
                os._exit(self.options.exit)
            if not ended.is_set():
                self.state = "ready"
                self.note("ready")
                await ended.wait()
        self.note("end")


def follow_plan(run: Path) -> None:
    from tandem.director import observe
    from tandem.director.loop import Director
    from tandem.director.reload import Judgement

    def judge(running: Plan, held: int) -> Judgement:
        try:
            plan = plan_of(Path(running.appliance))
        except ValueError as error:
            return Judgement(running.documents, None, "1 problem", f"error[unknown-key]: {error}\n")
        return Judgement(plan.documents, plan)

    die_with_parent()
    set_up_logging()
    observe.ASK_TIMEOUT = 1.0  # a hang is seen in four seconds, not in twelve, and is no pause of a busy machine
    asyncio.run(Director(run, judge).follow())


def up(document: Path, detach: bool) -> None:
    from tandem.cli import raising
    from tandem.config.report import render_error
    from tandem.errors import TandemError

    raising.LEFTOVER_PATIENCE = 1.0
    raising.announce = lambda plan: print(f"up: port {plan.gateway.port}", flush=True)
    try:
        status = asyncio.run(raising.raise_appliance(plan_of(document), detach=detach, variables={}))
    except TandemError as error:
        sys.stderr.write(render_error(error))
        status = error.exit_status
    raise SystemExit(status)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--run")
    parser.add_argument("--document", type=Path)
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--load", type=float, default=0.05)
    parser.add_argument("--exit", type=int)
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--busy", type=float, default=0.0)
    parser.add_argument("--version")
    options = parser.parse_args()
    if options.kind == "up":
        up(options.document, options.detach)
    elif options.kind == "director":
        follow_plan(Path(options.run))
    else:
        die_with_parent()
        asyncio.run(StandIn(options).live_on())


if __name__ == "__main__":
    main()
