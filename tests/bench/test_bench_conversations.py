"""What the bench of conversations counts as shared, found and different."""

from __future__ import annotations

import pytest

from bench.conversations import Memory, Turn, script, summary


def test_a_perfect_memory_knows_prompts_and_their_answers() -> None:
    memory = Memory()
    assert memory.shared("abcd") == 0
    memory.learn("abcd", "ef")
    assert memory.shared("abcdefgh") == pytest.approx(6 / 8)
    assert memory.shared("abxx") == pytest.approx(2 / 4)


def turn(name: str, cached: int, first: float, text: str = "same") -> Turn:
    return Turn(name, 100, 80, cached, first, text)


def test_nobody_finds_more_than_is_shared_and_texts_are_compared() -> None:
    on = [turn("chat", 80, 0.1), turn("chat", 99, 0.2), turn("title", 40, 0.1, "other")]
    off = [turn("chat", 0, 0.4), turn("chat", 0, 0.4), turn("title", 0, 0.2)]
    rows = summary(on, off)
    assert rows["chat"]["found"] == 1.0 and rows["chat"]["different"] == 0
    assert rows["title"]["found"] == 0.5 and rows["title"]["different"] == 1
    assert rows["all"]["cached"] == 200 and rows["all"]["shared"] == 240
    assert rows["chat"]["first_token_ratio"] == pytest.approx(3.0)


def test_no_two_turns_say_the_same() -> None:
    said = [text for _, turns in script(12) for text in turns]
    assert len(said) == len(set(said)) == 36
