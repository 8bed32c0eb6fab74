"""The model that all engines serve, and how: the project's own appliance says both."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.machine import PROJECT
from bench.peers.environments import PEERS, Environment, digest, run
from tandem.config import load
from tandem.memory.reading import read_box
from tandem.planner.compile import compile_plan
from tandem.units import GIB


@dataclass(frozen=True, slots=True)
class Model:
    """Of every engine alike."""

    file: Path  # GGUF
    compute: str  # tandem's own; peers know from the file
    window: int  # rows a slot
    slots: int
    threads: int
    bytes_a_token: int  # of KV in 16 bits

    @property
    def kv_bytes(self) -> int:
        """Every slot's window."""
        return self.slots * self.window * self.bytes_a_token


def model_of(slots: int, settings: Sequence[str]) -> Model:
    """Raises what loading and planning raise."""
    plan = compile_plan(load(PROJECT / "appliance.yaml", (*settings, f"slots.count={slots}")), read_box())
    engine = plan.engine
    threads = len(os.sched_getaffinity(0))
    return Model(
        file=Path(engine.weights),
        compute=engine.compute,
        window=engine.slots[0].window,
        slots=slots,
        threads=threads,
        bytes_a_token=engine.bytes_a_token,
    )


def dequantized(model: Model, environment: Environment) -> Path:
    """The same weights as a checkpoint directory in bfloat16, made once. Raises `NotMeasured`."""
    made = PEERS / "bf16" / digest(model.file)
    if made.exists():
        return made
    aside = made.with_suffix(".unfinished")
    aside.mkdir(parents=True, exist_ok=True)
    program = Path(__file__).with_name("weights.py")
    command = [str(environment.python), str(program), str(model.file), str(aside)]
    run(command, PEERS / "bf16" / "dequantize.log", 900, environment={"HF_HUB_OFFLINE": "1"})
    return aside.rename(made)


def bf16_needs(model: Model) -> int:
    """Bytes that a Python server of the dequantized weights may take: weights twice while loading, rows, libraries."""
    return 8 * model.file.stat().st_size + model.kv_bytes + GIB
