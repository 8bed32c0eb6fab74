"""The head that guesses ahead against the same head written a second time, however the model has read the sequence.

float32 on the CPU, as `test_families`. The table of `docs/models.md` has a row for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from checkpoints import VOCAB, pieces, random_tokens, save
from heads import HEADED, Head, save_with_head
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem.errors import CannotStart
from tandem.model.decoder import Decoder
from tandem.model.families.directory import open_checkpoint
from tandem.model.interface import Block, Wants
from tandem.model.loading import load
from tandem.model.state import SequenceState
from tandem.model.tree import Tree
from tandem.model.weights.quant import Compute
from tandem.model.weights.safetensors import WrongWeights

pytestmark = pytest.mark.usefixtures("one_thread")

WORST = 3e-5
"""Largest difference of a logit, at any step."""

WINDOW = 128
STEPS = 4


@dataclass
class Pair:
    """One checkpoint in both readings."""

    model: Decoder
    head: Head
    directory: Path
    worst: float = 0.0

    def state(self) -> SequenceState:
        return self.model.new_state(WINDOW)

    def read(self, state: SequenceState, tokens: Tensor, start: int, tree: Tree | None = None) -> None:
        self.model.forward([Block(tokens, start, state, Wants.NONE, tree)])

    def guess(self, states: Sequence[SequenceState], tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Greedy, `STEPS` ahead: int64 [states, steps] and logits [states, steps, vocab]."""
        assert self.model.mtp is not None
        written, logits, carried = [], [], None
        for ahead in range(STEPS):
            answered, carried = self.model.mtp.guess(states, tokens, ahead, carried)
            tokens = answered.argmax(dim=1).tolist()
            written.append(torch.tensor(tokens))
            logits.append(answered)
        return torch.stack(written, dim=1), torch.stack(logits, dim=1)

    def agrees(self, state: SequenceState, sequence: Tensor) -> None:
        """What is guessed behind `sequence`, whose last token `state` has not read, is what the other head guesses."""
        assert state.position == sequence.shape[0] - 1
        tokens, logits = self.guess([state], [int(sequence[-1])])
        expected_tokens, expected_logits = self.head.guess(sequence, STEPS)
        self.worst = max(self.worst, (logits[0] - torch.stack(expected_logits)).abs().max().item())
        assert self.worst <= WORST
        assert tokens[0].tolist() == expected_tokens


@pytest.fixture(scope="module", params=HEADED)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory: Path = tmp_path_factory.mktemp(request.param)
    head = save_with_head(request.param, directory)
    return Pair(open_checkpoint(directory, Compute.FLOAT32, mtp=True), head, directory)


@pytest.fixture(autouse=True)
def recorded(pair: Pair, record_property: Callable[[str, object], None]) -> Iterator[None]:
    pair.worst = 0.0
    yield
    record_property("worst", pair.worst)


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 70])
def test_guesses_behind_a_prompt(pair: Pair, rows: int) -> None:
    tokens, state = random_tokens(rows + 1, 1), pair.state()
    pair.read(state, tokens[:-1], 0)
    pair.agrees(state, tokens)


@pytest.mark.parametrize("edges", [(64,), (1, 2, 40), (17, 34, 51, 68)])
def test_a_prompt_in_any_chunks(pair: Pair, edges: tuple[int, ...]) -> None:
    tokens, state = random_tokens(71, 1), pair.state()
    for start, stop in pieces(70, *edges):
        pair.read(state, tokens[start:stop], start)
    pair.agrees(state, tokens)


def test_row_by_row(pair: Pair) -> None:
    """Guesses between the rows, wrong as they are, leave nothing behind."""
    tokens, state = random_tokens(51, 1), pair.state()
    pair.read(state, tokens[:30], 0)
    for row in range(30, 50):
        pair.guess([state], [int(tokens[row])])
        pair.read(state, tokens[row : row + 1], row)
    pair.agrees(state, tokens)


def test_a_joint_pass_gives_each_sequence_what_it_gets_alone(pair: Pair) -> None:
    starts = {1: 10, 2: 33, 3: 64}
    together, alone = ({seed: pair.state() for seed in starts} for _ in range(2))
    for seed, start in starts.items():
        for states in (together, alone):
            pair.read(states[seed], random_tokens(90, seed)[:start], 0)
    for step in range(5):
        blocks = {seed: random_tokens(90, seed)[start + step : start + step + 1] for seed, start in starts.items()}
        pair.model.forward(
            [Block(blocks[seed], start + step, together[seed], Wants.NONE) for seed, start in starts.items()]
        )
        for seed, start in starts.items():
            pair.read(alone[seed], blocks[seed], start + step)
    last = [int(random_tokens(90, seed)[start + 5]) for seed, start in starts.items()]
    tokens, logits = pair.guess(list(together.values()), last)
    for row, (seed, start) in enumerate(starts.items()):
        own_tokens, own_logits = pair.guess([alone[seed]], last[row : row + 1])
        assert torch.equal(tokens[row], own_tokens[0]) and torch.equal(logits[row], own_logits[0])
        pair.agrees(alone[seed], random_tokens(90, seed)[: start + 6])


TREES = [
    (Tree((0, 0, 1, 2, 1, 0, 5, 6, 7, 5)), [0, 5, 6, 7, 8]),
    (Tree((0, 0, 1, 2, 1, 0, 5, 6, 7, 5)), [0, 1, 4]),
    (Tree((0, 0, 0, 2)), [0]),
    (Tree((0, 0, 1, 2, 3, 4)), [0, 1, 2]),
    (Tree((0, 0, 1)), []),
]


@pytest.mark.parametrize(("tree", "path"), TREES)
def test_a_path_of_a_tree_is_committed(pair: Pair, tree: Tree, path: list[int]) -> None:
    start, state = 29, pair.state()
    prompt, guesses, rest = random_tokens(start, 1), random_tokens(tree.rows, 5), random_tokens(6, 6)
    pair.read(state, prompt, 0)
    pair.guess([state], [int(guesses[0])])
    pair.read(state, guesses, start, tree)
    state.commit(path)
    line = torch.cat([prompt, guesses[path], rest])
    pair.agrees(state, line[: start + len(path) + 1])
    pair.read(state, rest[:5], start + len(path))
    pair.agrees(state, line)


def test_a_snapshot_takes_the_head_back_too(pair: Pair) -> None:
    tokens, state = random_tokens(61, 1), pair.state()
    pair.read(state, tokens[:40], 0)
    kept = state.snapshot()
    pair.read(state, random_tokens(30, 9), 40)
    pair.guess([state], [5])
    state.restore(kept)
    pair.agrees(state, tokens[:41])
    pair.read(state, tokens[40:60], 40)
    pair.agrees(state, tokens)


def test_a_sequence_is_carried_to_another_slot(pair: Pair) -> None:
    tokens, side, main = random_tokens(61, 1), pair.model.new_state(64), pair.state()
    pair.read(main, random_tokens(30, 4), 0)
    pair.read(side, tokens[:40], 0)
    main.copy_from(side, 40)
    pair.agrees(main, tokens[:41])
    pair.read(main, tokens[40:60], 40)
    pair.agrees(main, tokens)


def test_a_sequence_starts_over(pair: Pair) -> None:
    tokens, state = random_tokens(21, 1), pair.state()
    pair.read(state, random_tokens(50, 3), 0)
    pair.guess([state], [5])
    pair.read(state, tokens[:20], 0)
    pair.agrees(state, tokens)


def test_what_the_model_writes_does_not_change(pair: Pair) -> None:
    """Bit for bit, with the head and without."""
    without = open_checkpoint(pair.directory, Compute.FLOAT32)
    tokens, tree = random_tokens(40, 1), TREES[0][0]
    answers = []
    for model in (pair.model, without):
        state = model.new_state(WINDOW)
        read = [model.forward([Block(tokens[:30], 0, state, Wants.ALL)])]
        read.append(model.forward([Block(tokens[30:], 30, state, Wants.ALL, tree)]))
        answers.append(torch.cat(read))
    assert torch.equal(*answers)


def test_a_state_without_the_head_is_as_large_as_before(pair: Pair) -> None:
    without = open_checkpoint(pair.directory, Compute.FLOAT32)
    assert without.mtp is None
    layers = len(pair.model._layers)
    plain, headed = without.new_state(WINDOW), pair.state()
    attention = sum(bool(part.by_row()) for parts in plain.layers for part in parts[:1])
    assert headed.bytes_a_token == plain.bytes_a_token // attention * (attention + 1)
    assert len(plain.layers) == layers and len(headed.layers) == layers + 1
    assert headed.mtp is not None and headed.fixed_bytes == plain.fixed_bytes + headed.mtp.carry.rows.nbytes


def test_half_a_head_is_named(pair: Pair, tmp_path: Path) -> None:
    tensors = load_file(pair.directory / "model.safetensors")
    gone = next(name for name in tensors if name.startswith("mtp.layers.0.") and name.endswith("o_proj.weight"))
    save_file({name: each for name, each in tensors.items() if name != gone}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((pair.directory / "config.json").read_text())
    with pytest.raises(WrongWeights, match=rf"`{gone}` \[.*\] is missing"):
        open_checkpoint(tmp_path, Compute.FLOAT32, mtp=True)
    assert open_checkpoint(tmp_path, Compute.FLOAT32).mtp is None


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("mtp_num_hidden_layers", 2, "`mtp_num_hidden_layers` is 2; it should be 1"),
        ("mtp_use_dedicated_embeddings", True, "its head that guesses ahead has an embedding of its own"),
    ],
)
def test_a_head_of_another_form_is_refused(
    pair: Pair, tmp_path: Path, field: str, value: object, sentence: str
) -> None:
    (tmp_path / "model.safetensors").symlink_to(pair.directory / "model.safetensors")
    config = json.loads((pair.directory / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(CannotStart, match=sentence):
        open_checkpoint(tmp_path, Compute.FLOAT32, mtp=True)
    assert open_checkpoint(tmp_path, Compute.FLOAT32).mtp is None


def test_a_checkpoint_without_a_head_is_loaded_without(pair: Pair, tmp_path: Path) -> None:
    save("qwen35", tmp_path)
    model = load(tmp_path, "float32", threads=1, mtp=True)
    assert model.mtp is None
    tokens = random_tokens(10, 1)
    assert model.forward([Block(tokens, 0, model.new_state(WINDOW), Wants.LAST)]).shape == (1, VOCAB)
