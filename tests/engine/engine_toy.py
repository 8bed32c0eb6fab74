"""A model small enough to reason about, and an engine driven by hand: no threads, no sleeps, no clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tandem.caches.anchors import Anchors
from tandem.caches.holdings import Holdings
from tandem.contract.messages import (
    Finished,
    Generate,
    Health,
    Marks,
    Message,
    Progress,
    Refused,
    Sampling,
    Started,
    Tokens,
)
from tandem.contract.plan import (
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
    SamplingDefaults,
    SlotPlan,
)
from tandem.draft.drafting import Drafting
from tandem.engine.admit import RowCost
from tandem.engine.engine import Engine
from tandem.engine.letters import Leave, PeerGone, Received, Sent
from tandem.engine.row_memory import FirstWrite
from tandem.engine.slot import Slot
from tandem.engine.world import World
from tandem.memory.budget import Budget
from tandem.memory.pages import PageBackend
from tandem.model.config import ModelConfig
from tandem.model.interface import Allocate, Block, SequenceState, Wants, allocate_at_once
from tandem.model.tree import Tree, chain

VOCAB = 64
CHUNK = 4
KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
ENDLESS = (1 << 20) - 64  # tokens: minutes of passes, so that only what a test does ends such an answer
CONFIG = ModelConfig(**{**{each.name: 1 for each in fields(ModelConfig)}, "vocab": VOCAB, "window": 1 << 20})


class HashRows:
    """One number a row; a recurrent one remembers their sum where no row says it."""

    def __init__(self, window: int, allocate: Allocate, is_recurrent: bool) -> None:
        self.rows = allocate((window,), torch.int64, 0, "attention")
        self.memory = torch.zeros(1, dtype=torch.int64) if is_recurrent else None

    def by_row(self) -> Sequence[Tensor]:
        return (self.rows,)

    def fixed(self) -> Sequence[Tensor]:
        return () if self.memory is None else (self.memory,)

    def begin(self, start: int) -> None:
        if start == 0 and self.memory is not None:
            self.memory.zero_()

    def settle(self, path: Sequence[int]) -> None:
        pass


class ToyState(SequenceState):
    """One number a row: a hash of every token up to it and of the shapes of the passes that wrote them."""

    def __init__(self, window: int, allocate: Allocate, is_recurrent: bool = False) -> None:
        self.part = HashRows(window, allocate, is_recurrent)
        super().__init__(window, torch.int64, [[self.part]])
        self.hashes = self.part.rows.numpy().view(np.uint64)
        self.tree: Tree | None = None  # of a block that is not settled

    def open(self, block: Block) -> None:
        """It is about to be read."""
        self.begin(block.start, block.rows, settled=block.tree is None)
        self.tree = block.tree

    def commit(self, path: Sequence[int]) -> None:
        assert self.tree is not None and self.tree.is_path(path)
        super().commit(path)
        self.tree = None
        if path:
            self.remember()

    def total_before(self, start: int) -> int:
        """What a row at `start` goes on from: every row before it."""
        if self.part.memory is not None:
            return int(self.part.memory.numpy().view(np.uint64)[0])
        return int(self.hashes[:start].sum())

    def remember(self) -> None:
        """A block has settled."""
        if self.part.memory is not None:
            self.part.memory.copy_(self.part.rows[: self.position].sum())


def slot_of(state: SequenceState, index: int = 0, unit: int = CHUNK, anchors: int = 0) -> Slot:
    """A slot without the engine around it; its memory is an account only."""
    memory = FirstWrite(index, state.window, RowCost(a_token=1, workspace=0))
    kept = Anchors(anchors, Holdings(Budget(anchors, anchors), lambda: 0))
    return Slot(index, state.window, state, memory, unit, kept)


class ToyModel:
    """Writes by hashing what its state holds: a wrong start, a stale row or a row of another sequence shows at once.

    Unless it is row invariant, rows of a chunk of another length hash differently, as products of another shape round
    differently; rows that are written do not depend on the other rows of their pass.
    """

    config = CONFIG
    mtp = None

    def __init__(self, row_bucket: int = 8, is_row_invariant: bool = False, is_recurrent: bool = False) -> None:
        self.row_bucket = row_bucket
        self.is_row_invariant = is_row_invariant
        self.is_recurrent = is_recurrent
        self.passes: list[list[int]] = []  # rows of each block of each pass
        self.broken: list[Exception] = []  # raised by the next passes, one each

    def new_state(self, window: int, allocate: Allocate = allocate_at_once) -> ToyState:
        return ToyState(window, allocate, self.is_recurrent)

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        self.passes.append([block.rows for block in blocks])
        if self.broken:
            raise self.broken.pop(0)
        wanted: list[np.ndarray] = []
        for block in blocks:
            state = block.state
            assert isinstance(state, ToyState)
            tree = block.tree or chain(block.rows)
            assert tree.rows == block.rows
            state.open(block)
            before = state.total_before(block.start)
            hashes: list[int] = []
            totals: list[int] = []
            length = 1 if block.wants is Wants.ALL or self.is_row_invariant else block.rows
            for row, token in enumerate(block.tokens.tolist()):
                total = totals[tree.parents[row]] if row else before
                hashes.append(mix(mix(total) * 31 + token * 7919 + length))
                totals.append((total + hashes[-1]) & ((1 << 64) - 1))
            state.hashes[block.start : block.start + block.rows] = hashes
            if block.tree is None:
                state.remember()
            rows = [logits_of(each) for each in hashes]
            wanted += {Wants.ALL: rows, Wants.LAST: rows[-1:], Wants.NONE: []}[block.wants]
        return torch.from_numpy(np.array(wanted, dtype=np.float32).reshape(-1, VOCAB))


def mix(value: int) -> int:
    value &= (1 << 64) - 1
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & ((1 << 64) - 1)
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & ((1 << 64) - 1)
    return value ^ (value >> 31)


def logits_of(hashed: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=[hashed, 0])).standard_normal(VOCAB, dtype=np.float32) * 3


def engine_plan(
    windows: Sequence[int] = (64, 64), chunk: int = CHUNK, bytes_a_token: int = KIB, workspace: int = 0
) -> EnginePlan:
    return EnginePlan(
        backend="native",
        family="toy",
        weights="/nowhere.gguf",
        weights_sha256=None,
        compute="float32",
        device="cpu",
        threads=1,
        chunk=chunk,
        slots=tuple(SlotPlan(index, window, 0) for index, window in enumerate(windows)),
        bytes_a_token=bytes_a_token,
        workspace=workspace,
        kv_pool=False,
        kv_margin_rows=0,
        graphs=False,
        declared_peak=GIB,
    )


def endless_plan(others: Sequence[int] = ()) -> EnginePlan:
    """One slot for an answer of `ENDLESS` tokens, and these windows beside it."""
    return engine_plan([1 << 20, *others], bytes_a_token=8)


def live(max_queue: int = 8, request_timeout: float = 600.0, drain_timeout: float = 60.0, floor: int = GIB) -> Live:
    return Live(
        limits=Limits(
            request_timeout=request_timeout,
            queue_timeout=30.0,
            drain_timeout=drain_timeout,
            max_queue=max_queue,
            max_body=MIB,
            default_max_tokens=64,
            keepalive=10.0,
        ),
        floors=Floors(floor=floor, hard_floor=0, margin=0),
        hysteresis=Hysteresis(reload_margin=0, reload_after=60.0, thrash=600.0, max_hold=3600.0, unload_deciders=False),
        keys=KeySource(),
        sampling=SamplingDefaults(),
        conductor=False,
        ledger_days=30,
    )


def ask(
    id: str,
    prompt: Sequence[int] = (5, 6, 7),
    max_tokens: int = 5,
    *,
    sampling: Sampling | None = None,
    stop: Sequence[int] = (),
    head_end: int | None = None,
    scope: str = "",
    own_work: bool = False,
    top_logprobs: int | None = None,
    end_loops: bool = False,
) -> Generate:
    head = len(prompt) if head_end is None else head_end
    return Generate(
        id=id,
        tokens=tuple(prompt),
        max_tokens=max_tokens,
        stop_tokens=tuple(stop),
        sampling=sampling or Sampling(),
        marks=Marks(head, len(prompt)),
        own_work=own_work,
        scope=scope,
        top_logprobs=top_logprobs,
        end_loops=end_loops,
    )


@dataclass
class Hand:
    """Turns an engine by hand and keeps what it said. Every turn takes a second and ends with a check of the books."""

    engine: Engine
    model: ToyModel
    now: float = 0.0
    available: int = 64 * GIB
    sent: list[Sent] = field(default_factory=list)
    health: Health | None = None

    def turn(self, *messages: Message | PeerGone | Leave, peer: int = 1, seconds: float = 1.0) -> None:
        self.now += seconds
        self.engine.turn([Received(peer, message) for message in messages])
        self.engine.check_integrity()

    def until_idle(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if self.engine.schedule.is_idle:
                return
            self.turn()
        raise AssertionError("the engine did not come to rest")

    def to(self, id: str, peer: int = 1) -> list[Message]:
        """Everything that was said about one request, in order."""
        return [sent.message for sent in self.sent if sent.peer == peer and getattr(sent.message, "id", None) == id]

    def tokens(self, id: str, peer: int = 1) -> list[int]:
        return [token for message in self.to(id, peer) if isinstance(message, Tokens) for token in message.tokens]

    def finished(self, id: str, peer: int = 1) -> Finished:
        (message,) = [message for message in self.to(id, peer) if isinstance(message, Finished)]
        return message

    def refused(self, id: str, peer: int = 1) -> Refused:
        (message,) = [message for message in self.to(id, peer) if isinstance(message, Refused)]
        return message

    def started(self, id: str, peer: int = 1) -> Started:
        (message,) = [message for message in self.to(id, peer) if isinstance(message, Started)]
        return message

    def progress(self, id: str, peer: int = 1) -> list[Progress]:
        return [message for message in self.to(id, peer) if isinstance(message, Progress)]


def hand(
    plan: EnginePlan | None = None,
    limits: Live | None = None,
    row_bucket: int = 8,
    room: int = 64 * GIB,
    pages: PageBackend | None = None,
    drafting: Drafting | None = None,
    is_row_invariant: bool = False,
    is_recurrent: bool = False,
) -> Hand:
    model = ToyModel(row_bucket, is_row_invariant, is_recurrent)
    driver: Hand

    def post(letters: list[Sent], health: Health) -> None:
        driver.sent += letters
        driver.health = health

    world = World(
        clock=lambda: driver.now,
        available=lambda: driver.available,
        noise=count().__next__,
        post=post,
    )
    driver = Hand(Engine.__new__(Engine), model)
    driver.engine.__init__(model, plan or engine_plan(), limits or live(), room, world, pages, drafting)  # type: ignore[misc]
    return driver


def alone(
    request: Generate, plan: EnginePlan | None = None, is_row_invariant: bool = False, is_recurrent: bool = False
) -> list[int]:
    """What a request writes on an engine of its own, cold."""
    driver = hand(plan, is_row_invariant=is_row_invariant, is_recurrent=is_recurrent)
    driver.turn(request)
    driver.until_idle()
    return driver.tokens(request.id)


def whole_plan(run: Path, engine: EnginePlan | None = None, limits: Live | None = None) -> Plan:
    """A plan of an engine alone, its socket in `run`."""
    program = Program(
        name="engine",
        kind="engine",
        command=("tandem", "engine", "--run", str(run)),
        environment=(),
        socket=str(run / "engine.sock"),
        start_timeout=120.0,
        stop_timeout=30.0,
        fingerprint="",
    )
    gateway = GatewayPlan(
        host="127.0.0.1",
        port=0,
        model="toy",
        aliases=(),
        weights="/nowhere.gguf",
        window=64,
        side_window=64,
        ledger="",
        cors_origins=(),
        allowed_hosts=(),
    )
    return Plan(
        id="by-hand",
        appliance="/nowhere.yaml",
        documents=(),
        paths=Paths(str(run), str(run), str(run)),
        box=Box("here", 64 * GIB, 64 * GIB, 2, declared=False),
        live=limits or live(floor=0),
        engine=engine or engine_plan(),
        gateway=gateway,
        roles=(),
        programs=(program,),
        memory=(),
        placements=(),
    )
