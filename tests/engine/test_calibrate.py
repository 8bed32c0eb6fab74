"""Measuring passes: which ones, how often, and that a state is left where it was."""

from __future__ import annotations

from itertools import count

import pytest
from checkpoints import save

from tandem.engine.calibrate import calibrate
from tandem.model.interface import Model
from tandem.model.loading import load


@pytest.fixture(scope="module", params=["qwen3", "qwen35"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp(request.param)
    save(request.param, folder)
    return load(folder, "float32", threads=1)


def test_every_count_of_rows_is_timed_at_few_contexts(model: Model) -> None:
    told: list[tuple[int, int]] = []
    clock = count()
    prices = calibrate(model, 128, 16, lambda: next(clock) * 0.002, lambda *done: told.append(done), repetitions=2)
    rows = range(1, model.row_bucket + 1)
    contexts = sorted({price.context for price in prices})
    assert 1 <= len(contexts) <= 3 and contexts[-1] + model.row_bucket <= 128
    assert sorted((price.rows, price.context) for price in prices) == sorted(
        (count, context) for count in rows for context in contexts
    )
    assert {round(price.ms, 6) for price in prices} == {2.0}  # of a clock that moves once a look
    assert told == [(done, len(prices) * 2) for done in range(1, len(prices) * 2 + 1)]


def test_a_slow_pass_among_many_is_no_price(model: Model) -> None:
    """The median of the repetitions: a hiccup of the machine is outvoted."""
    looks = iter(range(1 << 20))
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0 if next(looks) % 97 == 0 else 0.001
        return now

    prices = calibrate(model, 64, 16, clock, lambda *done: None, repetitions=5)
    assert max(price.ms for price in prices) < 10
