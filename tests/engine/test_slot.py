"""What a slot keeps, and what a sequence takes over of what the model chose."""

from __future__ import annotations

import numpy as np
import pytest
from engine_toy import CHUNK, VOCAB, ToyModel, ask, slot_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tandem.contract.messages import FinishReason, RefusalCode
from tandem.engine.choice import choice_for
from tandem.engine.drafters import no_drafting
from tandem.engine.facts import Take
from tandem.engine.slot import NOTHING_KEPT, Failed, Request, Resident, Sequence, Slot, num_agreeing

TOKENS = st.lists(st.integers(0, 2), max_size=30).map(tuple)


@given(one=TOKENS, other=TOKENS)
def test_prompts_agree_from_their_beginning(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    assert num_agreeing(one, other) == num_agreeing(other, one) == same


@pytest.mark.parametrize("place", [0, 1, 255, 256, 257, 511, 512, 999])
def test_prompts_that_differ_in_one_token(place: int) -> None:
    one = tuple(range(1_000))
    other = (*one[:place], -1, *one[place + 1 :])
    assert num_agreeing(one, other) == place
    assert num_agreeing(one, one[:place]) == place


def test_what_is_kept_is_of_whoever_comes_back_to_it() -> None:
    chat = NOTHING_KEPT.followed_by(ask("a", (1, 2, 3), scope="me"), 0)
    assert chat == Resident("me", (1, 2, 3), 0, (1, 2, 3), "", False)
    noted = structs.replace(ask("a", (1, 9, 2)), client_tokens=(1, 2), conversation="chat 1")
    assert NOTHING_KEPT.followed_by(noted, 0) == Resident("", (1, 9, 2), 0, (1, 2), "chat 1", False)
    title = structs.replace(ask("t", (7, 7)), task=True)
    assert NOTHING_KEPT.followed_by(title, 0).is_errand
    assert NOTHING_KEPT.followed_by(ask("q", (7, 7), own_work=True), 0).is_errand
    summary = ask("s", (1, 2, 3, 7, 7), scope="me", own_work=True)
    left = Resident("me", (1, 2, 3), 3, (1, 2, 3), "chat", False).followed_by(summary, 2)
    assert left == Resident("me", (1, 2, 3, 7, 7), 2, (1, 2, 3), "chat", False)
    assert left.followed_by(title, 0).is_errand  # nothing of the conversation is left


def sequence(max_tokens: int = 4, stop: tuple[int, ...] = (9,), prompt: tuple[int, ...] = (1, 2)) -> Sequence:
    request = ask("a", prompt, max_tokens, stop=stop)
    return Sequence(
        Request(1, request, 0.0),
        Take(0, 0, max_tokens, "test"),
        choice_for(request, VOCAB, 0),
        no_drafting().begin(ToyModel().new_state(64), ""),
        0.0,
    )


def row_of(token: int) -> np.ndarray:
    return np.eye(VOCAB, dtype=np.float32)[token]


@pytest.mark.parametrize(
    ("chosen", "written", "end"),
    [
        ([3, 4], [3, 4], None),
        ([3, 9, 5], [3], FinishReason.STOP),  # the stop token is not among the tokens, nor what stands behind it
        ([3, 4, 5, 6, 7], [3, 4, 5, 6], FinishReason.LENGTH),
        ([3, 4, 5, 9], [3, 4, 5], FinishReason.STOP),
        ([3, 4, 5, 6, 9], [3, 4, 5, 6], FinishReason.LENGTH),
    ],
)
def test_a_sequence_writes_up_to_its_end(chosen: list[int], written: list[int], end: FinishReason | None) -> None:
    found = sequence()
    for token in chosen:
        if found.end is None:
            assert found.write(row_of(token)) == token
    assert (found.written, found.end) == (written, end)


def test_untold_tokens_are_taken_once() -> None:
    found = sequence()
    found.write(row_of(3))
    found.write(row_of(4))
    assert found.take_untold() == ((3, 4), ())
    assert found.take_untold() == ((), ())
    found.write(row_of(5))
    assert found.take_untold() == ((5,), ())


def test_scores_travel_with_the_tokens_they_are_of() -> None:
    request = ask("a", (1, 2), 4, stop=(9,), top_logprobs=1)
    found = Sequence(
        Request(1, request, 0.0),
        Take(0, 0, 4, "test"),
        choice_for(request, VOCAB, 0),
        no_drafting().begin(ToyModel().new_state(64), ""),
        0.0,
    )
    for token in (3, 4, 9):
        found.write(row_of(token))
    tokens, scores = found.take_untold()
    assert tokens == (3, 4) and [each.top[0][0] for each in scores] == [3, 4]
    assert all(each.chosen == each.top[0][1] for each in scores)


def slot_with(rows: int, can_rewind: bool = True) -> Slot:
    state = ToyModel().new_state(64)
    state.can_rewind = can_rewind
    slot = slot_of(state)
    slot.begin(sequence(prompt=tuple(range(10))))
    slot.memory.commit(rows)
    slot.wrote(rows)
    slot.keep(rows - rows % CHUNK)
    return slot


def test_an_ended_sequence_leaves_its_whole_chunks() -> None:
    slot = slot_with(10)
    slot.end(7.0)
    assert (slot.kept.rows, slot.rows, slot.memory.rows, slot.last_used) == (8, 8, 10, 7.0)
    slot.check_integrity()


def test_a_state_that_cannot_be_rewound_leaves_nothing_to_resume_on() -> None:
    slot = slot_with(10, can_rewind=False)
    slot.end(7.0)
    assert slot.kept.rows == 8 and slot.resumable(slot.kept.rows) == 0  # no anchor was taken
    slot.check_integrity()


def test_a_failed_sequence_leaves_nothing_to_resume_on() -> None:
    slot = slot_with(10)
    assert slot.sequence is not None
    slot.sequence.end = Failed("it broke")
    slot.end(7.0)
    assert (slot.kept.rows, slot.rows, slot.memory.rows) == (0, 0, 10)


def test_a_sequence_that_gave_way_leaves_what_it_read() -> None:
    slot = slot_with(10)
    assert slot.sequence is not None
    slot.sequence.end = Failed("gave way", RefusalCode.YIELDED)
    slot.end(7.0)
    assert (slot.kept.rows, slot.rows) == (8, 8)


def test_what_was_committed_once_stays_committed() -> None:
    slot = slot_with(10)
    slot.end(7.0)
    slot.begin(sequence(prompt=(9, 9, 9)))
    slot.wrote(3)
    assert (slot.rows, slot.memory.rows) == (3, 10)


def test_what_the_next_sequence_does_not_share_is_no_longer_kept() -> None:
    slot = slot_with(10)
    slot.end(7.0)
    following = sequence(prompt=(0, 1, 2, 3, 50, 60))
    following.resumed = following.read = 4
    slot.begin(following)
    assert slot.kept == Resident("", following.prompt, 4, following.prompt)
    assert slot.view.state == "reading" and slot.view.rows == 4
