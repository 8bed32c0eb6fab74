from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.conductor.agreement import Labelled, agreements, calibrate
from tandem.conductor.verdicts import Verdict


def verdict(request: str, by: str, answer: str, confidence: float = 0.9, question: str = "class") -> Verdict:
    return Verdict(1.0, request, question, "choice", by, "m", answer, confidence, {answer: confidence}, 0.1)


VERDICTS = [
    verdict("1", "decider", "code", 0.95),
    verdict("1", "shadow-reader", "code", 0.6),
    verdict("1", "big-model", "code"),
    verdict("2", "decider", "code", 0.85),
    verdict("2", "shadow-reader", "talk", 0.7),
    verdict("2", "big-model", "talk"),
    verdict("3", "decider", "talk", 0.75),
    verdict("3", "big-model", "talk"),
    verdict("4", "decider", "talk", 0.5),
    verdict("1", "decider", "0", 0.5, "depth"),
    verdict("1", "shadow-reader", "0", 0.5, "depth"),
]


def test_everyone_is_held_against_everyone_on_what_both_were_asked() -> None:
    found = {(each.question, each.by, each.other): each for each in agreements(VERDICTS)}
    assert set(found) == {
        ("class", "decider", "shadow-reader"), ("class", "shadow-reader", "decider"),
        ("class", "decider", "big-model"), ("class", "shadow-reader", "big-model"),
        ("depth", "decider", "shadow-reader"), ("depth", "shadow-reader", "decider"),
    }  # fmt: skip
    with_model = found["class", "decider", "big-model"]
    assert (with_model.number, with_model.agreed) == (3, 2) and with_model.share == pytest.approx(2 / 3)
    assert with_model.labels == (Labelled("code", 1, 1), Labelled("talk", 2, 1))
    assert found["class", "shadow-reader", "big-model"].share == 1.0
    assert found["class", "decider", "shadow-reader"].agreed == 1


def test_the_last_word_counts_and_nothing_said_is_no_report() -> None:
    twice = [verdict("1", "decider", "talk"), verdict("1", "decider", "code"), verdict("1", "big-model", "code")]
    (one,) = agreements(twice)
    assert (one.number, one.agreed) == (1, 1)
    assert agreements([]) == [] and agreements(VERDICTS[8:9]) == []


def test_calibration_is_how_far_confidence_and_agreement_lie_apart() -> None:
    exact = calibrate([(0.75, True)] * 3 + [(0.75, False)])
    assert exact.error == pytest.approx(0.0) and len(exact.bins) == 1
    (only,) = exact.bins
    assert (only.low, only.number, only.confidence, only.agreed) == (0.7, 4, 0.75, 0.75)
    assert calibrate([(1.0, False)]).error == 1.0
    mixed = calibrate([(0.95, True), (0.55, False)])
    assert mixed.error == pytest.approx((0.05 + 0.55) / 2)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1))
def test_every_answer_is_in_one_bin_and_the_error_is_a_share(answers: list[tuple[float, bool]]) -> None:
    found = calibrate(answers)
    assert sum(each.number for each in found.bins) == len(answers)
    assert 0 <= found.error <= 1
    assert all(each.low - 1e-9 <= each.confidence <= each.low + 0.1 + 1e-9 for each in found.bins)
