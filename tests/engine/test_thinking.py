"""A limit on thinking, driven through the callable that chooses a request's tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.contract.messages import Reasoning, Sampling
from tandem.engine.sample import make_choice
from tandem.engine.thinking import Thinking

VOCAB = 12
OPEN, CLOSE, STOP, WORD = (1, 2), (3, 4, 5), 0, 9


def generate(
    reasoning: Reasoning, wishes: Sequence[int], sampling: Sampling | None = None, length: int = 40
) -> list[int]:
    """What is written by a model that at each position wishes for one token, the last wish for ever."""
    thinking = Thinking(reasoning)
    choose = make_choice(sampling or Sampling(), (7,), VOCAB, seed=3, masks=[thinking.limit])
    written: list[int] = []
    while len(written) < length:
        row = np.zeros(VOCAB, dtype=np.float32)
        row[wishes[min(len(written), len(wishes) - 1)]] = 60
        token = choose(row, written)
        if token == STOP:
            break
        written.append(token)
    return written


def test_a_block_that_the_prompt_opened_ends_at_its_limit() -> None:
    assert generate(Reasoning((), CLOSE, 4), [WORD], length=9) == [WORD] * 4 + [3, 4, 5] + [WORD] * 2


def test_a_block_that_the_model_opens_is_counted_from_its_opening() -> None:
    wishes = [8, 8, 8, *OPEN, WORD]
    assert generate(Reasoning(OPEN, CLOSE, 2), wishes, length=12) == [8, 8, 8, *OPEN, WORD, WORD, *CLOSE, WORD, WORD]


def test_no_thinking_at_all_is_a_block_that_closes_at_once() -> None:
    assert generate(Reasoning(OPEN, CLOSE, 0), [*OPEN, WORD], length=6) == [*OPEN, *CLOSE, WORD]
    assert generate(Reasoning((), CLOSE, 0), [WORD], length=4) == [*CLOSE, WORD]


def test_a_model_that_closes_by_itself_is_left_alone() -> None:
    wishes = [WORD, WORD, *CLOSE, WORD]
    assert generate(Reasoning((), CLOSE, 5), wishes, length=30) == wishes[:5] + [WORD] * 25


def test_an_end_half_written_at_the_limit_is_finished_and_not_begun_again() -> None:
    assert generate(Reasoning((), CLOSE, 3), [WORD, 3, 4, WORD], length=5) == [WORD, 3, 4, 5, WORD]


def test_several_blocks_share_one_limit_and_the_last_is_closed_at_once() -> None:
    wishes = [*OPEN, WORD, WORD, *CLOSE, 8, *OPEN, WORD, WORD, WORD, WORD, 8, *OPEN, WORD]
    written = generate(Reasoning(OPEN, CLOSE, 3), wishes, length=18)
    assert written == [*OPEN, WORD, WORD, *CLOSE, 8, *OPEN, WORD, *CLOSE, 8, *OPEN, 3]


def test_a_stop_token_ends_the_answer_while_thinking_but_not_while_the_block_is_closed() -> None:
    assert generate(Reasoning((), CLOSE, 4), [WORD, WORD, STOP]) == [WORD, WORD]
    assert generate(Reasoning((), CLOSE, 2), [WORD, WORD, STOP]) == [WORD, WORD, *CLOSE]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=5.0),
        Sampling(temperature=1.0, top_p=0.1, top_k=1, min_p=1.0),
        Sampling(temperature=1.0, logit_bias=((4, -100.0), (5, -100.0)), repetition_penalty=9.0),
    ],
)
def test_the_closing_tokens_are_chosen_whatever_the_sampling(sampling: Sampling) -> None:
    assert generate(Reasoning((), CLOSE, 2), [WORD], sampling, length=5)[2:] == list(CLOSE)


def test_without_a_limit_the_row_is_the_models_own() -> None:
    row = np.ones(VOCAB, dtype=np.float32)
    thinking = Thinking(Reasoning((), CLOSE))
    assert thinking.limit(row, [WORD] * 100) is row
    assert thinking.forced([WORD] * 100) == ()
    assert thinking.num_tokens([WORD] * 100) == 100


@given(
    limit=st.integers(0, 6),
    open=st.just(()) | st.just(OPEN),
    close=st.sampled_from([CLOSE, (3,), (3, 3), (3, 4, 3, 5)]),
    wishes=st.lists(st.integers(1, 6), min_size=1, max_size=30),
)
def test_thinking_never_passes_its_limit_and_what_is_forced_is_what_is_chosen(
    limit: int, open: tuple[int, ...], close: tuple[int, ...], wishes: list[int]
) -> None:
    reasoning = Reasoning(open, close, limit)
    written = generate(reasoning, wishes)
    thinking = Thinking(reasoning)
    for end in range(len(written) + 1):
        forced = thinking.forced(written[:end])
        assert forced[: len(written) - end] == tuple(written[end : end + len(forced)])
        if not forced and thinking.answer_start(written[:end]) is None:
            assert thinking.num_tokens(written[:end]) < limit
    if thinking.answer_start(written) is not None:
        assert thinking.num_tokens(written) <= limit
