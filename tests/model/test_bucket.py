"""What the measurement finds in functions whose habits are known."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tandem.model.bucket import LARGEST, least_rows, measure_row_bucket, pad_rows

WIDTH = 8
_shapes = itertools.count(100)


def changes_at(*counts: int):
    """Rows doubled; from each of `counts` rows on, by another sum."""

    def function(rows: Tensor) -> Tensor:
        return rows * 2 + sum(rows.shape[0] >= count for count in counts) * 1e-6

    return function


def fresh_weight() -> Tensor:
    """Of a shape nothing was measured for yet."""
    return torch.zeros(next(_shapes), WIDTH)


@pytest.mark.parametrize(("change", "bucket"), [(2, 1), (3, 2), (4, 2), (5, 4), (8, 4), (9, 8), (16, 8), (17, 16)])
def test_the_bucket_is_the_power_of_two_below_the_change(change: int, bucket: int) -> None:
    assert measure_row_bucket([(changes_at(change), WIDTH)], torch.float32) == bucket


def test_the_worst_function_decides() -> None:
    functions = [(changes_at(change), WIDTH) for change in (17, 5, 9)]
    assert measure_row_bucket(functions, torch.float32) == 4


def test_a_row_that_minds_its_neighbours_has_no_bucket() -> None:
    assert measure_row_bucket([(lambda rows: rows - rows.mean(0), WIDTH)], torch.float32) == 1


@pytest.mark.parametrize(("changes", "least"), [((), 1), ((2,), 2), ((2, 4), 4), ((3, 7), 8), ((16,), 16)])
def test_padding_reaches_where_the_sums_settle(changes: tuple[int, ...], least: int) -> None:
    assert least_rows(changes_at(*changes), fresh_weight()) == least


def test_padding_is_left_alone_where_it_does_not_help() -> None:
    assert least_rows(lambda rows: rows - rows.mean(0), fresh_weight()) == 1


def test_a_shape_is_measured_once() -> None:
    weight = fresh_weight()
    assert least_rows(changes_at(2), weight) == 2
    assert least_rows(lambda rows: pytest.fail("measured again"), weight) == 2


def test_rows_added_are_zeros() -> None:
    padded = pad_rows(torch.ones(3, WIDTH), LARGEST)
    assert padded.shape == (LARGEST, WIDTH)
    assert padded.sum() == 3 * WIDTH
