"""The engine driven by hand over a model that shows every wrong row."""

from __future__ import annotations

import msgspec
import pytest
from engine_toy import CHUNK, VOCAB, Hand, ToyModel, alone, ask, engine_plan, hand, live
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.contract.messages import (
    AskHealth,
    Cancel,
    Drain,
    Finished,
    FinishReason,
    Generate,
    RefusalCode,
    Refused,
    RequestState,
    Resume,
    Sampling,
    SetLive,
    Started,
    Tokens,
)
from tandem.engine.invented import Inventing, half_right
from tandem.engine.letters import Leave, PeerGone

SEEDED = Sampling(temperature=1.0, top_p=0.95, seed=11)


def prompt(start: int, length: int) -> list[int]:
    return [(start * 17 + index * index) % VOCAB for index in range(length)]


def test_a_request_is_told_its_life_in_order() -> None:
    driver = hand()
    driver.turn(ask("a", prompt(1, 10), max_tokens=3))
    driver.until_idle()
    story = [type(message).__name__ for message in driver.to("a")]
    assert story == [
        "Started",
        "Progress",
        "Progress",
        "Progress",
        "Progress",
        "Tokens",
        "Tokens",
        "Tokens",
        "Finished",
    ]
    states = [(message.state, message.done) for message in driver.progress("a")]
    reading, writing = RequestState.READING, RequestState.WRITING
    assert states == [(reading, 0), (reading, 4), (reading, 8), (writing, 10)]
    assert driver.to("a")[-1] == Finished("a", FinishReason.LENGTH, 10, 0, 3, 0.0, 2.0, 3.0, rounds=2)


def test_every_round_sends_its_tokens_before_the_next_pass_begins() -> None:
    driver = hand()
    driver.turn(ask("a", max_tokens=4))
    seen = []
    while not driver.engine.schedule.is_idle:
        driver.turn()
        seen.append(len(driver.tokens("a")))
    assert seen == [1, 2, 3, 4]
    assert driver.finished("a").completion_tokens == 4  # in the turn that sent the last token


def test_a_stop_token_ends_an_answer_and_is_not_part_of_it() -> None:
    text = alone(ask("a", max_tokens=12))
    stop = text[7]
    driver = hand()
    driver.turn(ask("a", max_tokens=12, stop=[stop, 99]))
    driver.until_idle()
    assert driver.tokens("a") == text[: text.index(stop)]
    assert driver.finished("a").reason is FinishReason.STOP


def test_a_stop_token_as_the_first_token_gives_an_empty_answer() -> None:
    driver = hand()
    driver.turn(ask("a", stop=range(VOCAB)))
    driver.until_idle()
    assert driver.tokens("a") == []
    assert driver.finished("a").reason is FinishReason.STOP and driver.finished("a").completion_tokens == 0


def test_max_tokens_is_cut_to_the_room_and_the_window_can_be_filled() -> None:
    driver = hand(engine_plan([16]))
    driver.turn(ask("a", prompt(1, 15), max_tokens=50))
    driver.until_idle()
    assert driver.started("a").max_tokens == 1
    assert driver.finished("a").reason is FinishReason.LENGTH
    driver.turn(ask("b", prompt(2, 3), max_tokens=13))
    driver.until_idle()
    assert len(driver.tokens("b")) == 13


def test_an_answer_does_not_hold_up_a_prompt_nor_a_prompt_an_answer() -> None:
    driver = hand(engine_plan([64, 64]))
    driver.turn(ask("writer", prompt(1, 4), max_tokens=20))
    driver.turn(ask("reader", prompt(2, 24), max_tokens=2))
    driver.model.passes.clear()
    for _ in range(8):
        driver.turn()
    assert driver.model.passes[:8] == [[CHUNK], [1], [CHUNK], [1], [CHUNK], [1], [CHUNK], [1]]


def test_readers_take_turns_so_that_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    driver = hand(engine_plan([200, 200]))
    driver.turn(ask("long", prompt(1, 80), max_tokens=2))
    driver.turn()
    driver.turn(ask("short", prompt(2, 8), max_tokens=2))
    begun = driver.now
    while not driver.tokens("short"):
        driver.turn()
    assert driver.now - begun <= 6  # its two chunks, and one of the other before each of its passes
    assert not driver.tokens("long")


def test_a_first_token_does_not_wait_for_the_longest_answer() -> None:
    driver = hand(engine_plan([64] * 3))
    driver.turn(*(ask(id, prompt(index, 8), max_tokens=40) for index, id in enumerate("abc")))
    for _ in range(3 * 2 + 6):
        driver.turn()
    assert all(driver.tokens(id) for id in "abc")
    assert all(len(driver.tokens(id)) < 20 for id in "abc")


def test_rounds_count_how_many_wrote_together() -> None:
    driver = hand(engine_plan([64] * 3))
    driver.turn(*(ask(id, prompt(index, 3), max_tokens=6) for index, id in enumerate("abc")))
    driver.until_idle()
    assert driver.health is not None and driver.health.counters is not None
    counters = driver.health.counters
    joint = {size: sum(len(blocks) == size and blocks[0] == 1 for blocks in driver.model.passes) for size in (1, 2, 3)}
    assert counters.rounds_by_size == {size: count for size, count in joint.items() if count}
    assert counters.rounds_by_size[3] >= 3
    assert counters.rows == sum(size * count for size, count in counters.rounds_by_size.items()) == 15
    assert (counters.committed_tokens, counters.prefill_rows, counters.requests) == (18, 9, 3)
    assert (counters.peak_running, counters.refused, counters.cancelled) == (3, 0, 0)
    assert counters.round_seconds == 0.0  # the clock stands while a turn runs


def test_a_row_bucket_splits_a_round() -> None:
    driver = hand(engine_plan([64] * 5), row_bucket=2)
    requests = [ask(f"r{index}", prompt(index, 3), max_tokens=8) for index in range(5)]
    driver.turn(*requests)
    driver.until_idle()
    assert {len(blocks) for blocks in driver.model.passes} == {1, 2}
    for request in requests:
        assert driver.tokens(request.id) == alone(request)


# --- the text ---------------------------------------------------------------------------------------------------

REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 5),  # which conversation
        st.integers(1, 30),  # its length
        st.integers(1, 12),  # new tokens
        st.sampled_from([Sampling(), SEEDED, Sampling(temperature=0.7, top_k=8, repetition_penalty=1.3, seed=-5)]),
        st.integers(0, 6),  # turns until the next one arrives
    ),
    min_size=1,
    max_size=8,
)


@given(requests=REQUESTS, slots=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_a_request_beside_others_writes_what_it_writes_alone(requests: list, slots: int) -> None:
    driver = hand(engine_plan([64] * slots))
    asked = []
    for index, (start, length, max_tokens, sampling, pause) in enumerate(requests):
        request = ask(f"r{index}", prompt(start, length), max_tokens, sampling=sampling)
        asked.append(request)
        driver.turn(request)
        for _ in range(pause):
            driver.turn()
    driver.until_idle()
    for request in asked:
        assert driver.tokens(request.id) == alone(request)


def test_unseeded_requests_write_different_texts() -> None:
    driver = hand()
    hot = Sampling(temperature=2.0)
    driver.turn(ask("a", max_tokens=12, sampling=hot), ask("b", max_tokens=12, sampling=hot))
    driver.until_idle()
    assert driver.tokens("a") != driver.tokens("b")


# --- the resident prefix ----------------------------------------------------------------------------------------


def converse(driver: Hand, turns: int, slots: int = 1) -> None:
    """A conversation whose every prompt is the last one, the answer and some more."""
    text = prompt(3, 9)
    for number in range(turns):
        request = ask(f"t{number}", text, max_tokens=5, head_end=4)
        driver.turn(request)
        driver.until_idle()
        assert driver.tokens(request.id) == alone(request, engine_plan([512] * slots))
        text = [*text, *driver.tokens(request.id), *prompt(number, 6)]


def test_a_resumed_conversation_writes_what_it_writes_cold() -> None:
    driver = hand(engine_plan([512]))
    converse(driver, turns=5)
    cached = [driver.finished(f"t{number}").cached_tokens for number in range(5)]
    # whole chunks of the last prompt: not its last part, not what was decoded
    lengths = [9, 9 + 11, 9 + 22, 9 + 33]
    assert cached == [0, *(length - length % CHUNK for length in lengths)]
    sources = [driver.started(f"t{number}").cache_source for number in range(5)]
    assert sources == ["none"] + ["resident"] * 4
    assert driver.health is not None and driver.health.counters is not None
    assert driver.health.counters.cached_rows == sum(cached)


def test_a_conversation_goes_home_to_its_slot() -> None:
    driver = hand(engine_plan([512] * 3))
    for number, id in enumerate(("x", "y", "z")):
        driver.turn(ask(id, prompt(number, 20), max_tokens=2, head_end=4))
        driver.until_idle()
    homes = {id: driver.started(id).slot for id in ("x", "y", "z")}
    assert sorted(homes.values()) == [0, 1, 2]
    for number, id in reversed(list(enumerate(("x", "y", "z")))):
        driver.turn(ask(id + "2", [*prompt(number, 20), 1, 2, 3], max_tokens=2, head_end=4))
        driver.until_idle()
        assert driver.started(id + "2").slot == homes[id]
        assert driver.started(id + "2").cached_tokens == 20


def test_the_same_prompt_again_still_reads_a_token() -> None:
    driver = hand(engine_plan([64]))
    for id in ("a", "b"):
        driver.turn(ask(id, prompt(1, 12), max_tokens=4, head_end=2))
        driver.until_idle()
    assert driver.started("b").cached_tokens == 8
    assert driver.tokens("a") == driver.tokens("b")


def test_another_scope_sees_nothing_of_a_slot() -> None:
    driver = hand(engine_plan([64]))
    for id, scope in (("a", "alice"), ("b", "bob"), ("c", "bob"), ("d", "alice")):
        driver.turn(ask(id, prompt(1, 12), max_tokens=4, scope=scope, head_end=2))
        driver.until_idle()
    assert [driver.started(id).cached_tokens for id in "abcd"] == [0, 0, 8, 0]
    assert len({tuple(driver.tokens(id)) for id in "abcd"}) == 1


def test_a_cancelled_prompt_leaves_the_chunks_it_read() -> None:
    driver = hand(engine_plan([64]))
    request = ask("a", prompt(1, 30), max_tokens=4, head_end=2)
    driver.turn(request)
    driver.turn()
    driver.turn(Cancel("a"))
    driver.until_idle()
    again = msgspec.structs.replace(request, id="b")
    driver.turn(again)
    driver.until_idle()
    assert driver.started("b").cached_tokens == 8
    assert driver.tokens("b") == alone(again)


# --- cancel -----------------------------------------------------------------------------------------------------


def test_a_cancelled_answer_ends_between_two_passes_with_what_it_has() -> None:
    driver = hand()
    driver.turn(ask("a", max_tokens=50))
    for _ in range(5):
        driver.turn()
    passes = len(driver.model.passes)
    driver.turn(Cancel("a"))
    assert len(driver.model.passes) == passes
    finished = driver.finished("a")
    assert finished.reason is FinishReason.CANCELLED
    assert finished.completion_tokens == len(driver.tokens("a")) == passes
    assert driver.engine.schedule.is_idle


def test_a_cancel_in_the_queue_is_answered_and_a_late_one_is_not() -> None:
    driver = hand(engine_plan([64]))
    driver.turn(ask("a", max_tokens=3), ask("b"))
    driver.turn(Cancel("b"), Cancel("nobody"))
    assert driver.finished("b") == Finished("b", FinishReason.CANCELLED, 3, 0, 0, 1.0, 0.0, 0.0)
    driver.until_idle()
    driver.turn(Cancel("a"))
    assert driver.finished("a").reason is FinishReason.LENGTH
    assert driver.health is not None and driver.health.counters is not None and driver.health.counters.cancelled == 1


def test_a_cancel_that_meets_the_last_token_comes_too_late() -> None:
    driver = hand()
    driver.turn(ask("a", max_tokens=2))
    driver.turn()
    driver.turn(Cancel("a"))
    assert driver.finished("a").reason is FinishReason.LENGTH


def test_a_cancel_in_the_same_letters_as_its_request_is_found() -> None:
    driver = hand()
    driver.turn(ask("a"), Cancel("a"))
    assert driver.finished("a").reason is FinishReason.CANCELLED
    assert not driver.model.passes


def test_a_dead_peer_takes_its_own_requests_along_and_no_others() -> None:
    driver = hand(engine_plan([64, 64]))
    driver.turn(ask("a", max_tokens=30), ask("q1"), peer=1)
    driver.turn(ask("a", max_tokens=5), ask("q2", max_tokens=2), peer=2)
    driver.turn(PeerGone(), peer=1)
    driver.until_idle()
    assert driver.finished("a", peer=2).reason is FinishReason.LENGTH
    assert driver.finished("q2", peer=2).reason is FinishReason.LENGTH
    assert driver.finished("a", peer=1).reason is FinishReason.CANCELLED


# --- failures ---------------------------------------------------------------------------------------------------


def test_a_pass_that_fails_ends_what_it_carried_and_the_engine_goes_on() -> None:
    driver = hand(engine_plan([64] * 3))
    driver.turn(ask("a", max_tokens=9), ask("b", max_tokens=9))
    for _ in range(4):
        driver.turn()
    driver.model.broken.append(RuntimeError("the device is unwell"))
    driver.turn()
    later = ask("c", prompt(3, 9), max_tokens=4)
    driver.turn(later)
    driver.until_idle()
    for id in ("a", "b"):
        refusal = driver.refused(id)
        assert refusal.code is RefusalCode.FAILED
        assert refusal.sentence == "the engine could not go on with this request (RuntimeError)"
    assert driver.tokens("c") == alone(later)


def test_a_chunk_that_fails_ends_only_its_request_and_leaves_nothing_to_resume_on() -> None:
    driver = hand(engine_plan([64, 64]))
    writer = ask("a", max_tokens=20)
    driver.turn(writer)
    broken = ask("b", prompt(2, 12), max_tokens=2, head_end=1)
    driver.turn(broken)  # a round of `a`
    driver.turn()  # a chunk of `b`
    driver.turn()  # a round of `a`
    driver.model.broken.append(MemoryError())
    driver.turn()
    driver.turn()
    assert driver.refused("b").code is RefusalCode.FAILED
    again = msgspec.structs.replace(broken, id="b2")
    driver.turn(again)
    driver.until_idle()
    assert driver.started("b2").cached_tokens == 0
    assert driver.tokens("b2") == alone(again)
    assert driver.tokens("a") == alone(writer)


def test_a_choice_that_fails_ends_one_request_of_a_joint_pass() -> None:
    class HalfBlind(ToyModel):
        blind = False

        def forward(self, blocks):  # type: ignore[no-untyped-def]
            logits = super().forward(blocks)
            if self.blind and len(blocks) == 2:
                logits[0] = float("nan")
            return logits

    driver = hand(engine_plan([64, 64]))
    model = HalfBlind()
    driver.engine._model = driver.model = model
    survivor = ask("b", prompt(2, 3), max_tokens=9)
    driver.turn(ask("a", max_tokens=9), survivor)
    for _ in range(3):
        driver.turn()
    model.blind = True
    driver.until_idle()
    assert driver.refused("a").sentence == "the engine could not go on with this request (NotANumber)"
    assert driver.tokens("b") == alone(survivor)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (ask("bad", prompt=()), RefusalCode.BAD_REQUEST),
        (ask("bad", prompt=[VOCAB]), RefusalCode.BAD_REQUEST),
        (ask("bad", prompt=[1] * 64), RefusalCode.TOO_LONG),
        (ask("bad", max_tokens=0), RefusalCode.BAD_REQUEST),
        (ask("bad", sampling=Sampling(top_p=9.0)), RefusalCode.BAD_REQUEST),
        (ask("good"), RefusalCode.BAD_REQUEST),  # an id that is in use
    ],
)
def test_a_bad_request_disturbs_nobody(request_: Generate, code: RefusalCode) -> None:
    driver = hand()
    good = ask("good", max_tokens=9)
    driver.turn(good)
    driver.turn(request_)
    driver.until_idle()
    assert driver.refused(request_.id).code is code
    assert driver.tokens("good") == alone(good)


# --- drain, live edits, health ----------------------------------------------------------------------------------


def test_a_drain_finishes_what_is_here_and_refuses_what_comes_until_it_is_undone() -> None:
    driver = hand(engine_plan([64]))
    driver.turn(ask("a"), ask("waits"))
    driver.turn(Drain(), ask("late"))
    refusal = driver.refused("late")
    assert refusal.code is RefusalCode.DRAINING and refusal.retry_after is not None
    assert driver.health is not None and driver.health.state == "draining" and not driver.health.ready
    driver.until_idle()
    assert driver.finished("a").completion_tokens == driver.finished("waits").completion_tokens == 5
    assert not driver.engine.is_done
    driver.turn(Resume(), ask("back"))
    driver.until_idle()
    assert driver.finished("back").reason is FinishReason.LENGTH
    assert driver.health.ready


def test_who_leaves_is_done_when_nothing_is_left_and_cannot_be_called_back() -> None:
    driver = hand(engine_plan([64]))
    driver.turn(ask("a"), ask("waits"))
    driver.turn(Leave(), Resume(), ask("late"))
    assert driver.refused("late").code is RefusalCode.DRAINING
    assert not driver.engine.is_done
    driver.until_idle()
    assert driver.engine.is_done
    assert driver.finished("waits").reason is FinishReason.LENGTH


def test_who_does_not_finish_within_the_drain_timeout_is_told_so() -> None:
    driver = hand(engine_plan([64]), live(drain_timeout=10.0))
    driver.turn(ask("a", max_tokens=50), ask("waits"))
    driver.turn(Leave())
    driver.turn(seconds=11.0)
    driver.turn()
    for id in ("a", "waits"):
        refusal = driver.refused(id)
        assert (refusal.code, refusal.sentence) == (
            RefusalCode.DRAINING,
            "the engine stops; requests had 10 s to finish",
        )
    assert driver.engine.is_done


def test_live_limits_hold_from_the_next_turn() -> None:
    driver = hand(engine_plan([64]))
    driver.turn(ask("a", max_tokens=40))
    driver.turn(SetLive(msgspec.json.encode(live(max_queue=0, request_timeout=12.0))))
    driver.turn(ask("b"))
    assert driver.refused("b").sentence == "the queue is full: `limits.max_queue` lets 0 wait"
    driver.until_idle()
    assert 8 < driver.finished("a").completion_tokens < 14


def test_patience_is_none_while_something_runs() -> None:
    driver = hand(engine_plan([64]))
    assert driver.engine.patience == 0.5
    driver.turn(ask("a", max_tokens=1))
    assert driver.engine.patience == 0.0
    driver.until_idle()
    driver.available = 0
    driver.turn(ask("b"))
    assert driver.engine.patience == 0.1


def test_a_message_for_someone_else_is_ignored() -> None:
    driver = hand()
    driver.turn(AskHealth(), ask("a"))
    driver.until_idle()
    assert driver.finished("a").completion_tokens == 5


def test_warming_up_writes_for_real_and_leaves_no_trace() -> None:
    driver = hand(engine_plan([64, 32]))
    driver.engine.warm_up()
    driver.engine.check_integrity()
    assert driver.model.passes == [[CHUNK], [1]]
    driver.turn()
    assert driver.health is not None and driver.health.counters is not None
    assert driver.health.counters.committed_tokens == 0 and driver.health.slots[0].rows == 0
    assert not driver.sent


def test_warming_up_reads_no_more_than_one_pass_where_all_are_of_one_kind() -> None:
    driver = hand(engine_plan([64], chunk=16), row_bucket=4, is_row_invariant=True)
    driver.engine.warm_up()
    assert driver.model.passes == [[4], [1]]


def test_a_model_that_cannot_write_is_not_ready() -> None:
    driver = hand()
    driver.model.broken.append(RuntimeError("no kernel for this device"))
    with pytest.raises(RuntimeError, match="the model wrote nothing"):
        driver.engine.warm_up()


# --- anything, in any order -------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 3), st.integers(0, 4), st.integers(1, 40), st.integers(1, 20)),
        st.tuples(st.just("cancel"), st.integers(1, 3), st.integers(0, 30)),
        st.tuples(st.just("gone"), st.integers(1, 3)),
        st.tuples(st.just("turn"), st.integers(1, 6)),
        st.tuples(st.just("break")),
        st.tuples(st.just("memory"), st.sampled_from([0, 2, 64])),
        st.tuples(st.just("late"), st.floats(0, 400)),
        st.tuples(st.just("drain"), st.booleans()),
    ),
    max_size=40,
)


@given(
    events=EVENTS,
    slots=st.integers(1, 4),
    bucket=st.sampled_from([1, 2, 3, 4, 16]),
    seed=st.integers(0, 1),
    nodes=st.sampled_from([0, 3, 15]),
)
@settings(max_examples=150, deadline=None)
def test_whatever_happens_the_books_hold_and_every_slot_comes_to_rest(
    events: list, slots: int, bucket: int, seed: int, nodes: int
) -> None:
    texts: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    drafting = Inventing(texts, half_right, nodes)
    plan = engine_plan([64] + [48] * (slots - 1))
    driver = hand(plan, live(max_queue=5, request_timeout=300.0), bucket, drafting=drafting)
    asked: list[tuple[int, Generate]] = []
    for event in events:
        match event:
            case ("ask", peer, start, length, max_tokens):
                sampling = SEEDED if seed else Sampling()
                request = ask(f"r{len(asked)}", prompt(start, length), max_tokens, sampling=sampling, scope=f"{peer}")
                asked.append((peer, request))
                texts[request.scope, request.tokens] = alone(request, engine_plan([64]))
                driver.turn(request, peer=peer)
            case ("cancel", peer, number):
                driver.turn(Cancel(f"r{number}"), peer=peer)
            case ("gone", peer):
                driver.turn(PeerGone(), peer=peer)
            case ("turn", count):
                for _ in range(count):
                    driver.turn()
            case ("break",):
                driver.model.broken = [RuntimeError("broken")]
            case ("memory", gib):
                driver.available = gib << 30
            case ("late", seconds):
                driver.turn(seconds=seconds)
            case ("drain", begins):
                driver.turn(Drain() if begins else Resume())
    driver.available = 64 << 30
    driver.until_idle()
    assert all(slot.view.state == "idle" for slot in driver.engine.schedule.slots)
    for peer, request in asked:
        story = driver.to(request.id, peer)
        last = [message for message in story if isinstance(message, Finished | Refused)]
        assert len(last) == 1 and story[-1] is last[0]  # one last word, and nothing behind it
        starts = [index for index, message in enumerate(story) if isinstance(message, Started)]
        tokens = [index for index, message in enumerate(story) if isinstance(message, Tokens)]
        assert len(starts) <= 1 and (not tokens or starts[0] < tokens[0])
        text = driver.tokens(request.id, peer)
        assert text == alone(request, engine_plan([64]))[: len(text)]
        if isinstance(story[-1], Finished):
            assert story[-1].completion_tokens == len(text)
