"""Trees of guesses: their order and scores hold through whatever is done to them."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.draft.tree import NO_GUESS, ROOT, DraftTree, Origin, chain, force, merge, prune
from tandem.model.tree import Tree

A, B, FORCED = Origin("a"), Origin("b", match=3), Origin("forced")


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """What a drafter may bring: parents before children, no token twice behind one parent, siblings within reason."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    left: dict[int, float] = {ROOT: 1.0}
    for node in range(draw(st.integers(0, 9))):
        parent = draw(st.integers(ROOT, node - 1))
        taken = {token for token, other in zip(tokens, parents, strict=True) if other == parent}
        token = draw(st.integers(0, 5).filter(lambda each, taken=taken: each not in taken))
        score = draw(st.floats(0, 1)) * left[parent]
        left[parent] -= score
        left[node] = score
        tokens.append(token)
        parents.append(parent)
        scores.append(score)
    origins = draw(st.lists(st.sampled_from([A, B]), min_size=len(tokens), max_size=len(tokens)))
    return DraftTree(tuple(tokens), tuple(parents), tuple(scores), tuple(origins))


def root_paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return dict(zip(paths, tree.scores, strict=True))


def check(tree: DraftTree) -> None:
    """All that a tree promises."""
    assert tree.is_sound
    assert len(root_paths(tree)) == tree.nodes, "a path is guessed twice"
    open_path = [ROOT]
    for node, parent in enumerate(tree.parents):
        while open_path[-1] != parent:
            open_path.pop()  # an IndexError here: a parent that was left already, so no depth-first pre-order
        open_path.append(node)
        assert tree.scores[node] <= (tree.scores[parent] if parent != ROOT else 1)
    for parent in (ROOT, *range(tree.nodes)):
        promised = sum(score for score, above in zip(tree.scores, tree.parents, strict=True) if above == parent)
        assert promised <= (tree.scores[parent] if parent != ROOT else 1) + 1e-9


@given(st.lists(trees(), max_size=4))
def test_merged_trees_hold_every_guess_once_and_promise_no_more_than_is_there(given: list[DraftTree]) -> None:
    merged = merge(given)
    check(merged)
    assert set(root_paths(merged)) == {path for tree in given for path in root_paths(tree)}


@given(st.lists(trees(), max_size=3))
def test_whose_tree_comes_first_makes_no_difference(given: list[DraftTree]) -> None:
    assert len({merge(order) for order in permutations(given)}) == 1


@given(trees())
def test_merging_a_tree_with_itself_changes_no_score(tree: DraftTree) -> None:
    once, twice = root_paths(merge([tree])), root_paths(merge([tree, tree]))
    assert once == twice
    assert all(math.isclose(once[path], score, abs_tol=1e-9) for path, score in root_paths(tree).items())


def test_agreement_is_one_node_of_the_surer_drafter() -> None:
    merged = merge([chain([7, 8], [0.5, 0.2], A), chain([7, 9], [0.9, 0.4], B)])
    assert merged == DraftTree((7, 9, 8), (ROOT, 0, 0), (0.9, 0.4, 0.2), (B, B, A))


def test_contradicting_drafters_share_what_their_parent_has() -> None:
    merged = merge([chain([7, 5], [0.9, 0.9], A), chain([8], [0.9], B)])
    assert merged.tokens == (7, 5, 8) and merged.scores == pytest.approx((0.5, 0.5, 0.5))


def test_a_score_above_its_parents_is_cut() -> None:
    assert merge([chain([1, 2], [0.3, 0.8], A)]).scores == (0.3, 0.3)


@given(trees(), st.integers(0, 10))
def test_pruning_keeps_the_best_and_their_parents(tree: DraftTree, nodes: int) -> None:
    tree = merge([tree])
    pruned = prune(tree, nodes)
    check(pruned)
    kept, lost = root_paths(pruned), root_paths(tree)
    assert pruned.nodes == min(nodes, tree.nodes)
    for path in kept:
        assert kept[path] == lost.pop(path)
        assert len(path) == 1 or path[:-1] in kept
    assert not kept or not lost or min(kept.values()) >= max(lost.values())


@given(trees())
def test_the_block_of_a_tree_is_one_the_model_takes(tree: DraftTree) -> None:
    tree = merge([tree])
    block = Tree(tree.to_block_parents())
    for node, path in enumerate(root_paths(tree)):
        assert tuple(tree.tokens[row - 1] for row in block.path_to(node + 1)[1:]) == path


@given(trees(), st.lists(st.integers(0, 5), min_size=12, max_size=12))
def test_the_path_of_a_text_ends_where_the_text_leaves_the_tree(tree: DraftTree, text: list[int]) -> None:
    tree = merge([tree])
    path = tree.path(text)
    assert Tree(tree.to_block_parents()).is_path([0, *(node + 1 for node in path)])
    assert [tree.tokens[node] for node in path] == text[: len(path)]
    assert tuple(text[: len(path) + 1]) not in root_paths(tree)


@given(trees(), st.lists(st.integers(0, 5), max_size=4))
def test_forced_tokens_come_first_and_only_what_follows_them_is_kept(tree: DraftTree, forced: list[int]) -> None:
    tree = merge([tree])
    made = force(tree, forced, FORCED)
    check(made)
    before, after = root_paths(tree), root_paths(made)
    certain = before.get(tuple(forced), 1.0)
    expected = {tuple(forced[:end]): 1.0 for end in range(1, len(forced) + 1)}
    if not forced or before.get(tuple(forced), 0) > 0:
        behind = {path for path in before if len(path) > len(forced) and path[: len(forced)] == tuple(forced)}
        expected |= {path: before[path] / certain for path in behind}
    assert set(after) == set(expected)
    assert all(math.isclose(after[path], expected[path], rel_tol=1e-6, abs_tol=1e-9) for path in after)
    assert all(made.origins[node] == FORCED for node in made.path(forced))


@pytest.mark.parametrize(
    "tree",
    [
        DraftTree((1,), (0,), (0.5,), (A,)),
        DraftTree((1,), (-2,), (0.5,), (A,)),
        DraftTree((1, 2), (ROOT,), (0.5,), (A,)),
        DraftTree((1,), (ROOT,), (math.nan,), (A,)),
        DraftTree((1,), (ROOT,), (1.5,), (A,)),
    ],
    ids=["own parent", "no parent", "lengths", "not a number", "more than certain"],
)
def test_what_is_no_tree_is_told(tree: DraftTree) -> None:
    assert not tree.is_sound
    assert NO_GUESS.is_sound and chain([1, 2], [1, 0], A).is_sound
