"""Rounds on kernels, in Triton's interpreter: every family's own sequences, alone, together, as trees, and replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from checkpoints import random_tokens, save
from torch import Tensor

pytest.importorskip("triton")

from tandem.model.decoder import Decoder
from tandem.model.families.directory import open_checkpoint
from tandem.model.graphs import Rounds
from tandem.model.interface import Block, Wants
from tandem.model.kernels import attention
from tandem.model.kernels.running import INTERPRETED
from tandem.model.passes import Pass, Span
from tandem.model.placement import Placement
from tandem.model.rounds import NOBODY, ROWS, RoundTables
from tandem.model.state import SequenceState
from tandem.model.tree import Tree, chain
from tandem.model.weights.quant import Compute

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled in this process: tests/gpu tries them")

KERNELS = Placement(torch.device("cpu"), kernels=True)
TREE = Tree((0, 0, 1, 2, 1))


@dataclass
class Pair:
    family: str
    plain: Decoder  # float32, torch
    ours: Decoder


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes a program a time, also those that find nothing to do."""
    monkeypatch.setattr(attention, "SPLITS", 2)


SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in ("llama", "qwen35-moe", "flashnext")]


@pytest.fixture(scope="module", params=["qwen3", "qwen35", *SLOW])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path: Path = tmp_path_factory.mktemp(request.param)
    save(request.param, path)
    ours = open_checkpoint(path, Compute.BFLOAT16, placement=KERNELS)
    return Pair(request.param, open_checkpoint(path, Compute.FLOAT32), ours)


def read(model: Decoder, state: SequenceState, tokens: Tensor, start: int, tree: Tree | None = None) -> Tensor:
    return model.forward([Block(tokens, start, state, Wants.ALL, tree)])


def started(model: Decoder, seed: int, rows: int) -> SequenceState:
    state = model.new_state(128)
    read(model, state, random_tokens(rows, seed), 0)
    return state


def test_a_conversation_goes_as_it_does_without_kernels(pair: Pair) -> None:
    """Up to bfloat16's rounding: a prompt, rows one by one, a tree, a path of it, and on."""
    worst = 0.0
    answers = []
    for model in (pair.plain, pair.ours):
        state = started(model, 1, 30)
        told = [read(model, state, random_tokens(40, 1)[row : row + 1], row) for row in range(30, 33)]
        told.append(read(model, state, random_tokens(5, 7), 33, TREE))
        state.commit([0, 1, 4])
        told.append(read(model, state, random_tokens(3, 8), 36))
        answers.append(torch.cat(told))
    worst = (answers[0] - answers[1]).abs().max().item()
    assert worst < 0.3 and not answers[1].isnan().any()


def test_a_row_has_the_bits_it_gets_alone(pair: Pair) -> None:
    """Whoever sits beside it, wherever in the round it stands."""
    together = [started(pair.ours, seed, rows) for seed, rows in ((1, 20), (2, 33))]
    alone = [started(pair.ours, seed, rows) for seed, rows in ((1, 20), (2, 33))]
    for step in range(2):
        blocks = [
            Block(random_tokens(2, 40 + step), 33 + 2 * step, together[1], Wants.ALL),
            Block(random_tokens(1, 50 + step), 20 + step, together[0], Wants.ALL),
        ]
        joint = pair.ours.forward(blocks)
        lone = [
            *(
                read(pair.ours, alone[1], random_tokens(2, 40 + step)[row : row + 1], 33 + 2 * step + row)
                for row in range(2)
            ),
            read(pair.ours, alone[0], random_tokens(1, 50 + step), 20 + step),
        ]
        assert torch.equal(joint, torch.cat(lone))


def test_a_row_of_a_tree_has_the_bits_of_its_path_where_rows_are_all_there_is(pair: Pair) -> None:
    if pair.ours.new_state(32).fixed_bytes:
        pytest.skip("a recurrence solved for a tree adds in another order")
    guesses = random_tokens(5, 7)
    verified = read(pair.ours, started(pair.ours, 1, 20), guesses, 20, TREE)
    for row in range(TREE.rows):
        state = started(pair.ours, 1, 20)
        path = TREE.path_to(row)
        lone = [read(pair.ours, state, guesses[each : each + 1], 20 + depth) for depth, each in enumerate(path)]
        assert torch.equal(verified[row], lone[-1][0])


def test_trees_in_two_runs_of_one_call_are_both_settled(pair: Pair) -> None:
    """The second run reuses the tensors that the first one's answers lay in."""
    tree = Tree((0, 0, 1, 2, 1, 0, 5, 6, 7))
    guesses = [random_tokens(tree.rows, seed) for seed in (7, 8)]
    path = [0, 5, 6]
    together = [started(pair.ours, seed, 20) for seed in (1, 2)]
    pair.ours.forward([Block(each, 20, state, Wants.ALL, tree) for each, state in zip(guesses, together, strict=True)])
    for state, tokens, seed in zip(together, guesses, (1, 2), strict=True):
        state.commit(path)
        lone = started(pair.ours, seed, 20)
        read(pair.ours, lone, tokens, 20, tree)
        lone.commit(path)
        for mine, theirs in zip(state.snapshot().tensors, lone.snapshot().tensors, strict=True):
            assert torch.equal(mine, theirs)


class Replaying:
    """Captures as a device does, as far as a CPU can: what ran once runs again, and answers in the same tensors."""

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0

    def __call__(self, body: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], tuple[Tensor, Tensor]]:
        self.captured += 1
        answer = tuple(each.clone() for each in body())

        def replay() -> tuple[Tensor, Tensor]:
            self.replayed += 1
            for kept, fresh in zip(answer, body(), strict=True):
                kept.copy_(fresh)
            return answer[0], answer[1]

        return replay


class TestReplay:
    @pytest.fixture(autouse=True)
    def replaying(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Replaying:
        if pair.family == "flashnext":
            pytest.skip("what its index selects is laid out by the host: its rounds are not captured")
        replaying = Replaying()
        monkeypatch.setattr(pair.ours, "_rounds", Rounds(pair.ours._round, KERNELS, replaying))
        return replaying

    def test_one_capture_serves_whoever_comes(self, pair: Pair, replaying: Replaying) -> None:
        states = [started(pair.ours, seed, 20) for seed in (1, 2, 3)]
        logits = [pair.ours.forward([Block(random_tokens(1, 9), 20, state)]) for state in states]
        kept = [each.clone() for each in logits]
        pair.ours.forward([Block(random_tokens(2, 5), 21, state) for state in states])
        assert (replaying.captured, replaying.replayed) == (1, 4)
        assert all(torch.equal(a, b) for a, b in zip(logits, kept, strict=True)), "answers are the caller's own"

    def test_capturing_touches_no_sequence(self, pair: Pair, replaying: Replaying) -> None:
        """The first round captures, which runs the pass without anybody in it, and is then as any other."""
        first = pair.ours.forward([Block(random_tokens(1, 9), 20, started(pair.ours, 1, 20))])
        assert replaying.captured == 1
        assert torch.equal(first, pair.ours.forward([Block(random_tokens(1, 9), 20, started(pair.ours, 1, 20))]))


class TestTables:
    def told(self, *spans: Span) -> RoundTables:
        layers = tuple(len(parts) for parts in spans[0].state.layers)
        tables = RoundTables(torch.empty(RoundTables.size(layers), dtype=torch.int64), layers)
        rows = sum(span.rows for span in spans)
        tables.tell(Pass(torch.arange(rows) + 70, torch.arange(rows), spans, None))
        return tables

    def test_who_sits_where(self, pair: Pair) -> None:
        one, two = pair.ours.new_state(128), pair.ours.new_state(64)
        tables = self.told(Span(one, 9, 0, 1, chain(1), True, None), Span(two, 30, 1, 5, TREE, False, None))
        assert tables.sequences.tolist() == [0, 1, 1, 1, 1, 1] + [NOBODY] * 10
        assert tables.positions.tolist()[:7] == [9, 30, 31, 32, 33, 32, 9]
        assert tables.tokens.tolist()[:7] == [70, 71, 72, 73, 74, 75, 70]
        assert tables.sources.tolist() == [0, 1, 2, 3, 4, 5] + [0] * 10
        assert tables.path.view(ROWS, ROWS)[5, :3].tolist() == [1, 2, 5]
        assert (tables.starts.tolist()[:2], tables.firsts.tolist()[:2]) == ([9, 30], [0, 1])
        assert (tables.counts.tolist()[:3], tables.settled.tolist()[:2]) == ([1, 5, 0], [1, 0])
        assert tables.windows.tolist()[:2] == [128, 64]

    def test_addresses_are_those_of_the_layers_parts(self, pair: Pair) -> None:
        state = pair.ours.new_state(128)
        tables = self.told(Span(state, 9, 0, 1, chain(1), True, None))
        addresses = tables.addresses.view(ROWS, -1)[0].tolist()
        for layer, parts in enumerate(state.layers):
            tensor = (parts[0].by_row() or parts[0].fixed())[0]
            assert addresses[tables.column(layer)] == tensor.data_ptr()
