"""Who shares a run of the weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import TinyLlama

from tandem.model import Block, Model, Wants, load
from tandem.model.passes import causal_mask, passes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(TinyLlama(layers=1).write(tmp_path_factory.mktemp("tiny") / "tiny.gguf"), "int8", threads=1)


def blocks(model: Model, *rows: int, wants: Wants = Wants.LAST) -> list[Block]:
    return [Block(torch.arange(count), 5, model.new_state(64), wants) for count in rows]


def shares(model: Model, *rows: int) -> list[list[int]]:
    return [[span.rows for span in run.spans] for run in passes(blocks(model, *rows), 16)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((1,), [[1]]),
        ((1, 1, 1, 1), [[1, 1, 1, 1]]),
        ((5, 5, 5, 5), [[5, 5, 5], [5]]),
        ((16, 1), [[16], [1]]),
        ((40, 1, 1), [[40], [1, 1]]),
        ((1, 40, 1), [[1], [40], [1]]),
        ((1,) * 17, [[1] * 16, [1]]),
    ],
)
def test_blocks_share_up_to_the_bucket(model: Model, rows: tuple[int, ...], expected: list[list[int]]) -> None:
    assert shares(model, *rows) == expected


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_no_block_is_split_lost_or_moved(model: Model, rows: list[int]) -> None:
    cut = shares(model, *rows)
    assert [count for run in cut for count in run] == rows
    assert all(sum(run) <= 16 or len(run) == 1 for run in cut)


def test_positions_and_tokens_follow_the_blocks(model: Model) -> None:
    (run,) = passes(blocks(model, 3, 2), 16)
    assert run.tokens.tolist() == [0, 1, 2, 0, 1]
    assert run.positions.tolist() == [5, 6, 7, 5, 6]
    assert [(span.start, span.first) for span in run.spans] == [(5, 0), (5, 3)]


@pytest.mark.parametrize(
    ("wants", "expected"),
    [
        ((Wants.ALL, Wants.ALL), None),
        ((Wants.LAST, Wants.ALL), [2, 3, 4]),
        ((Wants.NONE, Wants.LAST), [4]),
        ((Wants.NONE, Wants.NONE), []),
    ],
)
def test_wanted_rows_come_in_order(model: Model, wants: tuple[Wants, Wants], expected: list[int] | None) -> None:
    first, second = blocks(model, 3, wants=wants[0]) + blocks(model, 2, wants=wants[1])
    (run,) = passes([first, second], 16)
    assert (run.wanted if run.wanted is None else run.wanted.tolist()) == expected


def test_two_blocks_of_one_sequence_are_our_bug(model: Model) -> None:
    (block,) = blocks(model, 2)
    with pytest.raises(AssertionError, match="one sequence"):
        passes([block, block], 16)


def test_a_block_past_its_window_is_our_bug(model: Model) -> None:
    with pytest.raises(AssertionError, match="outside its window"):
        passes([Block(torch.arange(4), 61, model.new_state(64))], 16)


def test_a_row_sees_itself_and_what_came_before() -> None:
    mask = causal_mask(start=2, rows=3, dtype=torch.float32)
    assert (mask == 0).tolist() == [
        [True, True, True, False, False],
        [True, True, True, True, False],
        [True, True, True, True, True],
    ]
    assert torch.isneginf(mask).sum() == 3
