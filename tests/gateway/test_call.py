"""Driven by hand: deliver a happening, read what follows."""

from __future__ import annotations

import pytest

from tandem.conductor.status import MARK, OVER, Line
from tandem.contract.messages import (
    Cancel,
    Finished,
    FinishReason,
    Narrated,
    Progress,
    Reasoning,
    RefusalCode,
    Refused,
    RequestState,
    Started,
    Tokens,
)
from tandem.gateway.call import Begun, Call, Choice, Ended, Failed, Output, Piece, Said
from tandem.gateway.inbox import Happening, Signal
from tandem.text.answer import Answer
from tandem.text.pieces import AnswerPart, CallArguments, CallBegun, Text, Thought
from tandem.text.tokenizer import Tokenizer

HELLO = "Hello there, world"


class Hand:
    def __init__(
        self, tokenizer: Tokenizer, stops: tuple[str, ...] = (), choices: int = 1, shows_status: bool = False
    ) -> None:
        self.tokens = tokenizer.encode(HELLO)
        self.call = Call([Choice(n, f"r.{n}", Answer(tokenizer, stops)) for n in range(choices)], shows_status)

    def deliver(self, *happenings: Happening, now: float = 0.0) -> list[Output]:
        return [output for happening in happenings for output in self.call.apply(happening, now)]


@pytest.fixture
def hand(tokenizer: Tokenizer) -> Hand:
    return Hand(tokenizer)


def started(n: int = 0, cached: int = 0) -> Started:
    return Started(f"r.{n}", n, "free", 64, cached, "none")


def finished(n: int = 0, reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished(f"r.{n}", reason, 10, 0, 4, 0.1, 0.2, 0.3)


def text_of(outputs: list[Output]) -> str:
    return "".join(
        output.part.text for output in outputs if isinstance(output, Piece) and isinstance(output.part, Text)
    )


def test_an_answer_from_start_to_end(hand: Hand) -> None:
    assert hand.deliver(started()) == [Begun(0)]
    outputs = [out for token in hand.tokens for out in hand.deliver(Tokens("r.0", (token,)), now=5.0)]
    assert text_of(outputs) == HELLO
    assert hand.deliver(finished()) == [Ended(0, FinishReason.STOP)]
    assert (hand.call.is_over, hand.call.is_settled) == (True, True)
    assert hand.call.first_token_at == 5.0


def test_a_stop_string_ends_the_answer_and_cancels_what_still_runs(tokenizer: Tokenizer) -> None:
    hand = Hand(tokenizer, stops=("there, w",))
    outputs = hand.deliver(started(), Tokens("r.0", tuple(hand.tokens)))
    assert outputs == [Begun(0), Piece(0, Text("Hello ")), Ended(0, FinishReason.STOP), Cancel("r.0")]
    assert (hand.call.is_over, hand.call.is_settled) == (True, False)
    assert hand.deliver(Tokens("r.0", (5, 6)), Signal.SILENCE) == []
    assert hand.deliver(finished(reason=FinishReason.CANCELLED)) == []
    assert hand.call.is_settled


def test_what_is_held_for_a_stop_string_comes_before_the_end(tokenizer: Tokenizer) -> None:
    hand = Hand(tokenizer, stops=("world!",))
    assert text_of(hand.deliver(started(), Tokens("r.0", tuple(hand.tokens)))) == "Hello there, "
    assert hand.deliver(finished(reason=FinishReason.LENGTH)) == [
        Piece(0, Text("world")),
        Ended(0, FinishReason.LENGTH),
    ]


@pytest.mark.parametrize("stage", ["waiting", "started", "writing"])
def test_a_client_that_leaves_cancels_at_every_stage_and_hears_nothing_more(hand: Hand, stage: str) -> None:
    happenings: list[Happening] = [started(), Tokens("r.0", (hand.tokens[0],))]
    hand.deliver(*happenings[: {"waiting": 0, "started": 1, "writing": 2}[stage]])
    assert hand.deliver(Signal.CLIENT_LEFT) == [Cancel("r.0")]
    assert (hand.call.is_over, hand.call.is_settled) == (True, False)
    assert hand.deliver(Tokens("r.0", (5,)), started(), finished(reason=FinishReason.CANCELLED)) == []
    assert hand.call.is_settled and hand.call.client_left


def test_a_connection_that_closes_after_the_last_byte_is_no_client_that_left(hand: Hand) -> None:
    hand.deliver(started(), finished())
    assert hand.deliver(Signal.CLIENT_LEFT) == []
    assert not hand.call.client_left


def test_every_choice_that_runs_hears_of_a_failure(tokenizer: Tokenizer) -> None:
    hand = Hand(tokenizer, choices=3)
    hand.deliver(started(0), started(1), finished(0))
    outputs = hand.deliver(Refused("r.1", RefusalCode.FAILED, "the slot broke"))
    assert isinstance(outputs[0], Failed) and outputs[0].error.status == 500
    assert outputs[1:] == [Cancel("r.2")]
    assert (hand.call.is_over, hand.call.is_settled) == (True, False)
    assert hand.deliver(Refused("r.2", RefusalCode.FAILED, "x")) == []
    assert hand.call.is_settled


def test_an_engine_that_is_lost_fails_what_runs_once(hand: Hand) -> None:
    hand.deliver(started())
    (failed,) = hand.deliver(Signal.ENGINE_LOST)
    assert isinstance(failed, Failed) and failed.error.code == "engine_restarted"
    assert hand.call.is_settled
    assert hand.deliver(Signal.ENGINE_LOST, Signal.TOOK_TOO_LONG, Signal.SILENCE) == []


def test_an_engine_lost_after_the_stop_string_hurts_nobody(tokenizer: Tokenizer) -> None:
    hand = Hand(tokenizer, stops=("there",))
    hand.deliver(started(), Tokens("r.0", tuple(hand.tokens)))
    assert hand.deliver(Signal.ENGINE_LOST) == []
    assert hand.call.error is None and hand.call.is_settled


def test_why_a_request_waits_is_told_when_it_changes_and_at_every_silence(hand: Hand) -> None:
    queued = Progress("r.0", RequestState.QUEUED, 2, 0, "2 requests are ahead")
    memory = Progress("r.0", RequestState.WAITING_MEMORY, 0, 0, "waiting: memory is almost full")
    reading = Progress("r.0", RequestState.READING, 512, 4096, "read 512 of 4096")
    assert hand.deliver(queued, queued) == [Said("2 requests are ahead")]
    assert hand.deliver(memory) == [Said(memory.sentence)]
    assert hand.deliver(memory) == [Said(memory.sentence)]  # the engine's reminder
    assert hand.deliver(reading) == []
    assert hand.deliver(Signal.SILENCE) == [Said("read 512 of 4096")]


def shown(sentence: str, done: bool = False) -> Line:
    return Line(MARK + sentence, done)


def test_what_goes_on_is_a_status_line_until_the_answer_begins(tokenizer: Tokenizer) -> None:
    hand = Hand(tokenizer, shows_status=True)
    memory = Progress("r.0", RequestState.WAITING_MEMORY, 0, 0, "waiting: memory is almost full")
    assert hand.deliver(memory) == [Said(memory.sentence), shown(memory.sentence)]
    assert hand.deliver(memory, now=15.0) == [Said(memory.sentence)], "it is seen already"
    assert hand.call.waited_for_memory
    assert hand.deliver(started(), now=20.0) == [Begun(0)]
    reading = [Progress("r.0", RequestState.READING, n, 900, f"Reading: {n} of 900") for n in (0, 256, 512)]
    assert hand.deliver(reading[0], now=20.0) == []
    assert hand.deliver(reading[1], now=21.0) == [shown("Reading: 256 of 900")]
    assert hand.deliver(reading[2], now=21.5) == []
    assert hand.deliver(Narrated("r.0", "Looking at the parser."), now=22.5) == [shown("Looking at the parser.")]
    outputs = hand.deliver(Tokens("r.0", tuple(hand.tokens)), now=23.0)
    assert outputs == [shown(OVER, done=True), Piece(0, Text(HELLO))]
    assert hand.deliver(Narrated("r.0", "Too late."), now=30.0) == []


def test_a_line_held_back_comes_with_the_next_thing_that_happens(tokenizer: Tokenizer) -> None:
    hand = Hand(tokenizer, shows_status=True)
    hand.deliver(Progress("r.0", RequestState.QUEUED, 2, 0, "2 requests are ahead"))
    assert hand.deliver(Progress("r.0", RequestState.QUEUED, 1, 0, "1 request is ahead"), now=0.4) == []
    said = Said("1 request is ahead")
    assert hand.deliver(Signal.SILENCE, now=5.0) == [said, shown("1 request is ahead")]


def test_a_failure_ends_the_status_too(tokenizer: Tokenizer) -> None:
    hand = Hand(tokenizer, shows_status=True)
    hand.deliver(Progress("r.0", RequestState.QUEUED, 2, 0, "2 requests are ahead"))
    line, failed = hand.deliver(Signal.ENGINE_LOST, now=9.0)
    assert isinstance(line, Line) and line.done and isinstance(failed, Failed)


def test_who_waits_for_memory_too_long_hears_that(tokenizer: Tokenizer) -> None:
    hand = Hand(tokenizer)
    hand.deliver(Progress("r.0", RequestState.WAITING_MEMORY, 0, 0, "waiting: memory is almost full"))
    failed, _ = hand.deliver(Signal.WAITED_TOO_LONG)
    assert isinstance(failed, Failed)
    assert (failed.error.status, failed.error.code, failed.error.retry_after) == (503, "memory_wait_timeout", 15.0)


def test_waiting_too_long_only_concerns_who_still_waits(tokenizer: Tokenizer) -> None:
    hand = Hand(tokenizer)
    hand.deliver(Progress("r.0", RequestState.QUEUED, 2, 0, "2 requests are ahead"))
    failed, cancel = hand.deliver(Signal.WAITED_TOO_LONG)
    assert isinstance(failed, Failed)
    assert (failed.error.status, failed.error.code, failed.error.retry_after) == (503, "queue_timeout", 5.0)
    assert "2 requests are ahead" in str(failed.error)
    assert cancel == Cancel("r.0")
    running = Hand(tokenizer)
    running.deliver(started())
    assert running.deliver(Signal.WAITED_TOO_LONG) == []


def test_taking_too_long_ends_what_was_written_as_if_cut_by_a_limit(tokenizer: Tokenizer) -> None:
    hand = Hand(tokenizer, stops=("there, moon",))
    hand.deliver(started(), Tokens("r.0", tuple(hand.tokens[:2])))
    assert hand.deliver(Signal.TOOK_TOO_LONG) == [
        Piece(0, Text("there")),
        Ended(0, FinishReason.LENGTH),
        Cancel("r.0"),
    ]
    waiting = Hand(tokenizer)
    (failed, _) = waiting.deliver(Signal.TOOK_TOO_LONG)
    assert isinstance(failed, Failed) and failed.error.status == 503


def test_a_full_queue_is_told_in_the_engine_s_words(hand: Hand) -> None:
    sentence = "the queue is full: `limits.max_queue` lets 7 wait"
    failed = hand.deliver(Refused("r.0", RefusalCode.QUEUE_FULL, sentence))[0]
    assert isinstance(failed, Failed)
    assert (failed.error.status, str(failed.error)) == (429, sentence)


def test_an_engine_that_gives_up_unasked_is_an_error(hand: Hand) -> None:
    outputs = hand.deliver(started(), finished(reason=FinishReason.CANCELLED))
    assert isinstance(outputs[-1], Failed) and outputs[-1].error.code == "engine_error"


def test_a_cancel_that_nobody_confirms_is_let_go(hand: Hand) -> None:
    hand.deliver(Signal.CLIENT_LEFT)
    assert hand.deliver(Signal.UNSETTLED) == []
    assert hand.call.is_settled


@pytest.mark.parametrize("width", [1, 100])
def test_thinking_counts_up_to_the_stop_string_however_the_tokens_come(tokenizer: Tokenizer, width: int) -> None:
    choice = Choice(0, "r.0", Answer(tokenizer, ("there",)), Reasoning((), (5,)))
    call, tokens = Call([choice]), tokenizer.encode(HELLO)
    for at in range(0, len(tokens), width):
        call.apply(Tokens("r.0", tuple(tokens[at : at + width])), 0.0)
    assert choice.num_thinking == choice.answer.num_tokens < len(tokens)


def test_thinking_and_calls_are_told_and_text_ends_the_telling(tokenizer: Tokenizer) -> None:
    call = Hand(tokenizer, shows_status=True).call
    (choice,) = call.choices

    def lines(part: AnswerPart, now: float) -> list[Line]:
        return [each for each in call._with_status(choice, [Piece(0, part)], now) if isinstance(each, Line)]

    assert lines(Thought("Let me see. "), 1.0) == [shown("Thinking")]
    assert lines(Thought("A parser."), 3.0) == [] and choice.heard == "Let me see. A parser."
    assert lines(CallBegun(0, "c1", "look_up"), 5.0) == [shown("Writing a tool call: look_up")]
    assert lines(CallArguments(0, "{}"), 7.0) == []
    assert lines(Text("Hello"), 9.0) == [shown(OVER, done=True)]
    assert lines(Text(" there"), 11.0) == []
