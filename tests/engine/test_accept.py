"""Accepting by hand: the model's own choices are walked down a tree, and what they confirm stays."""

from __future__ import annotations

import numpy as np
import pytest
from engine_toy import VOCAB, ToyModel, ToyState, ask, slot_of

from tandem.conductor.monitor import FEWEST_TOKENS
from tandem.contract.messages import FinishReason
from tandem.draft.drafting import Followed
from tandem.draft.tree import NO_GUESS, ROOT, DraftTree, Origin
from tandem.engine.admit import RowCost
from tandem.engine.choice import choice_for
from tandem.engine.facts import Take
from tandem.engine.round import accept, bid, draft, running_on
from tandem.engine.row_memory import FirstWrite
from tandem.engine.slot import Failed, Request, Sequence, Slot
from tandem.memory.pages import CommitRefused

START = 3  # rows of the prompt; the first written token has none yet
FIRST = 10


class Told(Followed):
    def __init__(self) -> None:
        self.tokens: list[int] = []

    def follow(self, tokens) -> None:
        self.tokens += tokens


def slot_with(max_tokens: int = 9, stop: tuple[int, ...] = (), end_loops: bool = False) -> Slot:
    request = ask("a", (1, 2, 3), max_tokens, stop=stop)
    slot = slot_of(ToyModel().new_state(64))
    take = Take(0, 0, max_tokens, "test")
    sequence = Sequence(Request(1, request, 0.0), take, choice_for(request, VOCAB, 0), Told(), 0.0, read=3)
    slot.memory.commit(START)
    slot.begin(sequence)
    slot.wrote(START)
    sequence.ends_loops = end_loops
    sequence.write(one_hot(FIRST))
    return slot


def one_hot(token: int) -> np.ndarray:
    return np.eye(VOCAB, dtype=np.float32)[token]


def tree_of(*nodes: tuple[int, int]) -> DraftTree:
    """(token, parent) in pre-order."""
    count = len(nodes)
    tokens, parents = zip(*nodes, strict=True)
    return DraftTree(tokens, parents, (1.0,) * count, (Origin("hand"),) * count)


# 20 and 30 behind the last token; 21 and 22 behind 20; 23 behind 22; 31 behind 30
TREE = tree_of((20, ROOT), (21, 0), (22, 0), (23, 2), (30, ROOT), (31, 4))


def accepted(slot: Slot, tree: DraftTree, choices: list[int]) -> list[int]:
    """What is accepted when the model chooses `choices` at the rows of the block."""
    slot.memory.commit(slot.rows + 1 + tree.nodes)
    block = draft(slot, tree)
    assert isinstance(slot.state, ToyState)
    slot.state.open(block)
    slot.state.hashes[block.start : block.start + block.rows] = np.arange(block.rows)
    chosen = accept(slot, tree, np.stack([one_hot(token) for token in choices]))
    slot.check_integrity()
    assert slot.state.tree is None, "a tree was left unsettled"
    return chosen


@pytest.mark.parametrize(
    ("choices", "written", "rows"),
    [
        ([40, 0, 0, 0, 0, 0, 0], [40], [0]),  # nothing was right
        ([20, 41, 0, 0, 0, 0, 0], [20, 41], [0, 1]),
        ([20, 22, 0, 23, 44, 0, 0], [20, 22, 23, 44], [0, 1, 3, 4]),  # past the sibling
        ([30, 0, 0, 0, 0, 31, 45], [30, 31, 45], [0, 5, 6]),
        ([20, 31, 0, 0, 0, 0, 46], [20, 31], [0, 1]),  # 31 stands behind another guess
    ],
)
def test_the_models_own_choices_are_walked_down_the_tree(choices: list, written: list, rows: list) -> None:
    slot = slot_with()
    assert accepted(slot, TREE, choices) == written
    sequence = running_on(slot)
    assert sequence.written == [FIRST, *written] and sequence.followed.tokens == written
    assert slot.rows == START + len(written)
    assert slot.state.hashes[START : slot.rows].tolist() == rows  # moved together
    assert (sequence.rounds, sequence.drafted, sequence.accepted) == (1, 6, len(written) - 1)


def test_a_block_without_guesses_is_a_plain_row() -> None:
    slot = slot_with()
    assert draft(slot, NO_GUESS).tree is None
    assert accepted(slot, NO_GUESS, [50]) == [50]
    assert (slot.rows, running_on(slot).drafted) == (START + 1, 0)


def test_a_stop_token_ends_in_the_middle_of_a_path() -> None:
    slot = slot_with(stop=(22,))
    assert accepted(slot, TREE, [20, 22, 0, 23, 44, 0, 0]) == [20, 22]
    sequence = running_on(slot)
    assert (sequence.written, sequence.end) == ([FIRST, 20], FinishReason.STOP)
    assert sequence.followed.tokens == [20]


def test_the_last_token_ends_in_the_middle_of_a_path() -> None:
    slot = slot_with(max_tokens=3)
    assert accepted(slot, TREE, [20, 22, 0, 23, 44, 0, 0]) == [20, 22]
    assert (running_on(slot).written, running_on(slot).end) == ([FIRST, 20, 22], FinishReason.LENGTH)


def test_a_loop_ends_where_it_is_seen_however_far_the_guesses_went() -> None:
    slot = slot_with(max_tokens=60, end_loops=True)
    watch = running_on(slot).choice.watch
    for _ in range(FEWEST_TOKENS - 3):
        watch.follow((FIRST,))
    same = tree_of((FIRST, ROOT), (FIRST, 0), (FIRST, 1))
    assert accepted(slot, same, [FIRST] * 4) == [FIRST, FIRST]
    assert running_on(slot).end is FinishReason.LOOP


def test_a_row_that_is_no_numbers_ends_the_request_and_settles_the_tree() -> None:
    slot = slot_with()
    slot.memory.commit(slot.rows + 1 + TREE.nodes)
    block = draft(slot, TREE)
    slot.state.open(block)
    rows = np.stack([one_hot(20)] + [np.full(VOCAB, np.nan, dtype=np.float32)] * 6)
    assert accept(slot, TREE, rows) == []
    assert isinstance(running_on(slot).end, Failed)
    assert slot.state.tree is None and slot.rows == START + 2
    slot.check_integrity()


@pytest.mark.parametrize(("max_tokens", "limit"), [(9, 7), (3, 1), (2, 0)])
def test_a_slot_bids_for_no_more_than_may_be_written(max_tokens: int, limit: int) -> None:
    assert bid(slot_with(max_tokens), nodes=15).limit == limit
    assert bid(slot_with(max_tokens), nodes=0).limit == 0


def test_without_memory_for_guesses_a_slot_bids_for_none() -> None:
    slot = slot_with()

    class Full(FirstWrite):
        def commit(self, rows: int) -> None:
            if rows > START + 1:
                raise CommitRefused("full")
            super().commit(rows)

    slot.memory = Full(0, 64, RowCost(a_token=1, workspace=0))
    slot.memory.commit(START + 1)
    assert bid(slot, nodes=15).limit == 0
