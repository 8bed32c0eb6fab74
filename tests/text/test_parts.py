"""Thinking, text and calls in one answer, and stop strings in the middle of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_calls import TOOLS, Called, hermes, items_of, read, without_ids

from tandem.text.parts import AnswerParts, Reading, joined
from tandem.text.pieces import AnswerPart, CallArguments, CallBegun, Text, Thought
from tandem.text.reasoning import Tags, Thinking
from tandem.text.toolcalls.formats import HERMES

TAGS = Tags("<think>", "</think>")
OPEN, BEGUN = Thinking(TAGS, begun=False), Thinking(TAGS, begun=True)
NOW = Called("now", {})
CALL = hermes([NOW])


@pytest.mark.parametrize("width", [1, 2, 7, 32, 500])
@pytest.mark.parametrize(
    ("text", "thinking"),
    [
        ("<think>\nI wonder.\n\nWell.\n</think>\n\n", OPEN),
        ("\n <think>I wonder.\n\nWell.</think>", OPEN),
        ("I wonder.\n\nWell.\n</think>\n", BEGUN),
        ("<think>\nI wonder.\n\nWell.\n</think>\n", BEGUN),  # opened once more
    ],
)
def test_thinking_comes_first_then_text_then_calls(text: str, thinking: Thinking, width: int) -> None:
    reading = Reading(thinking, TOOLS, HERMES)
    parts, _ = read(f"{text}I look.\n{CALL}", reading, width)
    assert items_of(parts) == [Thought("I wonder.\n\nWell."), "I look.", NOW]


def test_the_parts_are_the_same_cut_anywhere() -> None:
    text = f"<think>\n a </thin \n</think>\n\n I look </think> \n{CALL}"
    reading = Reading(OPEN, TOOLS, HERMES)
    whole = without_ids(read(text, reading, len(text))[0])
    assert whole[:2] == [Thought("a </thin"), Text("I look </think>")]
    for place in range(len(text)):
        assert without_ids(read(text, reading, [place])[0]) == whole


@pytest.mark.parametrize(
    ("text", "thinking", "parts"),
    [
        ("<think>\n\n</think>\n\nyes", OPEN, [Text("yes")]),  # nothing was thought
        ("yes <think>no</think>", OPEN, [Text("yes <think>no</think>")]),  # explained, not thought
        (" yes", OPEN, [Text(" yes")]),
        ("<thin", OPEN, [Text("<thin")]),
        ("<think>cut of", OPEN, [Thought("cut of")]),
        ("cut at the end </thi", BEGUN, [Thought("cut at the end </thi")]),
        ("one</think>two<think>three", BEGUN, [Thought("one"), Text("two<think>three")]),
        ("<think>one</think>\n<think></think> <think> two</think>three", OPEN, [Thought("one\n\ntwo"), Text("three")]),
        ("<think>a", None, [Text("<think>a")]),
        ("", BEGUN, []),
    ],
)
def test_where_thinking_begins_and_ends(text: str, thinking: Thinking | None, parts: list[Text | Thought]) -> None:
    for width in (1, 3, 100):
        assert read(text, Reading(thinking), width)[0] == parts


def test_thinking_is_shown_as_it_is_written() -> None:
    parts = AnswerParts(Reading(BEGUN))
    assert parts.push("\nI won") == [Thought("I won")]
    assert parts.push("der. ") == [Thought("der.")]
    assert parts.push("Well</t") == [Thought(" Well")]
    assert parts.push("hink>") == []
    assert parts.push("\n\n") == []
    assert parts.push(" So") == [Text("So")]


def test_without_thinking_and_tools_every_character_is_text() -> None:
    text = " \n<think> </think>\n" + CALL + "\n "
    for width in (1, 5):
        assert read(text, Reading(), width)[0] == [Text(text)]


# --- stop strings -----------------------------------------------------------------------------------------------


def test_a_stop_string_ends_text_and_neither_thinking_nor_calls() -> None:
    reading = Reading(OPEN, TOOLS, HERMES)
    call = Called("get_weather", {"city": "STOP"})
    text = f"<think>STOP</think>one {hermes([call])} two STOP three"
    for width in (1, 3, 100):
        parts, finished = read(text, reading, width, stops=["STOP"])
        assert items_of(parts) == [Thought("STOP"), "one", call, "two "]
        assert finished.stop == "STOP"
        assert finished.is_over


def test_what_is_held_for_a_stop_comes_before_the_call_behind_it() -> None:
    reading = Reading(None, TOOLS, HERMES)
    for width in (1, 100):
        parts, finished = read(f"go STO{CALL}P", reading, width, stops=["STOP"])
        assert items_of(parts) == ["go STO", NOW, "P"]
        assert finished.stop is None


def test_what_is_held_at_the_end_is_shown_and_a_mark_in_it_is_not() -> None:
    """The end passes every stage: a long stop string holds back text, the end of thinking is still one."""
    stops = ["x" * 40, "</think>yes, of course"]
    parts, _ = read("<think>hm</think>yes", Reading(OPEN), 1, stops)
    assert parts == [Thought("hm"), Text("yes")]
    parts, _ = read(f"well{CALL}", Reading(OPEN, TOOLS, HERMES), 1, ["well, then"])
    assert items_of(parts) == ["well", NOW]


@given(
    text=st.text("ab <\n", max_size=30),
    stops=st.lists(st.text("ab <", min_size=1, max_size=4), max_size=3),
    data=st.data(),
)
def test_settled_characters_are_those_that_cannot_change(text: str, stops: list[str], data: st.DataObject) -> None:
    """Without thinking and tools: exactly those that were shown."""
    parts = AnswerParts(Reading(), stops)
    shown, at = "", 0
    for place in sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5))):
        shown += "".join(part.text for part in parts.push(text[at:place]) if isinstance(part, Text))
        at = max(at, place)
        assert parts.num_settled == len(shown)
        assert text.startswith(shown)
        if parts.is_over:
            return
    shown += "".join(part.text for part in parts.push(text[at:]) + parts.finish() if isinstance(part, Text))
    assert parts.num_settled == len(shown)


def test_the_place_of_a_stop_is_counted_over_thinking_and_calls() -> None:
    text = f"<think>hm</think>\none{CALL} two STOP"
    for width in (1, 4, 100):
        _, finished = read(text, Reading(OPEN, TOOLS, HERMES), width, ["STOP"])
        assert finished.num_settled == text.index("STOP")


def test_neighbours_of_one_kind_are_joined_and_others_are_not() -> None:
    begun = CallBegun(1, "id", "now")
    pieces: list[AnswerPart] = [
        Text("a"),
        Text("b"),
        Thought("c"),
        Thought("d"),
        CallArguments(0, "{"),
        CallArguments(0, "}"),
        begun,
    ]
    pieces += [CallArguments(1, "{}"), Text("e")]
    assert joined(pieces) == [
        *(Text("ab"), Thought("cd"), CallArguments(0, "{}"), begun, CallArguments(1, "{}"), Text("e"))
    ]


BITS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "now", "arguments": {',
    "}}",
    "a",
    " b",
    "\n",
    "<",
)


@given(
    bits=st.lists(st.sampled_from(BITS), max_size=10),
    stops=st.lists(st.sampled_from(["a", " b", "b\n", "a<", "\n\n", "</th", "}}", "<tool_call>"]), max_size=3),
    begun=st.booleans(),
    data=st.data(),
)
def test_no_cut_changes_the_parts_nor_where_they_stop(
    bits: list[str], stops: list[str], begun: bool, data: st.DataObject
) -> None:
    text, reading = "".join(bits), Reading(Thinking(TAGS, begun), TOOLS, HERMES)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    results = [read(text, reading, each, stops) for each in (1, cuts, max(1, len(text)))]
    first, *others = [(without_ids(parts), done.stop, done.is_over, done.num_settled) for parts, done in results]
    assert others == [first, first]
    assert not any(stop in part.text for part in first[0] if isinstance(part, Text) for stop in stops)
