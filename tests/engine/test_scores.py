"""Scores of a row against the definition, in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tandem.engine.sample import kth_best
from tandem.engine.scores import score

# Few values, so that equals are common; more ids than one block of the selection holds.
ROWS = arrays(np.float32, st.integers(1, 300), elements=st.sampled_from([-30.0, -1.5, 0.0, 0.25, 3.0, 80.0]))


def log_softmax(row: np.ndarray) -> list[float]:
    wide = row.astype(np.float64)
    mass = math.fsum(math.exp(value - wide.max()) for value in wide)
    return [value - wide.max() - math.log(mass) for value in wide]


@given(row=ROWS, top=st.integers(0, 20), data=st.data())
def test_scores_are_the_log_softmax_and_the_best_come_first_lowest_id_of_equals(
    row: np.ndarray, top: int, data: st.DataObject
) -> None:
    chosen = data.draw(st.integers(0, len(row) - 1))
    expected = log_softmax(row)
    scored = score(row, chosen, top)
    assert scored.chosen == pytest.approx(expected[chosen], abs=1e-5)
    order = sorted(range(len(row)), key=lambda id: (-row[id], id))[:top]
    assert [id for id, _ in scored.top] == order
    assert [value for _, value in scored.top] == pytest.approx([expected[id] for id in order], abs=1e-5)


def test_large_logits_overflow_nothing_and_a_token_ruled_out_has_no_chance() -> None:
    row = np.array([1e38, -1e38, -np.inf, 1e38], dtype=np.float32)
    scored = score(row, 2, 4)
    assert scored.chosen == -math.inf
    assert [id for id, _ in scored.top] == [0, 3, 1, 2]
    assert scored.top[0][1] == scored.top[1][1] == pytest.approx(-math.log(2), abs=1e-6)


def test_the_row_is_only_read() -> None:
    row = np.linspace(-3, 3, 100, dtype=np.float32)
    row.flags.writeable = False
    assert score(row, 99, 20).top[0][0] == 99


@given(row=ROWS, k=st.integers(1, 320))
def test_the_kth_best_is_what_sorting_says(row: np.ndarray, k: int) -> None:
    assert kth_best(row, k) == (-math.inf if k >= len(row) else np.sort(row)[-k])
