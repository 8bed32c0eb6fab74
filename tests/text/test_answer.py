from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_calls import TOOLS, without_ids

from tandem.text.answer import Answer
from tandem.text.detokenize import decode
from tandem.text.parts import Reading, joined
from tandem.text.pieces import AnswerPart, CallArguments, CallBegun, Text, Thought
from tandem.text.reasoning import Tags, Thinking
from tandem.text.tokenizer import Tokenizer
from tandem.text.toolcalls.formats import MISTRAL

END_OF_TURN = 2


def all_text(answer: Answer, tokens: list[int], width: int) -> str:
    come = [part for at in range(0, len(tokens), width) for part in answer.push(tokens[at : at + width])]
    return text_of(come + answer.finish())


def text_of(parts: list[AnswerPart]) -> str:
    assert all(isinstance(part, Text) for part in parts)
    return "".join(part.text for part in parts if isinstance(part, Text))


@pytest.mark.parametrize("width", [1, 2, 7, 100])
def test_tokens_after_a_stop_are_neither_shown_nor_counted(tokenizer: Tokenizer, width: int) -> None:
    tokens = tokenizer.encode("The quick brown fox jumps over")
    until = len(tokenizer.encode("The quick brown fox"))
    answer = Answer(tokenizer, ["own fox"])
    assert all_text(answer, tokens, width) == "The quick br"
    assert answer.is_stopped
    assert answer.num_tokens == until


def test_what_is_held_for_a_stop_comes_at_the_end(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, ["foxtrot"])
    assert text_of(answer.push(tokenizer.encode("a fox"))) == "a "
    assert text_of(answer.finish()) == "fox"
    assert not answer.is_stopped


def shown(tokenizer: Tokenizer, tokens: list[int], stops: list[str], width: int = 1) -> tuple[str, list[int]]:
    answer = Answer(tokenizer, stops)
    return all_text(answer, tokens, width), answer.starts


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
    answer = Answer(tokenizer, ["fox!"])
    first, fox = tokenizer.encode("a fox")
    assert (text_of(answer.push([first])), answer.starts) == ("a", [0])
    assert (text_of(answer.push([fox])), answer.starts) == (" ", [0])
    assert (text_of(answer.finish()), answer.starts) == ("fox", [0, 1])


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


# --- marks that are tokens --------------------------------------------------------------------------------------

MARKS = {3: "<think>", 4: "</think>", 5: "[TOOL_CALLS]", 6: "[ARGS]"}  # in the place of tokens that steer the model
READING = Reading(Thinking(Tags("<think>", "</think>"), begun=False), TOOLS, MISTRAL)
WRITTEN = (
    '<think>\nfirst 🙂\n</think>\n\nI look.[TOOL_CALLS]get_weather[ARGS]{"city": "Parí🙂s"}[TOOL_CALLS]now[ARGS]{}'
)
PARTS = [
    Thought("first 🙂"),
    Text("I look."),
    CallBegun(0, "", "get_weather"),
    CallArguments(0, '{"city": "Parí🙂s"}'),
    CallBegun(1, "", "now"),
    CallArguments(1, "{}"),
]


@pytest.fixture(scope="module")
def marked(tokenizer: Tokenizer) -> Tokenizer:
    tokens = tuple(MARKS.get(id, token) for id, token in enumerate(tokenizer.vocabulary.tokens))
    return Tokenizer(replace(tokenizer.vocabulary, tokens=tokens))


@pytest.mark.parametrize("width", [1, 2, 7, 32, 500])
def test_marks_that_show_nothing_are_seen_by_who_reads_them(marked: Tokenizer, width: int) -> None:
    tokens = marked.encode_with_controls(WRITTEN)
    assert MARKS.keys() <= set(tokens)
    answer = Answer(marked, (), READING)
    parts = [part for at in range(0, len(tokens), width) for part in answer.push(tokens[at : at + width])]
    assert without_ids(joined(parts + answer.finish())) == PARTS
    assert answer.num_tokens == len(tokens)
    assert len(answer.starts) == len(tokens), "each token is given out once, wherever its text went"
    assert answer.starts == sorted(answer.starts)


def test_who_does_not_read_marks_does_not_see_them(marked: Tokenizer) -> None:
    answer = Answer(marked)
    assert answer.push(marked.encode_with_controls("<think>a</think>[TOOL_CALLS]b")) == [Text("ab")]


def test_a_stop_behind_thinking_is_counted_in_tokens(marked: Tokenizer) -> None:
    head, tail = marked.encode_with_controls("<think>a stop</think>now "), marked.encode("stop it")
    answer = Answer(marked, ["stop"], READING)
    assert answer.push(head + tail) == [Thought("a stop"), Text("now ")]
    assert answer.stop == "stop"
    assert answer.num_tokens == len(head) + 1
    assert len(answer.starts) == len(head)
