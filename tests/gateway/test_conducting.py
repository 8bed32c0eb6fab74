"""A message is asked about in stages, each bounded; then its request is shaped and nothing else is."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_double import Job
from gateway_appliance import SOON, Appliance, Start, make_live
from role_double import RoleDouble, hangs, publish, sure_of

from tandem.conductor.verdicts import read_verdicts
from tandem.contract.messages import (
    AnyMessage,
    AskDecider,
    Generate,
    Message,
    Observe,
    RefusalCode,
    RequestState,
    RoleState,
)
from tandem.contract.plan import Asked, ClassPlan, Conducting, Live, PackagePlan
from tandem.gateway.conducting import behind
from tandem.text.tokenizer import Tokenizer

pytestmark = pytest.mark.anyio
CONDUCTING = Conducting(
    decider_within=SOON,
    model_within=SOON,
    questions=(Asked("class", "choice", "What is it?", (("talk", "small talk"), ("code", "a program")), "class"),),
    classes={"talk": ClassPlan("plain"), "code": ClassPlan("exact", "high"), "other": ClassPlan("plain")},
    default="other",
    packages={"plain": PackagePlan(), "exact": PackagePlan("Be exact.", {"temperature": 0.0, "top_k": 3})},
    efforts={"high": 5000},
)
LATE = 0.15  # seconds that those get who take longer


def conducted(**changes: Any) -> Live:
    conducting = msgspec.structs.replace(CONDUCTING, **changes)
    return msgspec.structs.replace(make_live(), conductor=True, conducting=conducting)


def columns(directory: Path) -> dict[str, Any]:
    """Of the last request's row."""
    connection = sqlite3.connect(directory / "ledger.sqlite")
    connection.row_factory = sqlite3.Row
    row = dict(connection.execute("SELECT * FROM requests ORDER BY at DESC LIMIT 1").fetchone())
    connection.close()
    return row


def client_requests(appliance: Appliance) -> list[Generate]:
    return [request for request in appliance.engine.requests if not request.own_work]


def model_says(tokenizer: Tokenizer, label: str) -> Any:
    """The double as a big model that answers the conductor with this label, and clients as ever."""

    async def script(job: Job) -> None:
        job.start()
        job.tokens(*tokenizer.encode(label if job.request.own_work else "hello"))
        job.finish()

    return script


def text_of(request: Generate, tokenizer: Tokenizer) -> str:
    return b"".join(tokenizer.bytes_of[token] for token in request.tokens).decode()


async def slow(ask: AnyMessage) -> Message | None:
    """A right answer, after the deadline."""
    await asyncio.sleep(LATE + 0.2)
    return await sure_of("code")(ask)


async def test_a_decider_that_is_sure_decides(start: Start, tmp_path: Path, tokenizer: Tokenizer) -> None:
    double = RoleDouble("decider-0", "decider")
    async with start(conducted()) as appliance, double.listening(tmp_path, sure_of("code")):
        publish(appliance, decider_0=RoleState.LOADED)
        assert (await appliance.chat("Fix parser.py")).status_code == 200
        (request,) = appliance.engine.requests
        assert (request.sampling.temperature, request.sampling.top_k) == (0.0, 3)
        assert "Fix parser.py\n\nBe exact.\nassistant" in text_of(request, tokenizer)
    (ask,) = double.asked
    assert isinstance(ask, AskDecider) and ask.state == [{"role": "user", "content": "Fix parser.py"}]
    row = columns(tmp_path)
    assert (row["kind"], row["package"], row["effort"], row["stage"]) == ("code", "exact", "high", "A")
    assert row["decider_answer"] == "class=code 0.90" and 0 < row["decider_seconds"] < SOON
    assert (row["model_answer"], row["model_seconds"]) == ("", None)
    (verdict,) = read_verdicts(tmp_path)
    assert (verdict.by, verdict.answer, verdict.confidence) == ("decider", "code", 0.9)


@pytest.mark.parametrize(
    ("state", "behaviour", "told"),
    [
        (RoleState.LOADED, hangs, "late"),
        (RoleState.LOADED, slow, "late"),
        (RoleState.LOADED, None, "away"),  # its process died and nobody has noticed yet
        (RoleState.UNLOADED_FOR_MEMORY, None, "unloaded_for_memory"),
        (RoleState.FAILED, None, "away"),
        (RoleState.LOADED, sure_of("talk", confidence=0.4), "class=code 0.60"),
    ],
    ids=["hung", "slow", "dead", "held", "failed", "unsure"],
)
async def test_what_a_decider_leaves_open_the_big_model_answers_in_time(
    start: Start, tmp_path: Path, tokenizer: Tokenizer, state: RoleState, behaviour: Any, told: str
) -> None:
    double = RoleDouble("decider-0", "decider")
    within = LATE if told == "late" else SOON
    async with start(conducted(confidence=0.7, decider_within=within)) as appliance:
        publish(appliance, decider_0=state)
        appliance.engine.script = model_says(tokenizer, "code")
        if behaviour is None:
            response = await appliance.chat("Fix parser.py")
        else:
            async with double.listening(tmp_path, behaviour):
                response = await appliance.chat("Fix parser.py")
        assert response.status_code == 200
        asked, served = appliance.engine.requests
    assert asked.own_work and asked.grammar is not None and json.loads(asked.grammar.text) == ["talk", "code"]
    assert not served.own_work
    row = columns(tmp_path)
    assert (row["kind"], row["stage"]) == ("code", "B")
    assert row["decider_answer"].startswith(told) and row["model_answer"] == "class=code 1.00"


@pytest.mark.parametrize("engine", ["busy", "hung", "refuses"])
async def test_when_the_big_model_has_no_time_the_default_stands(start: Start, tmp_path: Path, engine: str) -> None:
    async def script(job: Job) -> None:
        if not job.request.own_work:
            job.start()
            job.finish()
        elif engine == "busy":
            job.progress(RequestState.QUEUED, "all slots are busy", 1, 1)
        elif engine == "refuses":
            job.refuse(RefusalCode.QUEUE_FULL, "the queue is full")

    async with start(conducted(model_within=LATE if engine == "hung" else SOON)) as appliance:
        appliance.engine.script = script
        assert (await appliance.chat("Fix parser.py")).status_code == 200
        served = client_requests(appliance)[0]
        assert served.sampling.temperature == 0.7, "the appliance's own default"
        if engine != "refuses":
            assert (await appliance.engine.cancels.get()) == appliance.engine.requests[0].id, "nothing is left behind"
    row = columns(tmp_path)
    assert (row["kind"], row["package"], row["effort"], row["stage"]) == ("other", "plain", "", "C")
    assert row["decider_answer"] == "away"
    assert row["model_answer"] == {"busy": "busy", "hung": "late", "refuses": "refused"}[engine]


async def test_the_big_model_is_not_asked_when_it_has_no_time_at_all(start: Start, tmp_path: Path) -> None:
    async with start(conducted(model_within=0.0)) as appliance:
        await appliance.chat("Fix parser.py")
        assert [request.own_work for request in appliance.engine.requests] == [False]
    assert columns(tmp_path)["stage"] == "C"


async def test_another_decider_answers_for_one_that_died(start: Start, tmp_path: Path) -> None:
    double = RoleDouble("decider-1", "decider")
    async with start(conducted()) as appliance, double.listening(tmp_path, sure_of("code")):
        publish(appliance, decider_0=RoleState.LOADED, decider_1=RoleState.LOADED)
        await appliance.chat("Fix parser.py")
    assert columns(tmp_path)["stage"] == "A"


async def test_a_client_s_own_settings_win(start: Start, tmp_path: Path) -> None:
    async with start(conducted()) as appliance, RoleDouble("decider-0", "decider").listening(tmp_path, sure_of("code")):
        publish(appliance, decider_0=RoleState.LOADED)
        await appliance.chat("Fix parser.py", temperature=1.5, reasoning_effort="low")
        (request,) = appliance.engine.requests
        assert (request.sampling.temperature, request.sampling.top_k) == (1.5, 3)


async def test_notes_stay_where_they_were_so_that_the_next_turn_begins_with_this_one(
    start: Start, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    double = RoleDouble("decider-0", "decider")
    async with start(conducted()) as appliance:
        publish(appliance, decider_0=RoleState.LOADED)
        history = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Fix parser.py"}]
        async with double.listening(tmp_path, sure_of("code")):
            first = await appliance.http.post("/v1/chat/completions", json={"messages": history})
        said = first.json()["choices"][0]["message"]["content"]
        async with double.listening(tmp_path, sure_of("talk")):
            history += [{"role": "assistant", "content": said}, {"role": "user", "content": "Thanks!"}]
            await appliance.http.post("/v1/chat/completions", json={"messages": history})
            await appliance.http.post("/v1/chat/completions", json={"messages": history})
        one, two, again = (request.tokens for request in client_requests(appliance))
    assert len(double.asked) == 2, "a message is asked about once"
    shared = one[: request_end(one, tokenizer)]
    assert two[: len(shared)] == shared and again == two
    text = b"".join(tokenizer.bytes_of[token] for token in two).decode()
    assert text.count("Be exact.") == 1 and text.index("Fix parser.py\n\nBe exact.") < text.index("Thanks!")


def request_end(tokens: tuple[int, ...], tokenizer: Tokenizer) -> int:
    """Where the answer's turn begins."""
    start = tokenizer.encode_with_controls("<|im_start|>assistant\n")
    return next(n for n in range(len(tokens)) if list(tokens[n : n + len(start)]) == start)


async def test_results_of_tools_go_by_what_was_decided_about_the_message_before(start: Start, tmp_path: Path) -> None:
    double = RoleDouble("decider-0", "decider")
    async with start(conducted()) as appliance, double.listening(tmp_path, sure_of("code")):
        publish(appliance, decider_0=RoleState.LOADED)
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix parser.py"}]
        await appliance.http.post("/v1/chat/completions", json={"messages": messages})
        messages.append({"role": "assistant", "content": "Looking."})
        await appliance.http.post("/v1/chat/completions", json={"messages": messages})
        assert [request.sampling.temperature for request in appliance.engine.requests] == [0.0, 0.0]
    assert len(double.asked) == 1
    assert columns(tmp_path)["kind"] == "code"


async def test_the_shadow_reader_hears_the_questions_and_nobody_waits_for_it(start: Start, tmp_path: Path) -> None:
    decider, shadow = RoleDouble("decider-0", "decider"), RoleDouble("shadow-reader", "shadow-reader")
    async with (
        start(conducted()) as appliance,
        decider.listening(tmp_path, sure_of("code")),
        shadow.listening(tmp_path, hangs),
    ):
        publish(appliance, decider_0=RoleState.LOADED, shadow_reader=RoleState.LOADED)
        assert (await appliance.chat("Fix parser.py")).status_code == 200
        await appliance.until(lambda: bool(shadow.asked))
        (observed,) = shadow.asked
        assert isinstance(observed, Observe) and [question.id for question in observed.questions] == ["class"]


async def test_off_is_byte_for_byte_a_plain_server(start: Start, tmp_path: Path) -> None:
    off = msgspec.structs.replace(make_live(), conducting=CONDUCTING)
    prompts = []
    for live in (make_live(), off):
        async with start(live) as appliance:
            await appliance.chat("Fix parser.py")
            (request,) = appliance.engine.requests
            prompts.append(msgspec.structs.replace(request, id=""))
    assert prompts[0] == prompts[1]
    assert columns(tmp_path)["stage"] == ""


async def test_the_engine_hears_what_the_client_itself_wrote_where_notes_of_ours_stand_between(
    start: Start, tmp_path: Path
) -> None:
    """So that a conversation is known again whatever is decided about it next time."""
    double, heard = RoleDouble("decider-0", "decider"), []
    for live, kind in ((make_live(), "code"), (conducted(), "code"), (conducted(), "talk")):
        async with start(live) as appliance, double.listening(tmp_path, sure_of(kind)):
            publish(appliance, decider_0=RoleState.LOADED)
            await appliance.chat("Fix parser.py")
            heard += client_requests(appliance)
    plain, noted, unnoted = heard
    assert (plain.client_tokens, unnoted.client_tokens) == (None, None)
    assert noted.tokens != plain.tokens == unnoted.tokens
    assert noted.client_tokens == plain.tokens
    assert noted.client_head_end == plain.marks.head_end < noted.marks.head_end


async def test_a_task_beside_a_conversation_and_a_raw_prompt_are_served_as_they_are(start: Start) -> None:
    async with start(conducted()) as appliance:
        body = {"messages": [{"role": "user", "content": "Fix parser.py"}]}
        await appliance.http.post("/v1/chat/completions", json=body, headers={"x-task": "title"})
        await appliance.http.post("/v1/completions", json={"prompt": "Fix parser.py"})
        assert [request.own_work for request in appliance.engine.requests] == [False, False]


async def test_many_at_once_wait_no_longer_than_the_two_stages_together(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def script(job: Job) -> None:
        if not job.request.own_work:  # the big model hangs for the conductor
            job.start()
            job.finish()

    number, bound = 20, 3 * LATE
    live = conducted(decider_within=LATE, model_within=2 * LATE)
    live = msgspec.structs.replace(live, limits=msgspec.structs.replace(live.limits, max_queue=64))
    async with start(live) as appliance, RoleDouble("decider-0", "decider").listening(tmp_path, hangs):
        publish(appliance, decider_0=RoleState.LOADED)
        appliance.engine.script = script
        took = sorted([each for _, each in await asyncio.gather(*(timed_new(appliance, n) for n in range(number)))])
    p95 = took[int(len(took) * 0.95) - 1]
    with capsys.disabled():
        print(f"\np95 added by a hung decider and a hung model: {p95 * 1000:.0f} ms of {bound * 1000:.0f} allowed")
    assert bound <= p95 < number * bound / 2, "side by side, not one after the other"


async def timed_new(appliance: Appliance, number: int) -> tuple[Any, float]:
    began = time.monotonic()
    response = await appliance.chat(f"Fix parser{number}.py")
    return response, time.monotonic() - began


async def test_a_share_of_what_a_decider_decided_is_checked_off_the_path(
    start: Start, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    double = RoleDouble("decider-0", "decider")
    async with start(conducted(checked=1.0)) as appliance, double.listening(tmp_path, sure_of("code")):
        publish(appliance, decider_0=RoleState.LOADED)
        appliance.engine.script = model_says(tokenizer, "talk")
        await appliance.chat("Fix parser.py")
        await appliance.until(lambda: len(read_verdicts(tmp_path)) == 2)
        report = (await appliance.http.get("/v1/shadow")).json()
    assert columns(tmp_path)["stage"] == "A" and columns(tmp_path)["model_answer"] == ""
    assert [(each.by, each.answer) for each in read_verdicts(tmp_path)] == [("decider", "code"), ("big-model", "talk")]
    (one,) = report["agreements"]
    assert (one["by"], one["other"], one["number"], one["agreed"]) == ("decider", "big-model", 1, 0)


def test_an_answer_stands_behind_the_thinking() -> None:
    assert behind((7, 8), [1, 7, 8, 2, 7, 8, 3, 4]) == [3, 4]
    assert behind((7, 8), [1, 7]) == [1, 7] and behind((7,), [7]) == []
