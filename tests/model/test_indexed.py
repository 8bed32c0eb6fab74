"""The block index against a plain reading of its definition, on chains and trees."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem.model.config import IndexConfig
from tandem.model.indexed import BlockIndex, attend_selected
from tandem.model.tree import Tree, chain

CONFIG = IndexConfig(heads=5, dim=8, budget=8, ratio=4)
WINDOW = 80


def finish(means: Tensor, positions: Tensor) -> Tensor:
    """Stands for norm and rope: anything that depends on mean and place."""
    return torch.tanh(means) + 0.1 * positions[:, None]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(seed: int = 0) -> BlockIndex:
    index = BlockIndex(CONFIG, WINDOW, torch.float32, finish)
    index.keys.copy_(random(WINDOW, CONFIG.dim, seed=seed))
    return index


def by_definition(keys: Tensor, query: Tensor, path: list[int]) -> set[int]:
    """`path`: storage rows of every token the row may see, oldest first."""
    ratio = CONFIG.ratio
    blocks = [path[at : at + ratio] for at in range(0, len(path) // ratio * ratio, ratio)]
    scores = []
    for number, block in enumerate(blocks):
        key = finish(keys[block].mean(dim=0)[None], torch.tensor([number * ratio]))[0]
        scores.append((torch.relu(query @ key).sum() / math.sqrt(CONFIG.dim)).item())
    best = sorted(range(len(blocks)), key=lambda number: (-scores[number], number))[: CONFIG.budget // ratio]
    return {row for number in best for row in blocks[number]} | set(path[len(blocks) * ratio :])


shapes = st.integers(1, 12).flatmap(lambda rows: st.tuples(*(st.integers(0, max(0, row - 1)) for row in range(rows))))


@given(shape=shapes, start=st.integers(0, 60), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_each_row_of_a_tree_selects_by_its_own_path(shape: tuple[int, ...], start: int, seed: int) -> None:
    tree, index = Tree(shape), filled(seed)
    queries = random(tree.rows, CONFIG.heads, CONFIG.dim, seed=seed + 1)
    selection = index.select(queries, start, tree)
    for row in range(tree.rows):
        path = [*range(start), *(start + ancestor for ancestor in tree.path_to(row))]
        found = selection.rows[row][selection.valid[row]].tolist()
        assert set(found) == by_definition(index.keys, queries[row], path)
        assert len(found) == len(set(found))
        assert found == [place for place in path if place in set(found)], "in the order of positions"


def test_a_chunk_selects_as_its_rows_do_one_by_one() -> None:
    whole, rows = filled(), filled()
    queries = random(50, CONFIG.heads, CONFIG.dim, seed=3)
    together = whole.select(queries, 0, chain(50))
    for row in range(50):
        alone = rows.select(queries[row : row + 1], row, chain(1))
        assert alone.rows[0][alone.valid[0]].tolist() == together.rows[row][together.valid[row]].tolist()


def test_among_equal_scores_the_earlier_block_is_taken() -> None:
    index = filled()
    selection = index.select(torch.zeros(1, CONFIG.heads, CONFIG.dim), 40, chain(1))
    assert selection.rows[0][selection.valid[0]].tolist() == [*range(8), 40]


def test_a_rewound_sequence_forgets_the_blocks_after() -> None:
    index = filled()
    index.select(random(1, CONFIG.heads, CONFIG.dim), 60, chain(1))
    index.begin(21)
    index.keys[21:] = random(WINDOW - 21, CONFIG.dim, seed=9)
    for start, rows in ((21, 19), (40, 20), (60, 20)):
        queries = random(rows, CONFIG.heads, CONFIG.dim, seed=start)
        selection = index.select(queries, start, chain(rows))
        for row in range(rows):
            found = selection.rows[row][selection.valid[row]].tolist()
            assert set(found) == by_definition(index.keys, queries[row], list(range(start + row + 1)))


@pytest.mark.parametrize("rows", [1, 40])
def test_attention_over_a_selection_is_attention_under_its_mask(rows: int) -> None:
    index, heads, kv_heads, dim = filled(), 6, 2, 8
    selection = index.select(random(rows, CONFIG.heads, CONFIG.dim, seed=5), 23, chain(rows))
    queries, keys, values = random(rows, heads, dim), random(WINDOW, kv_heads, dim), random(WINDOW, kv_heads, dim)
    ours = attend_selected(queries, keys, values, selection, dim**-0.5)
    mask = torch.zeros(rows, WINDOW, dtype=torch.bool)
    for row in range(rows):
        mask[row, selection.rows[row][selection.valid[row]]] = True
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in (queries, keys, values)), attn_mask=mask, enable_gqa=True
    )
    torch.testing.assert_close(ours, expected[0].transpose(0, 1), atol=1e-5, rtol=1e-5)
