"""`tandem why`: a row of the ledger in words."""

from __future__ import annotations

from msgspec import structs

from tandem.cli.why import tell
from tandem.ledger.schema import Row

ROW = Row(
    id="chatcmpl-1",
    at=0.0,
    route="/v1/chat/completions",
    model="m",
    key_name="",
    client="",
    status=200,
    finish="stop",
    streamed=True,
    choices=1,
    slot=1,
    reason="continues its conversation here; 470 of 471 tokens kept",
    cache_source="resident",
    prompt_tokens=471,
    cached_tokens=470,
    completion_tokens=48,
    queue_seconds=0.01,
    prefill_seconds=0.2,
    decode_seconds=1.5,
    ttft_seconds=0.21,
    total_seconds=1.75,
    rounds=20,
    drafted=30,
    accepted=28,
)


def told(**changes: object) -> str:
    return "\n".join(tell(structs.replace(ROW, **changes)))


def test_what_was_done_where_and_how_long_it_took() -> None:
    words = told()
    assert "chatcmpl-1" in words and "200 stop" in words
    assert "slot 1: continues its conversation here; 470 of 471 tokens kept" in words
    assert "1 of 471 prompt tokens were read, 470 lay in the slot" in words
    assert "waited 0.01 s, read for 0.20 s, first word after 0.21 s, wrote 48 tokens in 1.50 s, in all 1.75 s" in words
    assert "28 of 30 guesses were right, in 20 rounds" in words


def test_where_the_rows_came_from() -> None:
    assert "470 came from the disk" in told(cache_source="disk")
    assert "470 were copied from another slot" in told(cache_source="side")
    assert "all 471 prompt tokens were read" in told(cached_tokens=0, cache_source="none")


def test_why_a_conversation_was_cold() -> None:
    assert "expected" not in told()
    assert "of the 431 tokens that a slot held, the first 12 are the same" in told(missed_at=12, missed_of=431)
    assert "no slot held anything of it" in told(missed_at=0, missed_of=0)


def test_a_task_is_called_one() -> None:
    assert "a task beside a conversation" in told(task=True)
    assert "a task" not in told()


def test_a_request_that_never_got_a_slot() -> None:
    words = told(status=503, finish="queue_timeout", slot=None, queue_seconds=None, prefill_seconds=None,
                 decode_seconds=None, ttft_seconds=None, drafted=None)  # fmt: skip
    assert "503 queue_timeout" in words and "slot 1" not in words and "in all 1.75 s" in words and "None" not in words


def test_what_the_conductor_made_of_it_and_how_long_it_asked() -> None:
    words = told(kind="code", package="plain", stage="B", decider_answer="late", decider_seconds=0.4,
                 model_answer="class=code", model_seconds=1.1)  # fmt: skip
    assert (
        "code, plain, by stage B, the decider said late after 0.40 s, the model said class=code after 1.10 s" in words
    )
    assert "shaped in 1.50 s, waited 0.01 s" in words
    assert "effort high" in told(kind="code", package="plain", effort="high", stage="A")
