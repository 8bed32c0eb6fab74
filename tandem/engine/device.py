"""The device thread: loads the model, proves that it writes, then turns until it is told to leave.

Importing this imports torch, which takes seconds; the channels' thread answers meanwhile.
"""

from __future__ import annotations

import gc
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue

import psutil
import torch

from tandem.contract.messages import Health
from tandem.contract.plan import EnginePlan, Plan
from tandem.contract.process import Stages
from tandem.engine.drafters import drafting_of
from tandem.engine.engine import Engine
from tandem.engine.letters import Link, Received, Sent
from tandem.engine.world import World
from tandem.errors import CannotStart
from tandem.memory.cuda_pages import CudaPages
from tandem.memory.heap import anonymous_bytes, locked_bytes, trim_heap
from tandem.memory.host_pages import HostPages
from tandem.memory.pages import PageBackend
from tandem.memory.reading import read_memory
from tandem.model.inspection import family_of, window_too_long, wrong_family
from tandem.model.interface import Model
from tandem.model.loading import load
from tandem.residency.journal import Journal
from tandem.units import format_bytes

log = logging.getLogger("tandem.engine")

Progress = Callable[[float], None]  # hears the loaded share
Load = Callable[[Path, str, int, Progress, str, bool, bool, Path], Model]


def run(plan: Plan, link: Link, load: Load = load) -> None:
    """Returns when the engine has left; raises what loading or warming up raises, and our own bugs."""
    stages = Stages()
    stages.ended("runtime")
    _check_family(plan.engine)
    model = load_model(plan, _telling(link), load)
    _check_windows(plan.engine, model.config.window)
    stages.ended("weights")
    with drafting_of(plan.engine, model) as drafting:
        world = _world(link, plan.engine, plan.paths.state)
        engine = Engine(model, plan.engine, plan.live, _room(plan.engine), world, _pages(plan.engine), drafting)
        stages.ended("drafting and caches")
        link.health = Health(ready=False, state="loading", sentence="Loading: writing a first token", progress=1.0)
        engine.warm_up()
        stages.ended("first token")
        # What exists now stays: a full collection would walk all of torch's modules in the middle of some round.
        gc.collect()
        gc.freeze()
        log.info("ready after %s: %s", stages, _describe(plan))
        link.health, link.beat = engine.health(), time.monotonic()
        while not engine.is_done:
            engine.turn(collect(link.inbox, engine.patience))
        engine.close()


def load_model(plan: Plan, progress: Progress, load: Load = load) -> Model:
    """The model that the plan names. Raises `CannotStart` as `load` does."""
    engine, state = plan.engine, Path(plan.paths.state)
    mtp = engine.draft is not None and engine.draft.mtp
    weights = Path(engine.weights)
    return load(weights, engine.compute, engine.threads, progress, engine.device, mtp, engine.graphs, state)


def collect(inbox: SimpleQueue[Received], patience: float) -> list[Received]:
    """All that has come in; when nothing has, sleep up to `patience` seconds for the first."""
    letters: list[Received] = []
    try:
        letters.append(inbox.get(timeout=patience) if patience else inbox.get_nowait())
        while True:
            letters.append(inbox.get_nowait())
    except Empty:
        return letters


def _check_family(plan: EnginePlan) -> None:
    """Raises `CannotStart` for weights of another family than the profile's; weights that are absent are `load`'s."""
    path = Path(plan.weights)
    if path.exists() and (found := family_of(path)) != plan.family:
        raise CannotStart(*wrong_family(path, plan.family, found))


def _check_windows(plan: EnginePlan, trained: int) -> None:
    """Raises `CannotStart` for a profile that declares more rows than the model knows positions."""
    longest = max(slot.window for slot in plan.slots)
    if longest > trained:
        raise CannotStart(*window_too_long(plan.weights, longest, trained))


def _world(link: Link, plan: EnginePlan, state: str) -> World:
    """`state` is the folder of the journal."""

    def post(letters: list[Sent], health: Health) -> None:
        link.health, link.beat = health, time.monotonic()
        if letters:
            link.outbox(letters)

    return World(
        clock=time.monotonic,
        available=lambda: _memory(plan)[0],
        noise=lambda: secrets.randbits(64),
        post=post,
        held=lambda: _held(plan),
        trim=trim_heap,
        ask_roles=link.ask_roles,
        journal=Journal(Path(state)).write,
    )


def _pages(plan: EnginePlan) -> PageBackend | None:
    """Where the KV pool takes its pages; None when it is off. Raises `CannotStart` where there are none to take."""
    if not plan.kv_pool:
        return None
    return HostPages() if plan.device == "cpu" else CudaPages(torch.device(plan.device, 0))


def _telling(link: Link) -> Progress:
    def progress(share: float) -> None:
        sentence = f"Loading: {share:.0%} of the weights"
        link.health = Health(ready=False, state="loading", sentence=sentence, progress=share)
        link.beat = time.monotonic()

    return progress


def _room(plan: EnginePlan) -> int:
    """What the floor and all requests share, in bytes: the memory the model lies in, less what it holds loaded."""
    available, total = _memory(plan)
    return available if _is_discrete(plan) else total - psutil.Process().memory_info().rss


def _memory(plan: EnginePlan) -> tuple[int, int]:
    """Available and total bytes where rows lie. On a GB10, which has one memory, the kernel's figures are the true."""
    if _is_discrete(plan):
        return torch.cuda.mem_get_info(0)
    reading = read_memory()
    return reading.available, reading.total


def _held(plan: EnginePlan) -> int:
    """What this process takes where rows lie; rows of the pool on a device are counted by the pool."""
    on_device = torch.cuda.memory_reserved() if plan.device == "cuda" else 0
    return on_device if _is_discrete(plan) else on_device + anonymous_bytes() + locked_bytes()


def _is_discrete(plan: EnginePlan) -> bool:
    return plan.device == "cuda" and not torch.cuda.get_device_properties(0).is_integrated


def _describe(plan: Plan) -> str:
    windows = ", ".join(f"{slot.window:,}" for slot in plan.engine.slots)
    size = format_bytes(psutil.Process().memory_info().rss)
    return f"{plan.engine.family}, {plan.engine.compute}, {len(plan.engine.slots)} slots of {windows} rows, {size}"
