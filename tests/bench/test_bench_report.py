"""What counts as a measurement, and what the table says about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.report import Sample, ratio, summarize, table

FOUR = Sample(
    clients=4,
    slots=4,
    seconds=4.0,
    tokens=512,
    first_tokens=(0.1, 0.2, 0.3, 0.4),
    cached_tokens=0,
    different=(),
    rounds_by_size={1: 6, 2: 6, 3: 6, 4: 120},
)
ONE = replace(FOUR, clients=1, seconds=2.0, tokens=128, first_tokens=(0.1,), rounds_by_size={1: 127})


def test_a_level_counts_when_its_rows_were_decoded_together() -> None:
    assert FOUR.rate == 128.0
    assert FOUR.together == pytest.approx(480 / 516)
    assert FOUR.invalid is None


def test_requests_served_one_after_the_other_do_not_pass_for_four_clients() -> None:
    one_by_one = replace(FOUR, rounds_by_size={1: 512})
    assert one_by_one.invalid == "only 0% of the rows were decoded 4 together"


def test_rounds_of_three_do_not_prove_four() -> None:
    assert replace(FOUR, rounds_by_size={3: 150, 4: 10}).invalid is not None


def test_no_rounds_prove_nothing() -> None:
    assert replace(FOUR, rounds_by_size={}).invalid is not None


def test_a_larger_round_means_that_somebody_else_was_served() -> None:
    assert replace(ONE, rounds_by_size={1: 100, 2: 1}).invalid == "somebody else was served at the same time"
    assert replace(ONE, rounds_by_size={1: 100, 2: 0}).invalid is None


def test_another_text_than_alone_does_not_count() -> None:
    assert replace(FOUR, different=(2,)).invalid == "the text of client 3 is not its alone text"


def test_the_median_is_over_the_samples_that_count() -> None:
    samples = [replace(FOUR, seconds=seconds) for seconds in (4.0, 8.0, 2.0)] + [replace(FOUR, different=(0,))]
    level = summarize(samples)
    assert (level.counted, level.runs) == (3, 4)
    assert level.rate == 128.0
    assert (level.first_token, level.worst_first_token) == (0.25, 0.4)
    assert level.reasons == ("the text of client 1 is not its alone text",)


def test_half_of_the_samples_invalid_leaves_a_level_without_figures() -> None:
    level = summarize([FOUR, replace(FOUR, different=(0,))])
    assert level.rate is None
    assert "invalid" in table([level], {}, None)


def test_a_ratio_compares_runs_that_were_neighbours_in_time() -> None:
    # A machine that slows down to a half: every pair says 2.0, the ratio of medians would too only by luck.
    fast, slow = ONE, replace(ONE, seconds=4.0)
    upper = [replace(run, tokens=256) for run in (fast, slow, slow)]
    assert ratio(upper, [fast, slow, slow]) == 2.0
    assert ratio([replace(run, different=(0,)) for run in upper], [fast, slow, slow]) is None


def test_the_table_names_what_was_measured() -> None:
    one_slot = replace(ONE, slots=1)
    text = table([summarize([one_slot]), summarize([ONE]), summarize([FOUR])], {1: 1.0, 4: 2.0}, 0.95)
    lines = text.splitlines()
    assert lines[1].split() == ["1", "1", "64.0", "-", "100", "ms", "100", "ms", "100%", "1", "of", "1"]
    assert lines[3].split()[:4] == ["4", "4", "128.0", "2.00"]
    assert lines[-1] == "one client with side slots built / without: 0.950 (costs something)"
    assert "costs nothing" in table([summarize([ONE])], {}, 0.975)
