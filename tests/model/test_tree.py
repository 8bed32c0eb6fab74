from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.model.tree import Tree, chain


def test_a_small_tree() -> None:
    tree = Tree((0, 0, 1, 1, 0))
    assert tree.depths == [0, 1, 2, 2, 1]
    assert [tree.is_straight(row) for row in range(5)] == [True, True, True, False, False]
    assert tree.path_to(3) == [0, 1, 3]
    assert tree.ancestors.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 0, 0, 1],
    ]
    # Two rows of tail stand before the block: row 3 is at 5, its parent at 3, the root at 2.
    assert tree.look_back(2)[3].tolist() == [5, 3, 2]
    assert tree.look_back(2)[0].tolist() == [2, 1, 0]


def test_what_is_a_path() -> None:
    tree = Tree((0, 0, 1, 1, 0))
    assert tree.is_path([0]) and tree.is_path([0, 1, 3]) and tree.is_path([0, 4])
    assert (
        not tree.is_path([]) and not tree.is_path([1, 3]) and not tree.is_path([0, 3]) and not tree.is_path([0, 4, 3])
    )


@given(rows=st.integers(1, 20), reach=st.integers(0, 9))
def test_a_chain_is_the_tree_without_branches(rows: int, reach: int) -> None:
    quick, spelled = chain(rows), Tree((0, *range(rows - 1)))
    assert quick.parents == spelled.parents
    assert list(quick.depths) == list(spelled.depths)
    assert all(quick.is_straight(row) and spelled.is_straight(row) for row in range(rows))
    assert torch.equal(quick.ancestors, spelled.ancestors)
    assert torch.equal(quick.look_back(reach), spelled.look_back(reach))


@pytest.mark.parametrize("parents", [(), (1,), (0, 1), (0, 0, 3), (0, -1)])
def test_a_child_never_stands_before_its_parent(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="names a parent before its children"):
        Tree(parents)
