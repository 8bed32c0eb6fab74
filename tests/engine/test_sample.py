"""One row of logits becomes one token: against plain re-statements of each rule."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tandem.contract.messages import Sampling
from tandem.engine.sample import NotANumber, find_fault, gumbel, gumbel_at, gumbel_of, keep, make_choice

VOCAB = 40
ROWS = arrays(np.float32, VOCAB, elements=st.floats(-20, 20, width=32))


def row_of(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def choice(sampling: Sampling, prompt: tuple[int, ...] = (0,), seed: int = 1, vocab: int = VOCAB):
    return make_choice(sampling, prompt, vocab, seed)


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


def kept_by_the_book(row: np.ndarray, sampling: Sampling) -> set[int]:
    """Sort everything, cut by rank, mass and share; then let equals in, as the filters promise."""
    order = sorted(range(len(row)), key=lambda id: (-row[id], id))
    if sampling.top_k:
        worst = row[order[min(sampling.top_k, len(order)) - 1]]
        order = [id for id in order if row[id] >= worst]
    shares = softmax(row[order] / np.float32(sampling.temperature))
    if sampling.top_p < 1:
        covered, count = 0.0, 0
        while count < len(order) and covered < sampling.top_p:
            covered += shares[count]
            count += 1
        worst = row[order[count - 1]]
        order = [id for id in order if row[id] >= worst]
        shares = softmax(row[order] / np.float32(sampling.temperature))
    return {id for id, share in zip(order, shares, strict=True) if share >= sampling.min_p * shares[0]}


def test_greedy_takes_the_best_and_of_equals_the_lowest_id() -> None:
    choose = choice(Sampling(), vocab=4)
    assert choose(row_of(0, 3, 3, 1), []) == 1
    assert choose(row_of(-1, -1, -1, -1), []) == 0


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=2)])
def test_a_row_that_is_not_numbers_is_an_error_and_no_token(sampling: Sampling) -> None:
    with pytest.raises(NotANumber):
        choice(sampling, vocab=3)(row_of(0, math.nan, 9), [])


@given(row=ROWS, position=st.integers(0, 5000), seed=st.integers(0, 2**64 - 1))
def test_a_draw_follows_from_row_seed_and_position_alone(row: np.ndarray, position: int, seed: int) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.95)
    written = [0] * position
    before = row.copy()
    first = choice(sampling, seed=seed)
    for _ in range(3):
        first(row[::-1].copy(), written[:1])  # other rows drawn in between
    assert first(row, written) == choice(sampling, seed=seed)(row, written)
    assert (row == before).all()


def test_seeds_and_positions_give_other_noise() -> None:
    samples = [tuple(gumbel(seed, position, 8)) for seed in (0, 1, -1, 2**63) for position in (0, 1, 2**40)]
    assert len(set(samples)) == len(samples)
    assert (gumbel(7, 3, 9)[:8] == gumbel(7, 3, 8)).all()


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 5000),
    st.sampled_from([VOCAB, 1001, 49_152]),
    st.integers(1, 60),
    st.integers(0, 1000),
)
def test_noise_for_a_few_tokens_is_the_noise_they_have_among_all(
    seed: int, position: int, size: int, many: int, drawn: int
) -> None:
    ids = np.sort(np.random.default_rng(drawn).choice(size, min(many, size), replace=False))
    assert np.array_equal(gumbel_at(seed, position, ids, size), gumbel(seed, position, size)[ids])


def test_noise_is_gumbel_and_never_infinite_upwards() -> None:
    noise = np.concatenate([gumbel(5, position, 50_001) for position in range(40)])
    assert noise.max() < 22.9
    assert np.mean(noise) == pytest.approx(0.5772, abs=0.005)
    assert np.var(noise) == pytest.approx(math.pi**2 / 6, abs=0.02)
    for level in (0.0, 1.0, 3.0, 6.0):  # the tail decides, so look at it
        assert np.mean(noise > level) == pytest.approx(1 - math.exp(-math.exp(-level)), rel=0.05)


def test_the_ends_of_the_noise_neither_win_always_nor_break() -> None:
    lowest, low, high, highest = gumbel_of(np.array([0, 1, 2**31, 2**32 - 1], dtype=np.uint32))
    assert lowest == pytest.approx(33 * math.log(2), abs=1e-4)
    assert lowest > low > high > highest > -math.inf


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.7),
        Sampling(temperature=1.0, top_k=3),
        Sampling(temperature=1.3, top_p=0.8, min_p=0.05),
    ],
)
def test_draws_follow_the_filtered_distribution(sampling: Sampling) -> None:
    row = row_of(2.0, 1.5, 1.0, 0.0, -1.0, 1.0)
    ids = sorted(kept_by_the_book(row, sampling))
    expected = softmax(row[ids] / np.float32(sampling.temperature))
    choose, count = choice(sampling, vocab=6, seed=3), 12_000
    seen = Counter(choose(row, range(position)) for position in range(count))
    assert set(seen) == set(ids)
    for id, share in zip(ids, expected, strict=True):
        assert seen[id] / count == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / count))


@given(
    row=ROWS,
    temperature=st.sampled_from([0.05, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 3, 39, 40, 400]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
)
def test_filters_keep_what_the_book_keeps(
    row: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    kept, book = set(keep(row, sampling).tolist()), kept_by_the_book(row, sampling)
    # Sums and exponentials round; a token exactly at a border may fall on either side of it.
    for id in kept ^ book:
        nearer = Sampling(
            temperature=temperature, top_k=top_k, top_p=min(1.0, top_p * (1 + 1e-6)), min_p=min_p * 0.99999
        )
        wider = kept_by_the_book(row, nearer)
        narrower = kept_by_the_book(
            row, Sampling(temperature=temperature, top_k=top_k, top_p=top_p * (1 - 1e-6), min_p=min_p * 1.00001)
        )
        assert id in wider and id not in narrower
    assert kept


@given(row=arrays(np.float32, 300, elements=st.integers(-40, 40)), k=st.integers(1, 301))
def test_top_k_of_a_long_row_keeps_the_k_best_and_their_equals(row: np.ndarray, k: int) -> None:
    worst = sorted(row, reverse=True)[min(k, len(row)) - 1]
    kept = keep(row, Sampling(temperature=1.0, top_k=k))
    assert kept.tolist() == np.flatnonzero(row >= worst).tolist()


@pytest.mark.parametrize("depth", [3.0, 7.0, 12.0, 18.0])
def test_a_nucleus_is_found_however_light_its_tokens_are(depth: float) -> None:
    row = np.concatenate([row_of(0.0), -depth - np.arange(3_000, dtype=np.float32) * 1e-3])
    for mass in (0.4, 0.9, 0.9999999):
        sampling = Sampling(temperature=1.0, top_p=mass)
        book = kept_by_the_book(row, sampling)
        assert abs(len(keep(row, sampling)) - len(book)) <= len(book) * 1e-3


def test_a_temperature_near_zero_is_greedy() -> None:
    row = row_of(1.0, 1.001, 0.5)
    for temperature in (1e-300, 1e-9, 1e-5):
        choose = choice(Sampling(temperature=temperature, top_p=0.9), vocab=3)
        assert {choose(row, range(position)) for position in range(50)} == {1}


def test_bias_and_penalties_by_the_book() -> None:
    row = row_of(4.0, 3.0, 2.0, -1.0, 0.0)
    bias = ((4, 3.0), (4, 0.25), (2, -1.0))
    sampling = Sampling(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, logit_bias=bias)
    choose = make_choice(sampling, (3, 0), 5, seed=1)
    # with the bias: 4, 3, 1, -1, 3.25; 3 and 0 were read: 2, 3, 1, -2, 3.25
    assert choose(row, []) == 4
    # 4 was written: 3.25 / 2 - 0.5 - 0.25 = 0.875
    assert choose(row, [4]) == 1
    # 1 too: 3 / 2 - 0.5 - 0.25 = 0.75
    assert choose(row, [4, 1]) == 0
    # 0 was read, which counts once, and is written twice: 4 / 2 - 0.5 - 2 * 0.25 = 1, as much as 2 has
    assert choose(row, [4, 1, 0, 0]) == 0
    assert choose(row, [4, 1, 0, 0, 0]) == 2


def test_penalties_count_what_was_written_once_however_often_they_are_asked() -> None:
    row = row_of(1.0, 0.95)
    choose = make_choice(Sampling(frequency_penalty=0.1), (0, 0, 0), 2, seed=1)
    written: list[int] = []
    for _ in range(6):
        choose(row, written)
        written.append(choose(row, written))
    assert written == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("sampling", "fault"),
    [
        (Sampling(temperature=-0.1), "temperature is -0.1; it must be a number of at least 0"),
        (Sampling(temperature=math.nan), "temperature is nan; it must be a number of at least 0"),
        (Sampling(temperature=math.inf), "temperature is inf; it must be a number of at least 0"),
        (Sampling(top_p=0.0), "top_p is 0.0; it must be above 0 and at most 1"),
        (Sampling(top_k=-1), "top_k is -1; it must be at least 0 (0 keeps every token)"),
        (Sampling(min_p=1.5), "min_p is 1.5; it must be from 0 to 1"),
        (Sampling(repetition_penalty=0.0), "repetition_penalty is 0.0; it must be a number above 0"),
        (Sampling(presence_penalty=math.inf), "presence_penalty is inf; it must be a number"),
        (Sampling(logit_bias=((40, 1.0),)), "logit_bias names token 40; this model's tokens are 0 to 39"),
        (Sampling(logit_bias=((4, math.nan),)), "logit_bias of token 4 is nan; it must be a number"),
        (Sampling(temperature=2.0, top_p=0.5, top_k=3, min_p=0.1, logit_bias=((39, -100.0),)), None),
    ],
)
def test_a_bad_option_is_named(sampling: Sampling, fault: str | None) -> None:
    assert find_fault(sampling, VOCAB) == fault
