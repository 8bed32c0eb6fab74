"""The plan: everything the appliance will do, resolved, immutable, and made before anything is taken.

The planner writes it, the director follows it, each process reads its own part from `plan.json` in the run
directory. Sizes are bytes, times are seconds. No secret is ever in a plan: only where a secret is to be read.

The shape is the change classes of a hot reload: two plans that differ only in `live` need no restart, a
difference in `roles` restarts that role, any other difference drains and restarts what it touches.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct


class Basis(StrEnum):
    """How a figure is known. Printed beside every figure, because a plan is only as good as its worst number."""

    MEASURED = "measured"
    ARITHMETIC = "arithmetic"
    ESTIMATE = "estimate"
    CONFIGURED = "configured"


class MemoryItem(Struct, frozen=True):
    """One line of the memory table."""

    label: str
    bytes: int
    basis: Basis
    why: str = ""


class Box(Struct, frozen=True):
    """What the machine offers. Read from the kernel, or from a residency document (`tandem plan --box`)."""

    name: str
    memory_total: int
    memory_available: int  # MemAvailable, or the cgroup's room when that is smaller
    cpus: int
    declared: bool  # True when it comes from a document and not from this machine


class Limits(Struct, frozen=True):
    request_timeout: float
    queue_timeout: float  # a request that is not streamed waits no longer than this before it starts
    drain_timeout: float
    max_queue: int
    max_body: int  # bytes of one HTTP request
    default_max_tokens: int  # when a client names none; cut to the room of the slot
    keepalive: float  # seconds of silence after which a stream carries a comment line
    per_key_running: int | None = None  # requests of one API key at once; None: no limit of its own
    per_key_requests: int | None = None  # of one API key in any minute; None: no limit


class Floors(Struct, frozen=True):
    floor: int
    hard_floor: int
    margin: int  # what residency keeps above the floor


class Hysteresis(Struct, frozen=True):
    """When an unloaded role may come back (`2-formulas`: roles under pressure)."""

    reload_margin: int
    reload_after: float
    thrash: float
    max_hold: float
    unload_deciders: bool


class KeySource(Struct, frozen=True):
    """Where API keys are read: one `name:key` a line. Neither set: the API is open (loopback only by default)."""

    file: str | None = None
    variable: str | None = None
    admin: tuple[str, ...] = ()  # names of keys that open every route
    metrics_only: tuple[str, ...] = ()  # names of keys that open the metrics and nothing else


class SamplingDefaults(Struct, frozen=True):
    """What a request gets when it names nothing. `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class Routing(Struct, frozen=True):
    """How `engine.route` chooses a slot. What a document leaves out has the values here; the switches bring back an
    older rule each, to compare."""

    continues: Literal["client", "resident"] = "client"  # the prompt as the client's messages render it, or the rows
    guests: bool = True  # short requests beside a long conversation leave it alone
    past_head: bool = True  # only what reaches past the first user message is a continuation
    carry: bool = True  # a conversation's rows may be copied from another slot
    new_first: bool = True  # a new conversation leaves one alone that no side slot could hold
    slot0_wait: float = 3.0  # for slot 0, which holds the conversation or brings it back
    home_wait: float = 10.0  # for the side slot that holds the conversation
    own_work_wait: float = 15.0  # for slot 0, held by nothing but the appliance's own work
    side_min_room: int = 16_384  # rows of output that make a side slot worth taking when more are asked for
    guest_max: int = 8_192  # tokens of a guest's prompt


class Asked(Struct, frozen=True):
    """One question of the conductor. `criteria` as `messages.Question` has them."""

    id: str
    kind: str  # choice | score | noul
    instructions: str
    criteria: tuple[tuple[str, str], ...]
    decides: str = "nothing"  # class | package | effort | nothing
    then: dict[str, str] = {}  # which class, package or effort an answer stands for, where it is not its name


class ClassPlan(Struct, frozen=True):
    package: str
    effort: str | None = None


class PackagePlan(Struct, frozen=True):
    """What is done with a request; a client's own word wins over all of it."""

    note: str = ""  # behind the user's message
    sampling: dict[str, float] = {}  # fields of `SamplingDefaults`
    tools: str | None = None  # auto | none | required


class Conducting(Struct, frozen=True):
    """What the conductor asks about a message, and what follows from the answers."""

    decider_within: float = 0.4
    model_within: float = 2.0  # 0: the big model is not asked
    confidence: float = 0.5  # below it a decider's answer is not taken
    checked: float = 0.0  # share of a decider's messages that the big model is asked about as well, for the journal
    questions: tuple[Asked, ...] = ()
    classes: dict[str, ClassPlan] = {}
    default: str = ""  # class
    packages: dict[str, PackagePlan] = {}
    efforts: dict[str, int] = {}  # name -> most tokens of thinking


class Api(Struct, frozen=True):
    """Manners of the API."""

    reasoning: str = "reasoning_content"  # where thinking stands: reasoning_content | reasoning | both | tags | none
    cache_scope: str = "key"  # who shares cached rows: requests of one key | of the whole appliance
    tasks: tuple[str, ...] = ()  # how a request begins that is a task beside a conversation
    status: bool = True  # streams say what goes on until the answer begins


class Live(Struct, frozen=True):
    """What running processes take without a restart."""

    limits: Limits
    floors: Floors
    hysteresis: Hysteresis
    keys: KeySource
    sampling: SamplingDefaults
    conductor: bool
    ledger_days: int
    routing: Routing = Routing()
    conducting: Conducting = Conducting()
    api: Api = Api()


class SlotPlan(Struct, frozen=True):
    index: int
    window: int  # rows
    constant: int  # bytes beside the KV rows: verify graphs, state, workspace


class LookupPlan(Struct, frozen=True):
    """Guesses from text seen before: the request's own, and a store of token ids on disk."""

    scope: str  # request: nothing is stored | outputs: what was written | all: prompts as well
    readonly: bool  # the store answers and learns nothing
    size: int  # bytes the store may hold
    path: str  # its directory, absolute
    corpus: str | None = None  # a text or token file that is read once, absolute


class DraftModelPlan(Struct, frozen=True):
    """A smaller model of the same tokenizer that guesses."""

    weights: str  # absolute path
    compute: str


class DraftPlan(Struct, frozen=True):
    """Who guesses, and where prices are kept. Guesses change when text arrives, never what it says."""

    nodes: int  # the most guesses a slot brings to a round
    lookup: LookupPlan | None
    mtp: bool  # the model's own head for it, where its weights carry one
    model: DraftModelPlan | None
    prices: str  # JSON of what passes cost on this machine, absolute; absent until measured


class DiskCachePlan(Struct, frozen=True):
    """Conversations on disk."""

    path: str  # their directory, absolute
    size: int  # bytes the files may take
    max_age: float  # seconds since their last use


class CachesPlan(Struct, frozen=True):
    """What conversations leave behind, so that it need not be read again."""

    memory: int  # bytes of copies: heads, conversations moved aside, stashes, pins
    anchors: int  # bytes of one slot's places to go on from, for models that cannot go back
    disk: DiskCachePlan | None


class EnginePlan(Struct, frozen=True):
    backend: str  # native | vllm
    family: str
    weights: str  # absolute path
    weights_sha256: str | None
    compute: str  # float32 | bfloat16 | int8 | int4
    device: str  # cpu | cuda
    threads: int
    chunk: int  # rows of one prefill piece
    slots: tuple[SlotPlan, ...]
    bytes_a_token: int
    workspace: int  # bytes one prefill chunk may take
    kv_pool: bool
    kv_margin_rows: int
    graphs: bool
    declared_peak: int
    draft: DraftPlan | None = None  # None: every round writes one token a slot
    end_loops: bool = False  # for requests that say nothing: an answer that repeats itself without end is ended
    caches: CachesPlan = CachesPlan(0, 0, None)  # nothing is kept but what slots hold


class GatewayPlan(Struct, frozen=True):
    host: str
    port: int
    model: str  # the id clients see
    aliases: tuple[str, ...]
    weights: str  # where tokenizer and chat template are read from
    window: int
    side_window: int
    ledger: str
    cors_origins: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    calls: str | None = None  # how the model writes calls: hermes | qwen-xml | llama | mistral | json; None: find out


class RolePlan(Struct, frozen=True):
    name: str  # `decider-0`, `narrator`, `shadow-reader`
    kind: str  # decider | narrator | shadow-reader
    backend: str  # laya | lm-score | lm
    model: str  # as the document names it
    device: str
    claim: int
    basis: Basis
    weights: str = ""  # absolute path of the model's file or folder
    threads: int = 1


class Placement(Struct, frozen=True):
    """Residency's answer for one role on this box, with the numbers it rests on."""

    role: str
    admitted: bool
    available: int
    growth: int
    claim: int
    after: int
    floor: int
    margin: int
    sentence: str


class Program(Struct, frozen=True):
    """One process under supervisord. `programs` of a plan are in start order."""

    name: str
    kind: str  # director | gateway | engine | decider | narrator | shadow-reader
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    socket: str | None  # unix socket on which it answers `AskHealth`; None for the director
    start_timeout: float  # from spawn to ready
    stop_timeout: float  # from TERM to KILL
    fingerprint: str  # changes exactly when the running process would no longer do what the plan says


class Paths(Struct, frozen=True):
    """`state` is kept (ledger, logs, weights); `run` lives as long as the appliance (sockets, plan, pids)."""

    state: str
    run: str
    logs: str

    @property
    def plan(self) -> Path:
        return Path(self.run, "plan.json")

    @property
    def ledger(self) -> Path:
        return Path(self.state, "ledger.sqlite")

    @property
    def supervisord_socket(self) -> Path:
        return Path(self.run, "supervisord.sock")

    @property
    def director_socket(self) -> Path:
        return Path(self.run, "director.sock")


class Plan(Struct, frozen=True):
    id: str  # short hash of everything below
    appliance: str  # absolute path of appliance.yaml
    documents: tuple[str, ...]  # absolute paths of every document that was read, for the watcher
    paths: Paths
    box: Box
    live: Live
    engine: EnginePlan
    gateway: GatewayPlan
    roles: tuple[RolePlan, ...]
    programs: tuple[Program, ...]
    memory: tuple[MemoryItem, ...]  # the waterfall, in the order it is taken
    placements: tuple[Placement, ...]
    warnings: tuple[str, ...] = ()  # of the documents
    key_warnings: tuple[str, ...] = ()  # of the key file when this was planned; `warnings_now` reads it again
    overridden: tuple[str, ...] = ()  # what the document says and a flag or variable of `tandem up` holds

    def program(self, name: str) -> Program | None:
        return next((program for program in self.programs if program.name == name), None)


def encode_plan(plan: Plan) -> bytes:
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def decode_plan(data: bytes) -> Plan:
    """Raises `msgspec.ValidationError` for anything but a plan of this version."""
    return msgspec.json.decode(data, type=Plan)


def read_plan(run: Path) -> Plan:
    """The plan a process was started under; `run` is the run directory."""
    return decode_plan((run / "plan.json").read_bytes())
