"""How often guesses come true: opinions first, then what came of guesses like them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.draft.calibration import Calibration
from tandem.draft.tree import ROOT, DraftTree, Origin, chain, merge

A, B = Origin("a"), Origin("b")


def run(nodes: int, q: float) -> DraftTree:
    """A chain whose drafter believes each guess with `q` once its parent has come."""
    return chain(range(nodes), [q ** (depth + 1) for depth in range(nodes)], A)


def test_a_drafters_opinion_counts_until_its_guesses_were_judged() -> None:
    calibration = Calibration()
    assert calibration.rate(run(3, 0.8)).scores == pytest.approx(run(3, 0.8).scores)
    for turn in range(300):
        calibration.learn(run(1, 0.8), [0 if turn % 4 == 0 else 9])
    assert calibration.probability(A, 0.8) == pytest.approx(0.25, abs=0.05)
    assert calibration.probability(B, 0.8) == pytest.approx(0.8), "another origin"
    assert calibration.probability(A, 0.2) == pytest.approx(0.2), "another grade of certainty"


def test_what_was_learned_fades() -> None:
    calibration = Calibration()
    for is_true in [False] * 1000 + [True] * 150:
        calibration.judge(A, 0.5, is_true)
    assert calibration.probability(A, 0.5) > 0.85


def test_guesses_are_judged_where_their_parent_came() -> None:
    tree = merge([chain([1, 2, 3], [0.6, 0.5, 0.4], A), chain([4, 5], [0.3, 0.2], B)])
    calibration = Calibration()
    before = [calibration.probability(origin, 0.9) for origin in (A, B)]
    calibration.learn(tree, [1, 7])  # 1 came, 2 did not, of 3 nothing is known; 4 did not come, of 5 nothing is known
    assert calibration.probability(A, 0.6) > 0.6
    assert calibration.probability(A, 0.5 / 0.6) < 0.5 / 0.6
    assert calibration.probability(A, 0.4 / 0.5) < 0.8  # of the grade of 0.5 / 0.6
    assert calibration.probability(B, 0.3) < 0.3
    assert calibration.probability(B, 0.2 / 0.3) == pytest.approx(0.2 / 0.3)
    assert [calibration.probability(origin, 0.9) for origin in (A, B)] == before
    calibration.learn(tree, [])
    assert [calibration.probability(origin, 0.9) for origin in (A, B)] == before


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60), st.floats(0, 1))
def test_ratings_are_probabilities_that_never_rise_along_a_path(judged: list[tuple[float, bool]], q: float) -> None:
    calibration = Calibration()
    for opinion, is_true in judged:
        calibration.judge(A, opinion, is_true)
    rated = calibration.rate(run(6, q))
    assert rated.is_sound and all(high >= low for high, low in pairwise((1.0, *rated.scores)))


def test_a_node_behind_an_impossible_one_is_impossible() -> None:
    tree = DraftTree((1, 2), (ROOT, 0), (0.0, 0.0), (A, A))
    assert Calibration().rate(tree).scores == (0.0, 0.0)
