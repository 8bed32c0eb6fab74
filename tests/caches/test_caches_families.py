"""Every family: a conversation that was kept and is read on has the bits of one that was never interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from checkpoints import FAMILIES, random_tokens, save
from sequences import Books
from tiers import until
from torch import Tensor

from tandem.caches.anchors import Anchors
from tandem.caches.caches import Caches
from tandem.caches.opening import DiskTier, open_caches
from tandem.model.decoder import Decoder
from tandem.model.families.directory import open_checkpoint
from tandem.model.interface import Block, Wants
from tandem.model.state import SequenceState
from tandem.model.weights.quant import Compute

pytestmark = pytest.mark.usefixtures("one_thread")

CHUNK = 16
ROWS = 90
KEPT = 64  # on the grid
LOTS = 1 << 30


@dataclass
class Box:
    model: Decoder

    def state(self) -> SequenceState:
        return self.model.new_state(128)

    def read(self, state: SequenceState, tokens: Tensor, start: int, anchors: Anchors | None = None) -> Tensor:
        """Chunk by chunk; the logits of the last one."""
        for first in range(start, len(tokens), CHUNK):
            last = min(first + CHUNK, len(tokens))
            logits = self.model.forward([Block(tokens[first:last], first, state, Wants.ALL)])
            if anchors and last % CHUNK == 0:
                anchors.note(state)
        return logits

    def caches(self, folder: Path | None, memory: int, books: Books) -> Caches:
        tier = DiskTier(folder, LOTS, 1e9, LOTS) if folder else None
        caches = open_caches(CHUNK, b"model", self.state(), books.holdings, memory, tier, any_row=False)
        if folder:
            until(lambda: (stats := caches.stats.disk) is not None and stats.is_scanned)
        return caches


@pytest.fixture(scope="module", params=FAMILIES)
def box(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    directory = tmp_path_factory.mktemp(request.param)
    save(request.param, directory)
    yield Box(open_checkpoint(directory, Compute.FLOAT32))


def bits(tensors: tuple[Tensor, ...]) -> list[bytes]:
    return [tensor.contiguous().numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_what_was_kept_goes_on_as_if_never_interrupted(box: Box, tmp_path: Path, where: str) -> None:
    tokens, books = random_tokens(ROWS, 1), Books()
    cold, anchors = box.state(), Anchors(LOTS, books.holdings)
    expected = box.read(cold, tokens, 0, anchors)
    whole = bits(tuple(rows[:ROWS] for rows in cold._rows)), bits(cold._fixed)

    folder = tmp_path if where == "disk" else None
    caches = box.caches(folder, LOTS if where == "memory" else 0, books)
    assert caches.park(caches.prompt("one", tokens.numpy()), KEPT, cold, anchors)
    if folder:  # the box restarts
        caches.close(20.0)
        caches = box.caches(folder, 0, books)

    state = box.state()
    box.read(state, random_tokens(100, 2), 0)  # of somebody else, in the way
    prompt = caches.prompt("one", tokens.numpy())
    found = caches.find(prompt)
    assert found and (found.rows, found.source) == (KEPT, "park" if where == "memory" else "disk")
    assert caches.load(prompt, found, state) == KEPT
    assert torch.equal(box.read(state, tokens, KEPT), expected)
    assert (bits(tuple(rows[:ROWS] for rows in state._rows)), bits(state._fixed)) == whole
    caches.check_integrity()
    caches.close(20.0)


def test_an_edited_conversation_goes_on_from_the_last_anchor_before_the_edit(box: Box) -> None:
    tokens, books = random_tokens(ROWS, 1), Books()
    edited = tokens.clone()
    edited[57] += 1
    state, cold, anchors = box.state(), box.state(), Anchors(LOTS, books.holdings)
    box.read(state, tokens, 0, anchors)
    expected = box.read(cold, edited, 0)
    caches = box.caches(None, LOTS, books)
    caches.park(caches.prompt("one", tokens.numpy()), 80, state, anchors)
    prompt = caches.prompt("one", edited.numpy())
    found = caches.find(prompt)
    assert found and found.rows == 48
    assert caches.load(prompt, found, state) == 48
    assert torch.equal(box.read(state, edited, 48), expected)


def test_a_guest_leaves_no_trace(box: Box) -> None:
    """Its rows are written over somebody's, which come back from the stash, and the state from its anchor."""
    tokens, books = random_tokens(ROWS, 1), Books()
    state, cold, anchors = box.state(), box.state(), Anchors(LOTS, books.holdings)
    expected = box.read(cold, tokens, 0)
    box.read(state, tokens[:KEPT], 0, anchors)
    caches = box.caches(None, LOTS, books)
    hold = caches.stash(caches.prompt("one", tokens[:KEPT].numpy()), 23, state)
    assert hold
    box.read(state, random_tokens(23, 3), 0)
    assert caches.unstash(hold, state) == 23
    if not state.can_rewind:
        anchor = anchors.at(KEPT)
        assert anchor and anchor.position == KEPT
        state.restore(anchor)
    assert torch.equal(box.read(state, tokens, KEPT), expected)
