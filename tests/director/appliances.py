"""Plans made by hand for the director's tests, and a small world that does what it is told."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from tandem.contract.messages import Health
from tandem.contract.plan import (
    Basis,
    Box,
    EnginePlan,
    Floors,
    GatewayPlan,
    Hysteresis,
    KeySource,
    Limits,
    Live,
    Paths,
    Plan,
    Program,
    RolePlan,
    SamplingDefaults,
    SlotPlan,
)
from tandem.director.decide import decide
from tandem.director.state import (
    Action,
    Answer,
    Drain,
    Facts,
    Kill,
    Note,
    Process,
    Record,
    Remove,
    Resume,
    ShutDown,
    Start,
    State,
    Stop,
    TellLive,
    WritePlan,
)
from tandem.memory.reading import MemoryReading
from tandem.residency.journal import Event
from tandem.units import GIB

MEMORY = MemoryReading(available=8 * GIB, total=16 * GIB, free_blocks=3 * GIB)


def make_program(name: str, version: str = "1", **changes: object) -> Program:
    kind = name.rstrip("0123456789-")
    program = Program(
        name=name,
        kind=kind,
        command=(sys.executable, "-c", "pass"),
        environment=(),
        socket=None if kind == "director" else f"/run/{name}.sock",
        start_timeout=30.0,
        stop_timeout=5.0,
        fingerprint=f"{name}-{version}",
    )
    return replace(program, **changes)


NO_ROLES = ("director", "gateway", "engine")


def make_role(name: str, claim: int = 0) -> RolePlan:
    return RolePlan(name, name.rstrip("0123456789-"), "native", "m", "cpu", claim, Basis.MEASURED)


def make_live(**limits: object) -> Live:
    return Live(
        limits=replace(
            Limits(
                request_timeout=600.0,
                queue_timeout=60.0,
                drain_timeout=10.0,
                max_queue=8,
                max_body=1 << 20,
                default_max_tokens=256,
                keepalive=10.0,
            ),
            **limits,
        ),
        floors=Floors(floor=0, hard_floor=0, margin=0),
        hysteresis=Hysteresis(reload_margin=0, reload_after=60.0, thrash=600.0, max_hold=3600.0, unload_deciders=False),
        keys=KeySource(),
        sampling=SamplingDefaults(),
        conductor=False,
        ledger_days=30,
    )


def make_plan(
    id: str = "one",
    programs: Iterable[Program] | None = None,
    *,
    live: Live | None = None,
    run: Path = Path("/run"),
    state: Path = Path("/state"),
    documents: tuple[str, ...] = (),
    port: int = 8080,
) -> Plan:
    """`director`, `gateway`, `engine` unless told otherwise; every other program is a role that takes nothing."""
    if programs is None:
        programs = [make_program(name) for name in ("director", "gateway", "engine")]
    programs = tuple(programs)
    return Plan(
        id=id,
        appliance=documents[0] if documents else "/appliance.yaml",
        documents=documents,
        paths=Paths(state=str(state), run=str(run), logs=str(state / "logs")),
        box=Box(name="test", memory_total=16 * GIB, memory_available=8 * GIB, cpus=2, declared=True),
        live=live or make_live(),
        engine=EnginePlan(
            backend="native",
            family="llama",
            weights="/weights.gguf",
            weights_sha256=None,
            compute="float32",
            device="cpu",
            threads=1,
            chunk=256,
            slots=(SlotPlan(index=0, window=1024, constant=0),),
            bytes_a_token=1,
            workspace=0,
            kv_pool=False,
            kv_margin_rows=256,
            graphs=False,
            declared_peak=GIB,
        ),
        gateway=GatewayPlan(
            host="127.0.0.1",
            port=port,
            model="stand-in",
            aliases=(),
            weights="/weights.gguf",
            window=1024,
            side_window=0,
            ledger=str(state / "ledger.sqlite"),
            cors_origins=(),
            allowed_hosts=(),
        ),
        roles=tuple(make_role(program.name) for program in programs if program.kind not in NO_ROLES),
        programs=programs,
        memory=(),
        placements=(),
    )


@dataclass
class Running:
    """One process of the small world. `health` None does not answer."""

    pid: int
    fingerprint: str
    asked: float  # when its health was last looked at
    health: Health | None = None
    unanswered: int = 0
    stopping: bool = False
    told: list[str] = field(default_factory=list)


LOADING = Health(ready=False, state="loading", sentence="loading weights")
READY = Health(ready=True, state="ready", sentence="ready")
DRAINING = Health(ready=False, state="draining", sentence="draining")


class World:
    """supervisord and its programs, in memory. Does exactly what is commanded and checks what must always hold."""

    def __init__(self, plan: Plan) -> None:
        self.state = self.saved = State(plan=plan)  # `saved`: what a director that dies in a step leaves behind
        self.now = 1000.0
        self.memory = MEMORY
        self.running: dict[str, Running] = {}
        self.exits: dict[str, str] = {}
        self.written = ""
        self.starts: list[str] = []
        self.journal: list[Event] = []
        self.ended = False
        self._pid = 100

    def facts(self) -> Facts:
        processes = {
            name: Process(pid=process.pid, stopping=process.stopping) for name, process in self.running.items()
        }
        for name in {*self.state.programs, *(program.name for program in self.state.plan.programs)} - {"director"}:
            processes.setdefault(name, Process(pid=None, exit=self.exits.get(name, ""), last_words="last words"))
        answers = {
            name: Answer(health=process.health, asked=self.now, unanswered=process.unanswered)
            for name, process in self.running.items()
        }
        return Facts(processes=processes, answers=answers, memory=self.memory, written=self.written)

    def step(self, seconds: float = 0.1) -> list[Action]:
        """Let time pass, decide once and obey. Returns what is done to processes and files; notes are kept."""
        self.now += seconds
        self.saved = self.state
        self.state, actions = decide(self.state, self.facts(), self.now)
        for action in actions:
            self._obey(action)
        return [action for action in actions if not isinstance(action, Note)]

    def settle(self, steps: int = 200, seconds: float = 0.1) -> None:
        """Step until nothing is commanded any more; everything that starts becomes ready at once."""
        quiet = 0
        for _ in range(steps):
            for process in self.running.values():
                if not process.stopping and process.health is None:
                    process.health = READY
            quiet = 0 if self.step(seconds) else quiet + 1
            if self.ended:
                return
            for name in [name for name, process in self.running.items() if process.stopping]:
                self.die(name, "exited with status 0")
            if quiet > 3 and all(record.state in ("ready", "stopped") for record in self.state.programs.values()):
                return
        raise AssertionError(f"does not settle: {self.states()}")

    def die(self, name: str, exit: str = "was killed by a signal") -> None:
        if self.running.pop(name, None):
            self.exits[name] = exit

    def states(self) -> dict[str, str]:
        return {name: str(record.state) for name, record in self.state.programs.items()}

    def record(self, name: str) -> Record:
        return self.state.programs[name]

    def _obey(self, action: Action) -> None:
        match action:
            case WritePlan():
                self.written = self.state.plan.id
            case Start(name):
                self._start(name)
            case Stop(name):
                self.running[name].stopping = True
            case Kill(name):
                self.die(name)
            case Remove(name):
                assert name not in self.running
            case Drain(name):
                self._tell(name, "drain")
                self.running[name].health = DRAINING
            case Resume(name):
                self._tell(name, "resume")
                self.running[name].health = READY
            case TellLive(name):
                self._tell(name, "live")
            case Note(event):
                self.journal.append(event)
            case ShutDown():
                assert not self.running, "supervisord ends last"
                self.ended = True

    def _tell(self, name: str, word: str) -> None:
        self.running[name].told.append(word)

    def _start(self, name: str) -> None:
        assert name not in self.running, f"{name} started twice"
        assert self.written == self.state.plan.id, "started before its plan was written"
        assert not self.state.stop, "started although everything is to end"
        program = self.state.plan.program(name)
        assert program is not None
        vital = [other for other in self.state.plan.programs if other.kind in ("gateway", "engine")]
        for before in vital if program not in vital else ():
            other = self.running.get(before.name)
            assert other is not None, f"{name} started before {before.name}"
            ready = before.socket is None or (other.health is not None and other.health.ready)
            assert ready, f"{name} started before {before.name} was ready"
        self._pid += 1
        self.running[name] = Running(pid=self._pid, fingerprint=program.fingerprint, asked=self.now)
        self.starts.append(name)
