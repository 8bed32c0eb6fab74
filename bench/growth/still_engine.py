"""The engine around a model that computes nothing: what is left of a turn is the engine's own work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random

import msgspec
import torch
from torch import Tensor

from tandem.contract.messages import Cancel, Generate, Health, Marks, Sampling
from tandem.contract.plan import EnginePlan, Live, Plan
from tandem.draft.drafting import Drafting
from tandem.engine.engine import Engine
from tandem.engine.letters import Received, Sent
from tandem.engine.queue import AT_ONCE
from tandem.engine.world import World
from tandem.memory.host_pages import HostPages
from tandem.model.config import ModelConfig
from tandem.model.interface import Allocate, Block, SequenceState, Wants, allocate_at_once
from tandem.model.state import KvRows
from tandem.text.vocabulary import read_vocabulary
from tandem.units import GIB

PEER = 1
GREEDY = Sampling(temperature=0.0)
NUM_LIKELY = 200  # tokens of a row that stand out, by a power law
LIKELIEST = 16.0


class StillModel:
    """Writes without computing: each pass gets logits that were made before, shaped like a language model's."""

    row_bucket = 32
    is_row_invariant = True
    mtp = None

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._draw = Random(1)
        draw = torch.Generator().manual_seed(1)
        self._logits = torch.randn(2 * self.row_bucket, config.vocab, generator=draw) * 2
        likely = LIKELIEST - torch.arange(1.0, NUM_LIKELY + 1).log() * 2
        for row in self._logits:
            row[torch.randperm(config.vocab, generator=draw)[:NUM_LIKELY]] = likely

    def new_state(self, window: int, allocate: Allocate = allocate_at_once) -> SequenceState:
        return SequenceState(window, torch.bfloat16, [[KvRows(window, 1, 32, torch.bfloat16, allocate)]])

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        for block in blocks:
            block.state.begin(block.start, block.rows, settled=block.tree is None)
        rows = sum({Wants.NONE: 0, Wants.LAST: 1, Wants.ALL: block.rows}[block.wants] for block in blocks)
        first = self._draw.randrange(self.row_bucket)
        return self._logits[first : first + rows]


class StillEngine:
    """Turned by hand, as its device thread would. What it says is counted and thrown away."""

    def __init__(self, plan: EnginePlan, live: Live, config: ModelConfig, drafting: Drafting | None = None) -> None:
        self.num_said = 0
        self.available = 64 * GIB
        self.floor = live.floors.floor
        self._ids = count()
        world = World(time.monotonic, lambda: self.available, count().__next__, self._hear)
        self.engine = Engine(StillModel(config), plan, live, 64 * GIB, world, HostPages(), drafting)  # type: ignore[arg-type]

    def _hear(self, letters: list[Sent], health: Health) -> None:
        self.num_said += len(letters)

    def turn(self, *messages: Generate | Cancel) -> float:
        """Seconds it took."""
        letters = [Received(PEER, message) for message in messages]
        began = time.perf_counter()
        self.engine.turn(letters)
        return time.perf_counter() - began

    def turns(self, many: int) -> None:
        for _ in range(many):
            self.turn()

    def settle(self) -> None:
        """Until everyone who waits was asked and told, and nobody reads."""
        schedule = self.engine.schedule
        self.turns(2 * len(schedule.waiting) // AT_ONCE + 4 * len(schedule.slots))
        assert not schedule.reading and not schedule.is_asking

    def ask(self, rows: int, max_tokens: int, sampling: Sampling = GREEDY) -> Generate:
        """A request nothing of which is shared with others."""
        number = next(self._ids)
        tokens = (1000 + number % 40_000, *((7 * number + index) % 40_000 for index in range(1, rows)))
        return Generate(f"{number}", tokens, max_tokens, (), sampling, Marks(rows, rows))


def still_config(plan: EnginePlan) -> ModelConfig:
    """The smallest model whose rows of logits are as long as those of the plan's."""
    vocab, window = len(read_vocabulary(Path(plan.weights)).tokens), 1 << 20
    return ModelConfig(1, 32, 1, 1, 32, 32, vocab, 1e-5, 1e4, window, bos_token=None, eos_token=None)


def without_caches(plan: Plan, windows: Sequence[int]) -> EnginePlan:
    """The plan's engine with slots of these windows, and nothing kept beside them."""
    slot = plan.engine.slots[0]
    slots = tuple(msgspec.structs.replace(slot, index=index, window=window) for index, window in enumerate(windows))
    caches = msgspec.structs.replace(plan.engine.caches, memory=0, anchors=0, disk=None)
    return msgspec.structs.replace(plan.engine, slots=slots, caches=caches)
