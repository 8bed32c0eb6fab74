from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from tandem.text.detokenize import Detokenizer, decode
from tandem.text.tokenizer import Tokenizer

ids = st.lists(st.integers(0, 49_151), max_size=60)


@pytest.mark.parametrize("text", ["🙂🏽👩‍👩‍👧‍👦", "你好，世界", "naïve 🇩🇪\n", "e\u0301"])
def test_no_piece_holds_a_partial_character(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@given(ids=ids)
def test_any_ids_read_as_the_reference_decoder_reads_them_whole(tokenizer: Tokenizer, ids: list[int]) -> None:
    shown = [id for id in ids if tokenizer.bytes_of[id]]
    reference: Any = decoders.ByteLevel()
    whole = reference.decode([tokenizer.vocabulary.tokens[id] for id in shown])
    ours = decode(tokenizer, ids)
    assert whole.startswith(ours)
    assert whole[len(ours) :] in ("", "\ufffd")  # an open character at the end is left out


def test_an_answer_that_ends_inside_a_character_ends_before_it(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("ok 🏽")
    assert decode(tokenizer, tokens[:-1]) == "ok "
