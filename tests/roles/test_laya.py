"""The `laya` backend on a checkpoint made here, held against its own arithmetic; nothing comes from the network."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tandem.contract.messages import Question, QuestionKind, State
from tandem.contract.plan import Basis, RolePlan
from tandem.errors import CannotStart

pytest.importorskip("laya", reason="the extra `laya` is not installed")

from laya_checkpoint import write
from laya_oracle import Oracle

from tandem.roles.laya import Laya, heard, open_laya, told

ROUTE = Question("route", QuestionKind.CHOICE, "Which tier?", (("fast", "short"), ("deep", "long"), ("tools", "")))
URGENT = Question("urgent", QuestionKind.SCORE, "How urgent?", (("0", "none"), ("1", "some"), ("2", "high")))
CODE = Question("code", QuestionKind.NOUL, "It is about code.", (("false", "no code"), ("true", "code")))
BARE = Question("bare", QuestionKind.NOUL, "It is about code.", (("false", ""), ("true", "")), ("A", "B"))
WIDE = Question("wide", QuestionKind.CHOICE, "Which one? " * 20, tuple((f"label{n}", "words " * 12) for n in range(12)))
QUESTIONS = (ROUTE, URGENT, CODE, BARE, WIDE)
STATES: tuple[State, ...] = (
    "hello",
    {"user": "please fix parser.py", "turn": 3},
    [{"role": "user", "content": "turn one"}, {"role": "user", "content": "turn two " * 100}],
    "long " * 400,
)


def role(folder: Path) -> RolePlan:
    return RolePlan("decider-0", "decider", "laya", "m", "cpu", 1 << 30, Basis.MEASURED, str(folder))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("laya")
    write(folder)
    return folder


@pytest.fixture(scope="module")
def backend(checkpoint: Path) -> Laya:
    return open_laya(role(checkpoint))


@pytest.mark.parametrize("state", STATES, ids=["text", "object", "conversation", "long"])
def test_every_answer_is_what_the_weights_say(checkpoint: Path, backend: Laya, state: State) -> None:
    said = backend.decide(state, QUESTIONS, None, None)
    oracle = Oracle(checkpoint)
    for question, answer in zip(QUESTIONS, said.answers, strict=True):
        probabilities, act = oracle.answer(state, question)
        assert [label for label, _ in answer.probabilities] == [label for label, _ in question.criteria]
        assert [p for _, p in answer.probabilities] == pytest.approx(probabilities, abs=1e-3), question.id
        assert answer.act == pytest.approx(act, abs=1e-3)
        assert len({round(p, 3) for p in probabilities}) > 1, "weights that make every answer the same show nothing"


def test_what_was_cut_is_counted(backend: Laya) -> None:
    short, long = (backend.decide(state, (ROUTE,), None, None) for state in ("hello", "x" * 5000))
    assert (short.state_tokens_dropped, short.truncated_questions) == (0, ())
    assert long.state_tokens_dropped > 4000 and long.input_tokens <= 512
    assert backend.decide("x" * 5000, (ROUTE,), 128, 64).input_tokens <= 128


def test_a_question_goes_over_and_comes_back_whole() -> None:
    assert told(BARE) == {
        "type": "noul", "instructions": "It is about code.", "labels": {"false": "A", "true": "B"},
    }  # fmt: skip
    assert told(ROUTE)["criteria"] == {"fast": "short", "deep": "long", "tools": None}
    assert told(URGENT)["criteria"] == ["none", "some", "high"]
    answer = heard(CODE, {"noul": 0.75, "action": {"act_probability": 0.5}})
    assert answer.probabilities == (("false", 0.25), ("true", 0.75)) and answer.act == 0.5


def test_loading_asks_nobody(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert open_laya(role(checkpoint)).decide("hello", (CODE,), None, None).answers


def test_what_is_no_checkpoint_and_a_package_that_is_missing_are_told(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotStart, match=r"rl_agent_config\.json"):
        open_laya(role(tmp_path))
    monkeypatch.setitem(sys.modules, "laya", None)
    with pytest.raises(CannotStart, match="not installed"):
        open_laya(role(checkpoint))
