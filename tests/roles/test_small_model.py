from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.model.interface import Block, Wants
from tandem.roles.small_model import MAX_ROWS, Continuations, SmallModel

TEXT = "The capital of France is"
WAYS = [" Paris", " Paris, a city", " a city", " Rome", " the"]


def one_by_one(model: SmallModel, text: list[int], way: list[int]) -> float:
    """The same from plain passes over a state of its own."""
    state = model._model.new_state(256)
    tokens = [*text, *way]
    with torch.inference_mode():
        logits = model._model.forward([Block(torch.tensor(tokens), 0, state, Wants.ALL)]).log_softmax(-1)
    return sum(float(logits[len(text) - 1 + n, token]) for n, token in enumerate(way))


def test_every_way_weighs_what_it_weighs_alone(smollm: SmallModel) -> None:
    text = smollm.tokenizer.encode(TEXT)
    ways = [smollm.tokenizer.encode(way) for way in WAYS]
    weights = smollm.weigh(text, ways)
    assert weights == pytest.approx([one_by_one(smollm, text, way) for way in ways], abs=0.15)
    assert weights.index(max(weights)) == 0, "Paris"
    assert weights[1] < weights[0], "a longer way of the same beginning is less likely"


def test_weighing_leaves_nothing_behind(smollm: SmallModel) -> None:
    text, ways = smollm.tokenizer.encode(TEXT), [smollm.tokenizer.encode(way) for way in WAYS]
    first = smollm.weigh(text, ways)
    smollm.weigh(smollm.tokenizer.encode("Something else entirely, and longer than that."), ways[:2])
    assert smollm.weigh(text, ways) == first


def test_more_ways_than_one_pass_holds_take_more_passes(smollm: SmallModel) -> None:
    text = smollm.tokenizer.encode(TEXT)
    many = [smollm.tokenizer.encode(f" number {n} of a long list") for n in range(40)]
    assert sum(map(len, many)) > MAX_ROWS
    together = smollm.weigh(text, many)
    assert together == pytest.approx([smollm.weigh(text, [way])[0] for way in many], abs=0.15)


def test_what_is_shared_is_not_read_again(smollm: SmallModel, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = smollm.tokenizer.encode("A long beginning that both texts share, word for word, " * 8)
    smollm.weigh([*begin, *smollm.tokenizer.encode("one")], [[5]])
    read: list[int] = []
    forward = smollm._model.forward

    def counting(blocks: list[Block]) -> torch.Tensor:
        read.append(sum(block.rows for block in blocks))
        return forward(blocks)

    monkeypatch.setattr(smollm._model, "forward", counting)
    smollm.weigh([*begin, *smollm.tokenizer.encode("two")], [[5]])
    assert sum(read) < 10


def test_it_writes_until_its_end_its_limit_or_its_time(smollm: SmallModel) -> None:
    prompt = smollm.prompt("What is the capital of France? Answer with one word.")
    whole = smollm.write(prompt, 40, time.monotonic() + 60)
    assert "Paris" in smollm.text_of(whole) and len(whole) < 40
    assert smollm.write(prompt, 2, time.monotonic() + 60) == whole[:2]
    assert smollm.write(prompt, 40, time.monotonic()) == []


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=8))
def test_ways_become_one_tree_parents_first(ways: list[list[int]]) -> None:
    tree = Continuations(ways)
    assert len(tree.parents) == len(tree.tokens) + 1 and tree.parents[0] == 0
    assert all(parent < row for row, parent in enumerate(tree.parents) if row)
    assert len(tree.tokens) == len({tuple(way[:end]) for way in ways for end in range(1, len(way))})
    for way, path in zip(ways, tree.paths, strict=True):
        assert len(path) == len(way) and path[0] == 0
        assert [tree.tokens[row - 1] for row in path[1:]] == way[:-1]
        assert all(tree.parents[row] == before for before, row in pairwise(path))
