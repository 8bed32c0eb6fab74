from __future__ import annotations

import pytest

from tandem.text.answer import AnswerText
from tandem.text.tokenizer import Tokenizer


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
