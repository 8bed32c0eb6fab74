from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.text.answer import AnswerText
from tandem.text.detokenize import decode
from tandem.text.tokenizer import Tokenizer

END_OF_TURN = 2


@pytest.mark.parametrize("width", [1, 2, 7, 100])
def test_tokens_after_a_stop_are_neither_shown_nor_counted(tokenizer: Tokenizer, width: int) -> None:
    tokens = tokenizer.encode("The quick brown fox jumps over")
    until = len(tokenizer.encode("The quick brown fox"))
    answer = AnswerText(tokenizer, ["own fox"])
    text = "".join(answer.push(tokens[at : at + width]) for at in range(0, len(tokens), width)) + answer.finish()
    assert text == "The quick br"
    assert answer.is_stopped
    assert answer.num_tokens == until


def test_what_is_held_for_a_stop_comes_at_the_end(tokenizer: Tokenizer) -> None:
    answer = AnswerText(tokenizer, ["foxtrot"])
    assert answer.push(tokenizer.encode("a fox")) == "a "
    assert answer.finish() == "fox"
    assert not answer.is_stopped


def shown(tokenizer: Tokenizer, tokens: list[int], stops: list[str], width: int = 1) -> tuple[str, list[int]]:
    answer = AnswerText(tokenizer, stops)
    text = "".join(answer.push(tokens[at : at + width]) for at in range(0, len(tokens), width)) + answer.finish()
    return text, answer.starts


@pytest.mark.parametrize("width", [1, 2, 100])
def test_shown_tokens_are_those_whose_text_was_shown(tokenizer: Tokenizer, width: int) -> None:
    emoji = tokenizer.encode("🙂")
    assert len(emoji) > 1
    tokens = [*tokenizer.encode("a fox"), END_OF_TURN, *emoji]
    assert shown(tokenizer, tokens, [], width) == ("a fox🙂", [0, 1, 5] + [5] * len(emoji))
    assert shown(tokenizer, tokens[:-1], [], width) == ("a fox", [0, 1, 5])  # ends inside a character
    assert shown(tokenizer, tokens, ["🙂"], width) == ("a fox", [0, 1, 5])
    assert shown(tokenizer, tokens, ["x🙂"], width) == (
        "a fo",
        [0, 1],
    )  # the second token is cut, but its text was shown
    assert shown(tokenizer, tokens, [" fox🙂"], width) == ("a", [0])


def test_a_token_is_shown_when_its_last_character_is(tokenizer: Tokenizer) -> None:
    answer = AnswerText(tokenizer, ["fox!"])
    first, fox = tokenizer.encode("a fox")
    assert (answer.push([first]), answer.starts) == ("a", [0])
    assert (answer.push([fox]), answer.starts) == (" ", [0])
    assert (answer.finish(), answer.starts) == ("fox", [0, 1])


@given(
    text=st.text("ab 🙂é\n", max_size=12),
    stops=st.lists(st.text("ab 🙂é", min_size=1, max_size=3), max_size=2),
    controls=st.lists(st.integers(0, 30), max_size=3),
    lost=st.integers(0, 2),
    width=st.integers(1, 9),
)
def test_shown_tokens_join_to_the_text_however_they_came(
    tokenizer: Tokenizer, text: str, stops: list[str], controls: list[int], lost: int, width: int
) -> None:
    tokens = tokenizer.encode(text)
    for place in controls:
        tokens.insert(min(place, len(tokens)), END_OF_TURN)
    tokens = tokens[: max(0, len(tokens) - lost)]
    written, starts = shown(tokenizer, tokens, stops, width)
    assert (written, starts) == shown(tokenizer, tokens, stops, 1)
    assert decode(tokenizer, tokens[: len(starts)]).startswith(written)
    assert all(start < len(written) or tokens[n] == END_OF_TURN for n, start in enumerate(starts))
    if not stops and not lost:
        assert len(starts) == len(tokens)
