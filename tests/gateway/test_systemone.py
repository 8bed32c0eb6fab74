"""The deciders' questions over HTTP: the wire form, the limits, and what is said when nobody answers."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_appliance import MODEL, Appliance, Start
from role_double import RoleDouble, hangs, publish, sure_of

from tandem.contract.messages import Answer, AnyMessage, AskDecider, Decided, RoleRefusal, RoleState, Undecided
from tandem.gateway import systemone
from tandem.gateway.systemone import evenness_left, lead, spread

pytestmark = pytest.mark.anyio

QUESTIONS: dict[str, Any] = {
    "route": {
        "type": "choice",
        "instructions": "Which?",
        "criteria": {"fast": "short", "deep": None, "tools": "calls"},
    },
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["none", "some", "high"]},
    "code": {"type": "noul", "instructions": "It is about code."},
}


async def answers(ask: AnyMessage) -> Decided:
    assert isinstance(ask, AskDecider)
    given = (
        Answer("route", (("fast", 0.2), ("deep", 0.7), ("tools", 0.1)), act=0.25),
        Answer("urgency", (("0", 0.1), ("1", 0.3), ("2", 0.6))),
        Answer("code", (("false", 0.4), ("true", 0.6))),
    )
    return Decided(ask.id, "tiny", given, 139, 20, 3, ("code",))


async def ask(appliance: Appliance, questions: Any = QUESTIONS, state: Any = "hello", **fields: Any) -> httpx.Response:
    body = {"state": state, "questions": questions, **fields}
    return await appliance.http.post("/v1/systemone", json=body)


async def test_an_answer_in_full(start: Start, tmp_path: Path) -> None:
    double = RoleDouble("decider-0", "decider")
    async with start() as appliance, double.listening(tmp_path, answers):
        publish(appliance, decider_0=RoleState.LOADED)
        response = await ask(appliance, state=[{"user": "hi"}], min_confidence=0.65, max_len=512)
    assert response.status_code == 200
    assert float(response.headers["x-inference-time-ms"]) > 0 and "inference" in response.headers["server-timing"]
    assert response.json() == {
        "model": "tiny",
        "answers": {
            "route": {
                "type": "choice", "choice": "deep", "probabilities": {"fast": 0.2, "deep": 0.7, "tools": 0.1},
                "confidence": 0.2702, "answer_confidence": 0.7, "x_jev_confidence": 0.55,
                "action": {"act_probability": 0.25},
            },
            "urgency": {
                "type": "score", "score": 1.5, "legend": {"0": "none", "1": "some", "2": "high"},
                "probabilities": {"0": 0.1, "1": 0.3, "2": 0.6}, "confidence": 0.1827, "answer_confidence": 0.6,
                "x_jev_confidence": 0.25, "low_confidence": True,
            },
            "code": {
                "type": "noul", "noul": 0.6, "confidence": 0.6, "answer_confidence": 0.6, "low_confidence": True,
            },
        },
        "usage": {
            "input_tokens": 139, "output_tokens": 0, "state_tokens": 20, "state_tokens_dropped": 3, "truncated": True,
            "truncated_questions": ["code"],
        },
    }  # fmt: skip
    (asked,) = double.asked
    assert isinstance(asked, AskDecider) and asked.state == [{"user": "hi"}] and asked.max_len == 512
    assert [question.criteria for question in asked.questions] == [
        (("fast", "short"), ("deep", ""), ("tools", "calls")),
        (("0", "none"), ("1", "some"), ("2", "high")),
        (("false", ""), ("true", "")),
    ]


@pytest.mark.parametrize(
    ("questions", "status", "param"),
    [
        ({}, 400, "questions"),
        ({"q": {"type": "maybe", "instructions": "?"}}, 400, "questions[...].type"),
        ({"q": {"type": "choice", "instructions": "?"}}, 422, "questions.q.criteria"),
        ({"q": {"type": "choice", "instructions": "?", "criteria": []}}, 422, "questions.q.criteria"),
        ({"q": {"type": "choice", "instructions": "?", "criteria": ["a", "a"]}}, 422, "questions.q.criteria"),
        ({"q": {"type": "choice", "instructions": " ", "criteria": ["a", "b"]}}, 422, "questions.q.instructions"),
        ({"q": {"type": "score", "instructions": "?", "criteria": ["a", None]}}, 422, "questions.q.criteria"),
        ({"q": {"type": "noul", "instructions": "?", "criteria": {"yes": "x"}}}, 422, "questions.q.criteria"),
        (
            {"q": {"type": "noul", "instructions": "?", "labels": {"true": "A", "false": "A"}}},
            422,
            "questions.q.labels",
        ),
        ({"q": {"type": "score", "instructions": "?", "criteria": ["a"], "labels": {}}}, 422, "questions.q.labels"),
        (
            {"q": {"type": "choice", "instructions": "?", "criteria": ["a", "b"], "option_order": ["a"]}},
            422,
            "questions.q.option_order",
        ),
        ({f"q{n}": QUESTIONS["code"] for n in range(65)}, 413, "questions"),
        ({"q": {"type": "choice", "instructions": "?", "criteria": [str(n) for n in range(101)]}}, 413, None),
        ({"q": {"type": "score", "instructions": "?", "criteria": ["x"] * 33}}, 413, "questions.q.criteria"),
        (
            {
                f"q{n}": {"type": "choice", "instructions": "?", "criteria": [str(m) for m in range(90)]}
                for n in range(6)
            },
            413,
            "questions",
        ),
    ],
)
async def test_what_cannot_be_asked_is_named(start: Start, questions: Any, status: int, param: str | None) -> None:
    async with start() as appliance:
        response = await ask(appliance, questions)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (status, param or "questions.q.criteria"), error


async def test_a_state_has_a_size_and_a_body_too(start: Start) -> None:
    async with start() as appliance:
        assert (await ask(appliance, state="x" * 50_001)).json()["error"]["param"] == "state"
        assert (await ask(appliance, state=["x" * 49_997])).status_code == 413
        assert (await ask(appliance, state="x" * (1 << 20))).status_code == 413
        missing = await appliance.http.post("/v1/systemone", json={"questions": QUESTIONS})
        assert (missing.status_code, missing.json()["error"]["param"]) == (400, "state")


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        (None, 503, "away"),
        (RoleState.UNLOADED_FOR_MEMORY, 503, "unloaded_for_memory"),
        (RoleState.REFUSED, 503, "away"),
        (RoleState.LOADED, 503, "away"),  # its process is dead
    ],
)
async def test_without_a_decider_the_client_hears_why(
    start: Start, state: RoleState | None, status: int, code: str
) -> None:
    async with start() as appliance:
        if state is not None:
            publish(appliance, decider_0=state)
        response = await ask(appliance)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["source"] == "decider"


@pytest.mark.parametrize(
    ("reason", "status"), [(RoleRefusal.BAD_QUESTION, 422), (RoleRefusal.FAILED, 500), (RoleRefusal.BUSY, 503)]
)
async def test_a_decider_s_own_refusal_is_a_status(
    start: Start, tmp_path: Path, reason: RoleRefusal, status: int
) -> None:
    async def refuses(ask: AnyMessage) -> Undecided:
        assert isinstance(ask, AskDecider)
        return Undecided(ask.id, reason, "a sentence")

    async with start() as appliance, RoleDouble("decider-0", "decider").listening(tmp_path, refuses):
        publish(appliance, decider_0=RoleState.LOADED)
        response = await ask(appliance)
        assert (response.status_code, response.json()["error"]["code"]) == (status, str(reason))


async def test_a_decider_that_hangs_and_too_many_at_once(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemone, "ANSWER_WITHIN", 0.2)
    monkeypatch.setattr(systemone, "MAX_ADMITTED", 0)
    async with start() as appliance, RoleDouble("decider-0", "decider").listening(tmp_path, hangs):
        publish(appliance, decider_0=RoleState.LOADED)
        full = await ask(appliance)
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        monkeypatch.setattr(systemone, "MAX_ADMITTED", 1)
        assert (await ask(appliance)).json()["error"]["code"] == "late"


async def test_each_is_a_row_without_a_text(start: Start, tmp_path: Path) -> None:
    async with start() as appliance, RoleDouble("decider-0", "decider").listening(tmp_path, answers):
        publish(appliance, decider_0=RoleState.LOADED)
        await ask(appliance, state="a secret word")
        await ask(appliance, {})
        publish(appliance, decider_0=RoleState.UNLOADED_FOR_MEMORY)
        await ask(appliance)
        ledger = Path(appliance.service.plan.gateway.ledger)
    rows = sqlite3.connect(ledger).execute(
        "SELECT route, model, status, finish, prompt_tokens, completion_tokens FROM requests ORDER BY at"
    )
    assert rows.fetchall() == [
        ("/v1/systemone", "tiny", 200, "stop", 139, 0),
        ("/v1/systemone", MODEL, 400, "invalid_value", 0, 0),
        ("/v1/systemone", MODEL, 503, "unloaded_for_memory", 0, 0),
    ]
    assert b"secret" not in b"".join(file.read_bytes() for file in tmp_path.glob("ledger.sqlite*"))


async def test_an_order_of_options_changes_what_the_model_reads_and_not_the_answer(
    start: Start, tmp_path: Path
) -> None:
    double = RoleDouble("decider-0", "decider")
    question = QUESTIONS["route"] | {"option_order": ["tools", "fast", "deep"]}
    async with start() as appliance, double.listening(tmp_path, sure_of("deep")):
        publish(appliance, decider_0=RoleState.LOADED)
        response = await ask(appliance, {"route": question})
    assert list(response.json()["answers"]["route"]["probabilities"]) == ["fast", "deep", "tools"]
    (asked,) = double.asked
    assert isinstance(asked, AskDecider)
    assert [label for label, _ in asked.questions[0].criteria] == ["tools", "fast", "deep"]


def test_what_confidence_means_at_its_ends() -> None:
    for measure in (evenness_left, lead):
        assert measure([0.25] * 4) == pytest.approx(0.0) and measure([0.0, 1.0, 0.0]) == pytest.approx(1.0)
        assert measure([1.0]) == 1.0
    assert spread([1.0]) == 1.0 and spread([0.0, 1.0, 0.0]) == 1.0 and spread([0.5, 0.0, 0.5]) == 0.0
    assert evenness_left([0.5, 0.5, 0.0]) == pytest.approx(1 - math.log(2) / math.log(3))
