"""Blocks of thinking, followed token by token, against reading the whole answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.conductor.blocks import Blocks
from tandem.contract.messages import Reasoning

marks = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
answers = st.lists(st.integers(0, 2), max_size=40)


def by_the_book(reasoning: Reasoning, written: list[int]) -> tuple[bool, int, int | None]:
    """Whether it thinks at the end, tokens of thinking, where the answer begins: by cutting at mark after mark."""
    is_inside, count, at, answer = reasoning.begun or not reasoning.open, 0, 0, 0
    while True:
        mark = reasoning.close if is_inside else reasoning.open
        ends = [
            n for n in range(at + len(mark), len(written) + 1) if mark and tuple(written[n - len(mark) : n]) == mark
        ]
        if not ends:
            return is_inside, count + (len(written) - at if is_inside else 0), None if is_inside else answer
        if is_inside:
            count += ends[0] - len(mark) - at
            answer = ends[0]
        is_inside, at = not is_inside, ends[0]


@given(open=st.just(()) | marks, close=marks, begun=st.booleans(), written=answers, data=st.data())
def test_blocks_are_what_reading_the_whole_answer_finds(
    open: tuple[int, ...], close: tuple[int, ...], begun: bool, written: list[int], data: st.DataObject
) -> None:
    reasoning = Reasoning(open, close, begun=begun)
    blocks = Blocks(reasoning)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=5)))
    for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True):
        blocks.follow(written[start:end])
        assert (blocks.is_inside, blocks.num_thinking, blocks.answer_start) == by_the_book(reasoning, written[:end])
        assert blocks.num_read == end


@given(close=marks, written=answers)
def test_what_closes_a_block_closes_it_and_nothing_shorter_does(close: tuple[int, ...], written: list[int]) -> None:
    blocks = Blocks(Reasoning((), close))
    blocks.follow(written)
    if not blocks.is_inside:
        assert blocks.closing == ()
        return
    *others, last = blocks.closing
    blocks.follow(others)
    assert blocks.is_inside
    blocks.follow([last])
    assert not blocks.is_inside


@pytest.mark.parametrize(
    ("close", "written"),
    [((0, 0, 1), [0, 0, 0, 1]), ((0, 1, 0, 0), [0, 1, 0, 1, 0, 0]), ((0, 1, 0, 1, 2), [0, 1, 0, 1, 0, 1, 2])],
)
def test_an_end_that_begins_inside_a_false_start_is_found(close: tuple[int, ...], written: list[int]) -> None:
    blocks = Blocks(Reasoning((), close))
    blocks.follow(written)
    assert (blocks.is_inside, blocks.num_thinking) == (False, len(written) - len(close))


def test_thinking_that_nothing_ends_is_refused() -> None:
    with pytest.raises(ValueError, match="never end"):
        Blocks(Reasoning((1,), ()))
