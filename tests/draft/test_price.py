"""Prices of passes: what is known holds, what is not known is hoped for, and a busy box changes no comparison."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.draft.price import Price, Staircase, passes_to_measure, read_prices, to_prices, write_prices

STEPS = {rows: 10.0 if rows <= 4 else 16.0 if rows <= 8 else 30.0 for rows in range(1, 17)}
ENGINE = {"weights": "abc", "compute": "int4", "threads": "2"}
passes = st.tuples(st.integers(1, 20), st.integers(0, 3000), st.floats(0.01, 1e4))


@given(st.lists(passes, max_size=30), st.lists(passes, max_size=30), st.integers(0, 5000))
def test_more_rows_never_cost_less(measured: list, paid: list, context: int) -> None:
    prices = Staircase(Price(*each) for each in measured)
    for each in paid:
        prices.observe(*each)
    table = prices.table(20, context)
    assert len(table) == 21 and all(0 < low <= high for low, high in pairwise(table))


def test_before_anything_is_known_rows_are_nearly_free_but_not_free() -> None:
    table = Staircase().table(16, 100)
    assert table[1] < table[16] < 1.5 * table[1]


@pytest.mark.parametrize("learned", [False, True], ids=["measured", "learned"])
def test_known_prices_are_charged(learned: bool) -> None:
    known = [Price(rows, 200, ms) for rows, ms in STEPS.items()]
    prices = Staircase() if learned else Staircase(known)
    for price in known if learned else []:
        prices.observe(*price)
    assert list(prices.table(16, 255))[1:] == pytest.approx(list(STEPS.values()))


def test_a_count_between_known_ones_is_hoped_to_lie_before_the_step() -> None:
    prices = Staircase([Price(1, 0, 10), Price(9, 0, 30)])
    table = prices.table(16, 0)
    assert 10 < table[5] < 20, "less than half of the way up, for the step may be anywhere"
    assert table[16] < 1.25 * table[9], "beyond what is known, rows are nearly free again"


def test_an_unknown_context_has_the_shape_of_the_nearest_known_one() -> None:
    prices = Staircase()
    for rows, ms in STEPS.items():
        prices.observe(rows, 200, ms)
    prices.observe(1, 2000, 20)
    table = prices.table(16, 2000)
    assert [table[4] / table[1], table[8] / table[1], table[16] / table[1]] == pytest.approx([1, 1.6, 3])
    assert table[1] == pytest.approx(20)


def test_one_hiccup_moves_no_price() -> None:
    prices = Staircase()
    for ms in (900.0, 10.0, 10.0, 10.0, 400.0):
        prices.observe(1, 0, ms)
        prices.observe(4, 0, ms)
    assert prices.table(4, 0)[1] == pytest.approx(10)


def test_a_loaded_box_is_followed_and_the_comparison_stays() -> None:
    prices = Staircase()
    for _ in range(5):
        for rows, ms in STEPS.items():
            prices.observe(rows, 0, ms)
    for _ in range(40):
        prices.observe(1, 0, 3 * STEPS[1])  # another program takes the box while one text is written alone
    table = prices.table(16, 0)
    assert table[1] == pytest.approx(30, rel=0.05)
    assert table[16] / table[1] == pytest.approx(3, rel=0.05)
    for _ in range(10):
        prices.observe(1, 0, STEPS[1])
    assert prices.table(16, 0)[16] == pytest.approx(30, rel=0.05)


def test_a_price_that_was_paid_once_is_forgotten_in_time() -> None:
    prices = Staircase()
    prices.observe(1, 0, 10)
    prices.observe(8, 0, 500)  # the one pass of eight rows met a hiccup: it would never be tried again
    assert prices.table(8, 0)[8] == pytest.approx(500)
    for _ in range(1200):
        prices.observe(1, 0, 10)
    assert prices.table(8, 0)[8] < 15


def test_noise_of_a_third_leaves_the_steps_apart() -> None:
    prices, random = Staircase(), Random(7)
    for _ in range(3000):
        rows = random.randint(1, 16)
        prices.observe(rows, 0, STEPS[rows] * (1 + 0.3 * random.random()))
    table = prices.table(16, 0)
    assert table[4] < 1.12 * table[1] and table[5] > 1.4 * table[4] and table[9] > 1.6 * table[8]


def test_a_clock_that_stands_still_teaches_nothing() -> None:
    prices = Staircase([Price(1, 0, 10)])
    prices.observe(1, 0, 0.0)
    prices.observe(1, 0, float("nan"))
    assert prices.table(1, 0)[1] == 10


# --- measuring and the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 20, 300, 8192])
def test_the_plan_of_measuring_reaches_every_bucket_of_the_window(window: int) -> None:
    plan = passes_to_measure(16, window)
    contexts = sorted({context for _, context in plan})
    assert plan == [(rows, context) for context in contexts for rows in range(1, 17)]
    assert contexts[0] >= 1 and (contexts[-1] + 16 <= window or contexts == [1])
    prices = Staircase(Price(rows, context, context * 10 + rows) for rows, context in plan)
    for context in contexts:
        assert prices.table(16, context)[16] == pytest.approx(context * 10 + 16), "a bucket of its own"


def test_repetitions_become_their_median() -> None:
    assert to_prices({(2, 64): [5, 900, 4], (1, 64): [3, 9], (4, 64): []}) == [Price(1, 64, 3), Price(2, 64, 5)]


def test_prices_come_back_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state" / "prices.json"
    assert read_prices(path, ENGINE) == ()
    for kept in ([Price(1, 64, 9.0)], [Price(1, 64, 10.5), Price(2, 64, 11.0)]):
        write_prices(path, ENGINE, kept)
        assert list(read_prices(path, ENGINE)) == kept
    assert [each.name for each in path.parent.iterdir()] == ["prices.json"], "nothing unfinished is left"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be used"),
        (b'{"engine":{},"prices":[[1,2]]}', "cannot be used"),
        (b'{"engine":{"weights":"abc","compute":"int8","threads":"4"},"prices":[]}', "another compute, threads"),
        (b'{"engine":{"weights":"abc","compute":"int4","threads":"2"},"prices":[[1,64,0]]}', "no pass can cost"),
    ],
    ids=["empty", "shape", "other engine", "no time at all"],
)
def test_a_file_that_cannot_be_used_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    path = tmp_path / "prices.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert read_prices(path, ENGINE) == ()
    [line] = caplog.messages
    assert str(path) in line and reason in line


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prices.json"
    write_prices(path, ENGINE, [Price(1, 64, 9.0)])

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_prices(path, ENGINE, [])
    assert list(read_prices(path, ENGINE)) == [Price(1, 64, 9.0)] and len(list(tmp_path.iterdir())) == 1
