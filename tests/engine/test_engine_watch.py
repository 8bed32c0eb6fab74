"""What the engine sees in what it writes, and says at the end: loops, thinking, scores."""

from __future__ import annotations

import math

import pytest
from engine_toy import VOCAB, Hand, alone, ask, engine_plan, hand
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tandem.conductor.monitor import FEWEST_TOKENS
from tandem.contract.messages import Finished, FinishReason, Generate, Loop, Reasoning, Sampling, Tokens, TokenScore
from tandem.engine.invented import Inventing, half_right, wrong

SAME = Sampling(logit_bias=((9, 100.0),))  # writes one token for ever
ROOM = engine_plan([2048])


def endless(end_loops: bool | None = None, reasoning: Reasoning | None = None) -> Generate:
    request = ask("a", max_tokens=FEWEST_TOKENS + 50, sampling=SAME)
    return structs.replace(request, end_loops=end_loops, reasoning=reasoning)


def ran(request: Generate, profile: bool = False) -> tuple[Hand, Finished]:
    driver = hand(structs.replace(ROOM, end_loops=profile))
    driver.turn(request)
    driver.until_idle()
    return driver, driver.finished("a")


@pytest.mark.parametrize(
    ("asked", "profile", "ends"),
    [(None, False, False), (None, True, True), (True, False, True), (False, True, False)],
)
def test_a_loop_is_told_and_ended_when_the_request_or_else_the_profile_says_so(
    asked: bool | None, profile: bool, ends: bool
) -> None:
    _, finished = ran(endless(asked), profile)
    if ends:
        assert (finished.reason, finished.completion_tokens) == (FinishReason.LOOP, FEWEST_TOKENS)
        assert finished.loop == Loop(1, FEWEST_TOKENS)
    else:
        assert (finished.reason, finished.completion_tokens) == (FinishReason.LENGTH, FEWEST_TOKENS + 50)
        assert finished.loop == Loop(1, FEWEST_TOKENS + 50)


def test_an_answer_without_a_loop_has_none() -> None:
    _, finished = ran(ask("a", max_tokens=200))
    assert (finished.loop, finished.runaway, finished.reasoning_tokens) == (None, False, 0)


def test_thinking_ends_at_its_limit_and_is_counted_without_its_marks() -> None:
    driver, finished = ran(endless(reasoning=Reasoning((), (3, 4), max_tokens=5)))
    assert driver.tokens("a")[:9] == [9, 9, 9, 9, 9, 3, 4, 9, 9]
    assert (finished.reasoning_tokens, finished.runaway) == (5, False)


def test_thinking_that_never_ends_is_a_runaway() -> None:
    _, finished = ran(endless(reasoning=Reasoning((), (3, 4))))
    assert (finished.reasoning_tokens, finished.runaway) == (finished.completion_tokens, True)


def test_every_token_has_its_score_and_the_best_ones_beside_it() -> None:
    request = structs.replace(ask("a", max_tokens=12), top_logprobs=3)
    driver, _ = ran(request)
    letters = [message for message in driver.to("a") if isinstance(message, Tokens)]
    assert all(len(letter.scores) == len(letter.tokens) for letter in letters)
    scores = [score for letter in letters for score in letter.scores]
    assert [score.top[0][0] for score in scores] == driver.tokens("a") == alone(ask("a", max_tokens=12))  # greedy
    assert all(score.chosen == score.top[0][1] and len(score.top) == 3 for score in scores)


def test_scores_are_the_models_own_whatever_is_done_to_the_row() -> None:
    request = structs.replace(endless(), max_tokens=4, top_logprobs=VOCAB)
    driver, _ = ran(request)
    scores = [score for m in driver.to("a") if isinstance(m, Tokens) for score in m.scores]
    assert driver.tokens("a") == [9, 9, 9, 9]
    for score in scores:
        assert dict(score.top)[9] == score.chosen < score.top[0][1]
        assert math.fsum(math.exp(value) for _, value in score.top) == pytest.approx(1)


def test_nobody_who_did_not_ask_gets_scores() -> None:
    driver, _ = ran(ask("a"))
    assert all(message.scores == () for message in driver.to("a") if isinstance(message, Tokens))


def scores_of(driver: Hand, id: str) -> list[TokenScore]:
    return [score for message in driver.to(id) if isinstance(message, Tokens) for score in message.scores]


@settings(max_examples=25, deadline=None)
@given(
    sampling=st.sampled_from(
        [Sampling(), Sampling(temperature=1.0, top_p=0.9, seed=3), Sampling(repetition_penalty=1.5)]
    ),
    limit=st.integers(0, 12),
    invent=st.sampled_from([wrong, half_right]),
    luck=st.integers(0, 99),
)
def test_guesses_and_company_change_neither_scores_nor_what_was_thought(sampling, limit, invent, luck) -> None:
    reasoning = Reasoning((5,), (3, 4), limit, begun=True)
    asked = [ask(f"r{n}", range(n + 1, n + 7), 30, sampling=sampling, top_logprobs=3) for n in range(3)]
    asked = [structs.replace(request, reasoning=reasoning) for request in asked]
    texts, expected = {}, {}
    for request in asked:
        driver = hand(engine_plan([96]))
        driver.turn(request)
        driver.until_idle()
        texts["", request.tokens] = driver.tokens(request.id)
        expected[request.id] = (scores_of(driver, request.id), driver.finished(request.id).reasoning_tokens)
    driver = hand(engine_plan([96] * 3), row_bucket=16, drafting=Inventing(texts, invent, 12, luck))
    driver.turn(*asked)
    driver.until_idle()
    assert all(driver.finished(request.id).drafted for request in asked)
    for request in asked:
        assert driver.tokens(request.id) == texts["", request.tokens]
        assert (scores_of(driver, request.id), driver.finished(request.id).reasoning_tokens) == expected[request.id]
        assert len(scores_of(driver, request.id)) == 30
