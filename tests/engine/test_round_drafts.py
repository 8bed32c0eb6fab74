"""Whole engines with guesses of every quality: what is written never changes, only when."""

from __future__ import annotations

import pytest
from engine_toy import VOCAB, Hand, alone, ask, engine_plan, hand
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.contract.messages import Cancel, FinishReason, Generate, Sampling
from tandem.draft.drafting import Drafting
from tandem.draft.tree import DraftTree
from tandem.engine.invented import Inventing, Texts, half_right, wrong

PENALTIES = Sampling(temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.1, seed=-5)
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, top_p=0.9, seed=11), PENALTIES, Sampling(frequency_penalty=0.5)]


def prompt(start: int, length: int) -> list[int]:
    return [(start * 17 + index * index) % VOCAB for index in range(length)]


def texts_of(requests: list[Generate]) -> Texts:
    """What each goes on to write, past its end too: a guess may run over it."""
    return {
        ("", request.tokens): alone(ask("x", request.tokens, 40, sampling=request.sampling)) for request in requests
    }


def run(requests: list[Generate], drafting: Drafting, slots: int = 2, row_bucket: int = 16) -> Hand:
    driver = hand(engine_plan([96] * slots), row_bucket=row_bucket, drafting=drafting)
    driver.turn(*requests)
    driver.until_idle()
    return driver


@given(
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 30)), min_size=1, max_size=6),
    sampling=st.sampled_from(SAMPLINGS),
    invent=st.sampled_from([wrong, half_right]),
    slots=st.integers(1, 4),
    row_bucket=st.sampled_from([1, 2, 5, 16]),
    nodes=st.integers(0, 15),
    luck=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_guesses_change_nothing(lengths, sampling, invent, slots, row_bucket, nodes, luck) -> None:
    requests = [
        ask(f"r{index}", prompt(index, length), max_tokens, sampling=sampling)
        for index, (length, max_tokens) in enumerate(lengths)
    ]
    texts = texts_of(requests)
    driver = run(requests, Inventing(texts, invent, nodes, luck), slots, row_bucket)
    for request in requests:
        assert driver.tokens(request.id) == texts["", request.tokens][: request.max_tokens]
        finished = driver.finished(request.id)
        assert finished.reason is FinishReason.LENGTH and finished.completion_tokens == request.max_tokens
        assert finished.rounds + finished.accepted == request.max_tokens - 1


def test_right_guesses_make_few_rounds() -> None:
    request = ask("a", prompt(1, 9), max_tokens=31)
    texts = texts_of([request])

    def right(text, nodes, luck) -> DraftTree:
        tokens = tuple(text[:nodes])
        count = len(tokens)
        return DraftTree(tokens, tuple(range(-1, count - 1)), (1.0,) * count, half_right(text, 1, luck).origins * count)

    drafting = Inventing(texts, right, nodes=9)
    driver = run([request], drafting, slots=1)
    assert driver.tokens("a") == texts["", request.tokens][:31]
    finished = driver.finished("a")
    assert (finished.rounds, finished.drafted, finished.accepted) == (3, 27, 27)
    counters = driver.health.counters
    assert counters.rounds_by_rows == {10: 3} and counters.rows == 30 and counters.committed_tokens == 31
    assert counters.drafted == counters.accepted == {"half-right": 27}
    assert counters.rounds_by_size == {1: 3}


def test_a_stop_token_among_right_guesses_ends_the_answer_there() -> None:
    text = alone(ask("a", prompt(2, 6), max_tokens=30))
    stop = text[13]
    request = ask("a", prompt(2, 6), max_tokens=30, stop=[stop])
    driver = run([request], Inventing({("", request.tokens): text}, half_right, nodes=12), slots=1)
    assert driver.tokens("a") == text[: text.index(stop)]
    assert driver.finished("a").reason is FinishReason.STOP


def test_a_conversation_resumes_the_same_behind_guesses() -> None:
    driver = hand(engine_plan([512]), row_bucket=16)
    plain = hand(engine_plan([512]), row_bucket=16)
    texts: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    driver = hand(engine_plan([512]), row_bucket=16, drafting=Inventing(texts, half_right, nodes=10))
    text = prompt(3, 9)
    for number in range(4):
        request = ask(f"t{number}", text, max_tokens=9, head_end=4)
        plain.turn(request)
        plain.until_idle()
        texts["", request.tokens] = plain.tokens(request.id)
        driver.turn(request)
        driver.until_idle()
        assert driver.tokens(request.id) == plain.tokens(request.id)
        assert driver.finished(request.id).cached_tokens == plain.finished(request.id).cached_tokens
        text = [*text, *driver.tokens(request.id), *prompt(number, 6)]


def test_a_pass_that_fails_on_guesses_ends_its_requests_and_the_slots_go_on() -> None:
    requests = [ask(id, prompt(index, 5), max_tokens=20) for index, id in enumerate("ab")]
    driver = hand(engine_plan([96] * 2), row_bucket=16, drafting=Inventing(texts_of(requests), half_right, 6))
    driver.turn(*requests)
    for _ in range(4):
        driver.turn()
    driver.model.broken.append(RuntimeError("the device is unwell"))
    driver.turn()
    driver.turn()
    assert {driver.refused(id).code for id in "ab"} == {"engine_error"}
    again = [ask(request.id + "2", request.tokens, 20) for request in requests]
    driver.turn(*again)
    driver.until_idle()
    for request in again:
        assert driver.tokens(request.id) == alone(request)


@pytest.mark.parametrize("after", range(1, 9))
def test_a_cancel_between_rounds_leaves_a_slot_that_serves(after: int) -> None:
    request = ask("a", prompt(1, 9), max_tokens=30)
    texts = texts_of([request])
    driver = hand(engine_plan([96]), row_bucket=16, drafting=Inventing(texts, half_right, 8, after))
    driver.turn(request)
    for _ in range(after):
        driver.turn()
    driver.turn(Cancel("a"))
    written = driver.tokens("a")
    assert written == texts["", request.tokens][: len(written)]
    driver.turn(ask("b", request.tokens, 30))
    driver.until_idle()
    assert driver.tokens("b") == texts["", request.tokens][:30]


def test_every_round_of_many_slots_stays_within_the_row_bucket() -> None:
    requests = [ask(f"r{index}", prompt(index, 3), max_tokens=12) for index in range(5)]
    texts = texts_of(requests)
    driver = run(requests, Inventing(texts, half_right, 15), slots=5, row_bucket=8)
    rounds = [blocks for blocks in driver.model.passes if blocks != [3]]
    assert max(map(sum, rounds)) <= 8 and max(map(len, rounds)) == 5
    for request in requests:
        assert driver.tokens(request.id) == texts["", request.tokens][:12]
