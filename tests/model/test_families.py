"""Each family against the reference model of its checkpoint: float32 on the CPU, every position, every way of reading.

The table of `docs/models.md` is these tests: family x way. `WORST` is the tolerance it states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import FAMILIES, VOCAB, pieces, random_tokens, reference_logits, save
from torch import Tensor

from tandem.model.decoder import Decoder
from tandem.model.families.directory import open_checkpoint
from tandem.model.interface import Block, Wants
from tandem.model.state import SequenceState
from tandem.model.tree import Tree
from tandem.model.weights.quant import Compute

pytestmark = pytest.mark.usefixtures("one_thread")

WORST = 3e-5
"""Largest difference of a logit to the reference at any position; logits reach 3 to 16."""

ROWS = 90
WINDOW = 128


@dataclass
class Pair:
    """One checkpoint in both readings, and what the reference says of a few sequences."""

    model: Decoder
    reference: Any
    known: dict[int, Tensor] = field(default_factory=dict)
    worst: float = 0.0

    def expected(self, seed: int) -> Tensor:
        if seed not in self.known:
            self.known[seed] = reference_logits(self.reference, random_tokens(ROWS, seed))
        return self.known[seed]

    def close(self, ours: Tensor, expected: Tensor) -> None:
        """Logits of one position, [vocab], or of many, [rows, vocab]."""
        worst = (ours - expected).abs().amax(dim=-1)
        self.worst = max(self.worst, worst.max().item())
        assert self.worst <= WORST

    def state(self) -> SequenceState:
        return self.model.new_state(WINDOW)

    def read(self, state: SequenceState, tokens: Tensor, start: int, wants: Wants = Wants.ALL) -> Tensor:
        return self.model.forward([Block(tokens, start, state, wants)])


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory: Path = tmp_path_factory.mktemp(request.param)
    reference = save(request.param, directory)
    return Pair(open_checkpoint(directory, Compute.FLOAT32), reference)


@pytest.fixture(autouse=True)
def recorded(pair: Pair, record_property: Callable[[str, object], None]) -> Iterator[None]:
    """The worst difference of each test goes into its report: `--junitxml` makes the table of the docs."""
    pair.worst = 0.0
    yield
    record_property("worst", pair.worst)


def test_prefill(pair: Pair) -> None:
    pair.close(pair.read(pair.state(), random_tokens(ROWS, 1), 0), pair.expected(1))


@pytest.mark.parametrize("edges", [(64,), (1, 2, 40), (17, 34, 51, 68, 85)])
def test_prefill_in_any_chunks(pair: Pair, edges: tuple[int, ...]) -> None:
    tokens, state = random_tokens(ROWS, 1), pair.state()
    read = [pair.read(state, tokens[start:stop], start) for start, stop in pieces(ROWS, *edges)]
    pair.close(torch.cat(read), pair.expected(1))


def test_decode_row_by_row(pair: Pair) -> None:
    tokens, state = random_tokens(ROWS, 1), pair.state()
    pair.read(state, tokens[:30], 0, Wants.NONE)
    decoded = [pair.read(state, tokens[row : row + 1], row, Wants.LAST) for row in range(30, 70)]
    pair.close(torch.cat(decoded), pair.expected(1)[30:70])


def test_a_joint_pass_of_three(pair: Pair) -> None:
    """Sequences of different ages decode together, and each gets the bits it gets alone."""
    starts = {1: 10, 2: 33, 3: 64}
    together, alone = ({seed: pair.state() for seed in starts} for _ in range(2))
    for seed, start in starts.items():
        for states in (together, alone):
            pair.read(states[seed], random_tokens(ROWS, seed)[:start], 0, Wants.NONE)
    for step in range(10):
        blocks = [
            Block(random_tokens(ROWS, seed)[start + step : start + step + 1], start + step, together[seed], Wants.LAST)
            for seed, start in starts.items()
        ]
        for row, (seed, start) in zip(pair.model.forward(blocks), starts.items(), strict=True):
            token = random_tokens(ROWS, seed)[start + step : start + step + 1]
            assert torch.equal(row, pair.read(alone[seed], token, start + step)[0])
            pair.close(row, pair.expected(seed)[start + step])


def test_a_short_block_has_the_bits_of_its_rows_decoded(pair: Pair) -> None:
    """What `row_bucket` promises: short enough, a block is its rows, whatever lies between the products."""
    assert pair.model.row_bucket == 16
    prompt, block = random_tokens(45, 1)[:29], random_tokens(45, 1)[29:]
    whole, rows = pair.state(), pair.state()
    for state in (whole, rows):
        pair.read(state, prompt, 0, Wants.NONE)
    together = pair.read(whole, block, 29)
    alone = [pair.read(rows, block[row : row + 1], 29 + row) for row in range(16)]
    assert torch.equal(together, torch.cat(alone))


def test_a_row_of_a_tree_has_the_bits_of_its_path_where_rows_are_all_there_is(pair: Pair) -> None:
    if pair.state().fixed_bytes:
        pytest.skip("a recurrence solved for a tree adds in another order")
    tree, prompt, guesses = TREES[0][0], random_tokens(29, 1), random_tokens(10, 5)
    state = pair.state()
    pair.read(state, prompt, 0, Wants.NONE)
    verified = pair.model.forward([Block(guesses, 29, state, Wants.ALL, tree)])
    for row in range(tree.rows):
        alone = pair.state()
        pair.read(alone, prompt, 0, Wants.NONE)
        path = tree.path_to(row)
        decoded = [pair.read(alone, guesses[each : each + 1], 29 + depth) for depth, each in enumerate(path)]
        assert torch.equal(verified[row], decoded[-1][0])


TREES = [
    (Tree((0, 0, 1, 2, 1, 0, 5, 6, 7, 5)), [0, 5, 6, 7, 8]),
    (Tree((0, 0, 1, 2, 1, 0, 5, 6, 7, 5)), [0, 1, 4]),
    (Tree((0, 0, 0, 2)), [0]),
    (Tree((0, 0, 1, 2, 3, 4)), [0, 1, 2]),
    (Tree((0, 0, 1)), []),
]


@pytest.mark.parametrize(("tree", "path"), TREES)
def test_a_tree_is_verified_and_a_path_of_it_committed(pair: Pair, tree: Tree, path: list[int]) -> None:
    """Every row of the tree answers as its own path would; the path that is kept goes on as if read alone."""
    start, state = 29, pair.state()
    prompt, guesses, rest = random_tokens(ROWS, 1)[:start], random_tokens(tree.rows, 5), random_tokens(20, 6)
    pair.read(state, prompt, 0, Wants.NONE)
    verified = pair.model.forward([Block(guesses, start, state, Wants.ALL, tree)])
    for leaf in set(range(tree.rows)) - set(tree.parents[1:]):
        line = tree.path_to(leaf)
        pair.close(verified[line], reference_logits(pair.reference, torch.cat([prompt, guesses[line]]))[start:])
    state.commit(path)
    line = torch.cat([prompt, guesses[path], rest])
    went_on = [pair.read(state, rest[:1], start + len(path)), pair.read(state, rest[1:], start + len(path) + 1)]
    pair.close(torch.cat(went_on), reference_logits(pair.reference, line)[start + len(path) :])


def test_a_snapshot_takes_a_sequence_back(pair: Pair) -> None:
    tokens, other, state = random_tokens(ROWS, 1), random_tokens(20, 9), pair.state()
    pair.read(state, tokens[:40], 0, Wants.NONE)
    kept = state.snapshot()
    once = pair.read(state, tokens[40:], 40)
    state.restore(kept)
    pair.read(state, other, 40, Wants.NONE)  # another turn of the conversation overwrites rows and memories
    state.restore(kept)
    assert torch.equal(pair.read(state, tokens[40:], 40), once)
    pair.close(once, pair.expected(1)[40:])


def test_a_sequence_is_carried_to_another_slot(pair: Pair) -> None:
    tokens, side, main = random_tokens(ROWS, 1), pair.model.new_state(64), pair.state()
    pair.read(main, random_tokens(30, 4), 0, Wants.NONE)
    pair.read(side, tokens[:40], 0, Wants.NONE)
    main.copy_from(side, 40)
    pair.close(pair.read(main, tokens[40:], 40), pair.expected(1)[40:])


def test_a_state_starts_over(pair: Pair) -> None:
    tokens, state = random_tokens(ROWS, 1), pair.state()
    first = pair.read(state, tokens, 0)
    pair.read(state, random_tokens(10, 3), 0, Wants.NONE)
    assert torch.equal(pair.read(state, tokens, 0), first)


def test_only_wanted_rows_are_answered(pair: Pair) -> None:
    tokens = random_tokens(6, 1)
    wants = (Wants.NONE, Wants.LAST, Wants.ALL)
    blocks = [Block(tokens, 0, pair.state(), want) for want in wants]
    logits = pair.model.forward(blocks)
    assert logits.shape == (7, VOCAB)
    pair.close(logits[0], logits[-1])
    assert pair.model.forward([Block(tokens, 0, pair.state(), Wants.NONE)]).shape == (0, VOCAB)
