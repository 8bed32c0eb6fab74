"""Bodies that clients really send: characters cut in half."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from tandem.gateway.errors import ApiError
from tandem.gateway.reading import read, with_whole_characters


class Said(Struct):
    text: str


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (rb'{"text": "an emoji \ud83d"}', "an emoji \ufffd"),  # at the end of a string
        (rb'{"text": "\ud83d cut \ude00"}', "\ufffd cut \ufffd"),
        (rb'{"text": "\ud83d\ude00 whole, half \uD83D"}', "\U0001f600 whole, half \ufffd"),
        (rb'{"text": "no escape: \\ud83d, \ud83d"}', "no escape: \\ud83d, \ufffd"),
        (rb'{"text": "\ud83d\ud83d\ude00"}', "\ufffd\U0001f600"),
    ],
)
def test_half_a_character_is_shown_as_such(body: bytes, text: str) -> None:
    assert read(Said, body)[0].text == text


@given(st.text())
def test_whole_characters_stay_as_they_are(text: str) -> None:
    body = json.dumps({"text": text}).encode()
    assert with_whole_characters(body) == body
    assert read(Said, body)[0].text == text


@given(st.lists(st.sampled_from(["\\ud83d", "\\ude00", "\\\\", "\\n", "a", "\\u00e9", "ud83d", '\\"']), max_size=12))
def test_any_escapes_are_read(pieces: list[str]) -> None:
    assert isinstance(read(Said, f'{{"text": "{"".join(pieces)}"}}'.encode())[0].text, str)


def test_what_is_cut_is_still_said_to_be() -> None:
    with pytest.raises(ApiError, match="valid JSON"):
        read(Said, rb'{"text": "\ud83d')
