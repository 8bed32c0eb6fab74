"""Calls as every family writes them, however their text was cut."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_calls import (
    CLOCK,
    TOOLS,
    WEATHER,
    Called,
    Item,
    Render,
    hermes,
    items_of,
    json_call,
    llama,
    mistral,
    mistral_named,
    qwen_xml,
    read,
    without_ids,
)

from tandem.config.documents import Profile
from tandem.text.parts import AnswerParts, Reading
from tandem.text.pieces import CallArguments, CallBegun, Text
from tandem.text.toolcalls.formats import FORMATS, HERMES, JSON, LLAMA, MISTRAL, QWEN_XML, CallFormat, find_format
from tandem.text.toolcalls.json_form import LONGEST_BEFORE_NAME
from tandem.text.tools import Tool

FAMILIES: dict[str, tuple[Render, CallFormat]] = {
    "hermes": (hermes, HERMES),
    "qwen-xml": (qwen_xml, QWEN_XML),
    "mistral": (mistral, MISTRAL),
    "mistral, named": (mistral_named, MISTRAL),
    "llama": (llama, LLAMA),
}
families = pytest.mark.parametrize(("render", "format"), FAMILIES.values(), ids=FAMILIES)

PARIS = Called("get_weather", {"city": 'Paris "é🙂"\n</tool_call>', "days": 3, "place": {"lat": 48.8, "lon": None}})
NOW = Called("now", {})
ANSWER: list[Item] = ["Let me look.\n\nAt once.", PARIS, NOW, "And then?", PARIS]


def reading(format: CallFormat, *tools: Tool, most_calls: int | None = None) -> Reading:
    return Reading(None, tools or TOOLS, format, most_calls)


@families
def test_text_and_calls_are_told_apart(render: Render, format: CallFormat) -> None:
    assert items_of(read(render(ANSWER), reading(format))[0]) == ANSWER


@families
def test_the_parts_are_the_same_cut_anywhere_and_in_any_width(render: Render, format: CallFormat) -> None:
    text = render(ANSWER)
    whole = without_ids(read(text, reading(format), len(text))[0])
    assert [type(part) for part in whole][:3] == [Text, CallBegun, CallArguments]
    for width in (1, 2, 7, 32):
        assert without_ids(read(text, reading(format), width)[0]) == whole
    for place in range(1, len(text)):
        assert without_ids(read(text, reading(format), [place])[0]) == whole


@families
def test_an_answer_may_end_anywhere(render: Render, format: CallFormat) -> None:
    """Nothing is invented, nothing that has begun is taken back, and no mark is ever shown."""
    text = render(ANSWER)
    whole = items_of(read(text, reading(format))[0])
    for end in range(len(text)):
        parts, _ = read(text[:end], reading(format))
        shown = "".join(part.text for part in parts if isinstance(part, Text))
        assert not any(mark in shown for mark in format.openings)
        names = [part.name for part in parts if isinstance(part, CallBegun)]
        assert names == [item.name for item in whole if isinstance(item, Called)][: len(names)]


# --- whatever is rendered is read -------------------------------------------------------------------------------

LETTERS = 'ab <>{}[]"\\:,;=/|_é🙂\n\ttool_call'
texts = st.text(LETTERS, max_size=20).map(str.strip).filter(lambda text: text != "" and text[0] not in "{[")
strings = st.text(LETTERS, max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | strings,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(Called, st.just("get_weather"), st.dictionaries(strings, json_values, max_size=3)) | st.just(NOW)
# As the schema of WEATHER has them: text forms write strings bare, so only a schema tells "3" from 3.
typed = st.fixed_dictionaries(
    {},
    optional={
        "city": strings,
        "days": st.integers(),
        "metric": st.booleans(),
        "place": st.fixed_dictionaries({"lat": st.floats(allow_nan=False, allow_infinity=False)}),
        "tags": st.lists(strings, max_size=3),
    },
)
typed_calls = st.builds(Called, st.just("get_weather"), typed) | st.just(NOW)


def is_plain(item: Item) -> bool:
    """Neither holds what ends a value nor what begins a call."""
    text = item if isinstance(item, str) else " ".join(map(str, item.arguments.values()))
    return not any(mark in text for mark in ("<tool_call>", "</tool_call>", "<function=", "</parameter>"))


def alternating(items: list[Item]) -> list[Item]:
    """No two texts beside each other: they would be one."""
    return [item for n, item in enumerate(items) if not (n and isinstance(item, str) and isinstance(items[n - 1], str))]


@families
@given(data=st.data())
def test_what_is_rendered_is_read(render: Render, format: CallFormat, data: st.DataObject) -> None:
    written = typed_calls if format is QWEN_XML else calls
    items = alternating(data.draw(st.lists((texts | written).filter(is_plain), min_size=1, max_size=4)))
    text = render(items)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts, _ = read(text, reading(format), cuts)
    assert items_of(parts) == items
    assert without_ids(parts) == without_ids(read(text, reading(format), 1)[0])


BITS = (
    *(mark for _, format in FAMILIES.values() for mark in format.marks),
    *("<function=", "<parameter=city>\n", "</parameter>", "</function>", ">", "now", "get_weather", "\\", '"'),
    *('{"name": "now", "arguments": {}}', '{"name": ', '"now"', ', "arguments": ', '{"city": "', '"}', "}"),
    *("[", "]", ",", ";", "\n", " a "),
)


@given(
    pieces=st.lists(st.sampled_from(BITS), max_size=14),
    format=st.sampled_from([HERMES, QWEN_XML, MISTRAL, LLAMA, JSON]),
    data=st.data(),
)
def test_no_text_breaks_a_reader_and_no_cut_changes_what_it_reads(
    pieces: list[str], format: CallFormat, data: st.DataObject
) -> None:
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts, finished = read(text, reading(format), cuts)
    assert without_ids(parts) == without_ids(read(text, reading(format), 1)[0])
    assert finished.num_settled == len(text)
    if not any(isinstance(part, CallBegun) for part in parts):
        shown = "".join(part.text for part in parts if isinstance(part, Text))
        assert without_marks(shown, format) == without_marks(text, format)


def without_marks(text: str, format: CallFormat) -> str:
    """An answer that ends inside a call has lost that call's mark."""
    return "".join(re.sub("|".join(map(re.escape, format.openings)) or "(?!)", "", text).split())


# --- what is no call --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (HERMES, "<tool_call>not JSON</tool_call>"),
        (HERMES, '<tool_call>{"name": "unknown", "arguments": {}}</tool_call> more'),
        (HERMES, '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "now", "arguments": 7}</tool_call>'),
        (HERMES, '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
        (QWEN_XML, "<function=unknown><parameter=a>1</parameter></function>"),
        (QWEN_XML, "see <function=now\n> here"),
        (MISTRAL, "[TOOL_CALLS]unknown[ARGS]{}"),
        (MISTRAL, '[TOOL_CALLS]now[ARGS]"x"'),
        (LLAMA, '<|python_tag|>brave_search.call(query="x")'),
        (JSON, '{"name": "Bob", "age": 3}'),
        (JSON, '{"name": "now", "age": 3}'),
        (JSON, '{"name": "now"}'),
        (JSON, "[1] says so"),
        (JSON, '{"answer": {"name": "now", "arguments": {}}}'),
        (JSON, 'Like so: {"name": "now", "arguments": {}}'),
        (HERMES, "1 < 2 and <tool_cal"),
    ],
)
def test_what_does_not_read_as_a_call_is_text_as_it_was_written(format: CallFormat, text: str) -> None:
    for width in (1, 5, len(text)):
        assert read(text, reading(format), width)[0] == [Text(text)]


def test_a_call_behind_what_was_none_is_found() -> None:
    text = '<tool_call>hm <tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert items_of(read(text, reading(HERMES))[0]) == ["<tool_call>hm", NOW]


def test_an_answer_in_json_streams_from_its_first_key_on() -> None:
    """A client that asked for JSON and has tools too does not wait for what cannot be a call."""
    parts = AnswerParts(reading(JSON))
    assert parts.push('{"city') == []
    assert parts.push('"') == [Text('{"city"')]
    assert parts.push(": ") == [Text(":")]


def test_without_tools_marks_are_text() -> None:
    text = hermes([NOW])
    assert read(text, Reading())[0] == [Text(text)]


# --- what is one all the same -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (HERMES, '<tool_call>{"arguments": {"days": 3}, "name": "get_weather"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "get_weather", "arguments": {"days": 3}}'),  # its end left out
        (HERMES, '<tool_call>{"name": "get_weather", "arguments": {"days": 3}</tool_call>'),  # a bracket too few
        (HERMES, '<tool_call>{"name": "get_weather", "arguments": {"days": 3}}}</tool_call>'),  # one too many
        (HERMES, '<tool_call>[{"name": "get_weather", "arguments": {"days": 3}}]</tool_call>'),
        (HERMES, '<tool_call>{"name": "get_weather", "arguments": "{\\"days\\": 3}"}</tool_call>'),
        (HERMES, '<tool_call>{"id": "1", "type": "function", "function": "get_weather", "arguments": {"days": 3}}'),
        (HERMES, '<tool_call>{"name": "get_weather", "arguments": {"days": 3}, "more": [1, {"a": "}"}], "x": 2}'),
        (HERMES, '<tool_call>get_weather\n{"days": 3}\n</tool_call>'),
        (HERMES, '{"name": "get_weather", "arguments": {"days": 3}}'),  # bare, as a forced call is written
        (QWEN_XML, "<function=get_weather><parameter=days>3</parameter></function>"),
        (QWEN_XML, "<tool_call><function=get_weather>\n<parameter=days>\n3\n</parameter>\n</tool_call>"),
        (QWEN_XML, '<function="get_weather"><parameter="days"> 3 </parameter></function></tool_call>'),
        (LLAMA, '<function=get_weather>{"days": 3}</function>'),
        (LLAMA, '{"type": "function", "name": "get_weather", "parameters": {"days": 3}}'),
        (MISTRAL, '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"days": 3}, "id": "abc"}]'),
        (MISTRAL, '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"days": 3}'),
        (MISTRAL, '[TOOL_CALLS]get_weather{"days": 3}'),
        (JSON, '\n[{"name": "get_weather", "arguments": {"days": 3}}]\n'),
    ],
)
def test_a_call_written_a_little_otherwise_is_one(format: CallFormat, text: str) -> None:
    for width in (1, 4, len(text)):
        assert items_of(read(text, reading(format), width)[0]) == [Called("get_weather", {"days": 3})]


def test_several_bare_calls_are_separated_by_anything_models_put_there() -> None:
    one = json_call(NOW)
    for separator in ("; ", "\n", "", " ;\n"):
        assert items_of(read(one + separator + one, reading(LLAMA))[0]) == [NOW, NOW]
    assert items_of(read(f"[{one},{one}] done", reading(JSON))[0]) == [NOW, NOW, "done"]


def test_no_arguments_are_an_empty_object() -> None:
    for arguments in ("null", '""', "{}"):
        text = f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>'
        assert items_of(read(text, reading(HERMES))[0]) == [NOW]
    assert items_of(read('<tool_call>{"name": "now"}</tool_call>', reading(HERMES))[0]) == [NOW]
    assert items_of(read("<function=now></function>", reading(QWEN_XML))[0]) == [NOW]


def test_arguments_before_the_name_are_waited_for_up_to_a_limit() -> None:
    """What is not decided is not shown, and would be read again and again."""
    long = '<tool_call>{"arguments": {"a": "' * 300
    parts = AnswerParts(reading(HERMES))
    (text,) = parts.push(long)
    assert isinstance(text, Text)
    assert long.startswith(text.text)
    assert len(long) - LONGEST_BEFORE_NAME - 50 < len(text.text) < len(long)


def test_line_breaks_that_a_model_leaves_bare_in_a_string_are_escaped() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "a\nb\tc"}}</tool_call>'
    assert items_of(read(text, reading(HERMES))[0]) == [Called("get_weather", {"city": "a\nb\tc"})]


def test_arguments_in_a_string_are_read_out_of_it() -> None:
    inner = json.dumps({"city": "é🙂\n\\"})
    for outer in (json.dumps(inner), json.dumps(inner, ensure_ascii=False)):
        text = f'{{"name": "get_weather", "arguments": {outer}}}'
        assert items_of(read(text, reading(JSON))[0]) == [Called("get_weather", {"city": "é🙂\n\\"})]


# --- how it is streamed -----------------------------------------------------------------------------------------


def test_a_call_begins_with_its_name_and_its_arguments_come_as_they_are_written() -> None:
    parts = AnswerParts(reading(HERMES))
    assert parts.push('I look. \n<tool_call>{"name": "get_wea') == [Text("I look.")]
    (begun, first) = parts.push('ther", "arguments": {"ci')
    assert isinstance(begun, CallBegun)
    assert (begun.call, begun.name, first) == (0, "get_weather", CallArguments(0, '{"ci'))
    assert parts.push('ty": "P') == [CallArguments(0, 'ty": "P')]
    assert parts.push('aris"}') == [CallArguments(0, 'aris"}')]
    assert parts.push("}\n</tool_call>") == []
    assert parts.finish() == []


def test_text_of_an_xml_parameter_is_streamed() -> None:
    parts = AnswerParts(reading(QWEN_XML))
    assert parts.push("<function=get_weather>\n<parameter=city>\nA long")[1:] == [
        CallArguments(0, '{"city": "A long'),
    ]
    assert parts.push(' "text"\n') == [CallArguments(0, ' \\"text\\"')]
    assert parts.push("more</para") == [CallArguments(0, "\\nmore")]
    assert parts.push("meter>\n</function>") == [CallArguments(0, '"}')]


def test_ids_are_unique_and_of_the_family_s_form() -> None:
    for format, form in ((HERMES, r"call_[0-9a-f]{24}"), (MISTRAL, r"[a-zA-Z0-9]{9}")):
        text = mistral([NOW, NOW, NOW]) if format is MISTRAL else hermes([NOW, NOW, NOW])
        ids = [part.id for part in read(text, reading(format))[0] if isinstance(part, CallBegun)]
        assert len(set(ids)) == 3
        assert all(re.fullmatch(form, id) and format.takes_id(id) for id in ids)


def test_a_call_that_is_cut_off_keeps_what_it_has() -> None:
    cut = '<tool_call>{"name": "get_weather", "arguments": {"city": "Par'
    assert read(cut, reading(HERMES))[0][1] == CallArguments(0, '{"city": "Par')
    cut = "<function=get_weather><parameter=city>\nPar"
    assert read(cut, reading(QWEN_XML))[0][1] == CallArguments(0, '{"city": "Par')
    cut = "<function=get_weather><parameter=days>1"
    assert read(cut, reading(QWEN_XML))[0][1] == CallArguments(0, '{"days": 1')


def test_a_call_that_breaks_after_it_began_goes_on_as_written() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": oops]}}</tool_call>'
    parts, _ = read(text, reading(HERMES))
    assert parts[0] == CallBegun(0, parts[0].id if isinstance(parts[0], CallBegun) else "", "get_weather")
    assert isinstance(parts[1], CallArguments)
    assert parts[1].text.startswith('{"city": oops')


def test_the_answer_ends_behind_the_last_call_that_is_wanted() -> None:
    for render, format in FAMILIES.values():
        parts, finished = read(render(ANSWER), reading(format, most_calls=1))
        assert items_of(parts) == ["Let me look.\n\nAt once.", PARIS]
        assert finished.is_over


# --- types ------------------------------------------------------------------------------------------------------

ANY_OF: dict[str, Any] = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "42", "42"),
        ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
        ({"type": "string"}, "  kept \n", "  kept \n"),
        ({"type": "integer"}, " 42 ", 42),
        ({"type": "integer"}, "many", "many"),
        ({"type": "number"}, "4", 4),
        ({"type": "number"}, "4e-3", 0.004),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "object"}, '{\n "a": [1]}', {"a": [1]}),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "array"}, "1, 2", "1, 2"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "7", "7"),
        ({"type": "string", "nullable": True}, "null", None),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": "1"}, "1", "1"),
        (ANY_OF, "3", 3),
        (ANY_OF, "None", None),
        ({"$ref": "#/$defs/place"}, '{"lat": 1}', {"lat": 1}),
        ({"$ref": "#/properties/other"}, "5", "5"),
        ({"$ref": "#/$defs/loop"}, "5", 5),
        ({"$ref": "#/nowhere"}, "5", 5),
        ({"allOf": [{"$ref": "#/$defs/word"}, {"description": "x"}]}, "5", "5"),
        ({}, "5", 5),
        ({}, "five", "five"),
        ({}, '"quoted"', '"quoted"'),
        (True, "[1]", [1]),
        ({"type": "nonsense"}, "1", 1),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
    ],
)
def test_values_of_text_forms_are_typed_by_the_schema(schema: Any, text: str, value: Any) -> None:
    defs = {"place": {"type": "object"}, "word": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    parameters = {"properties": {"x": schema, "other": {"type": "string"}}, "$defs": defs}
    written = qwen_xml([Called("f", {"x": text})])
    assert items_of(read(written, reading(QWEN_XML, Tool("f", "", parameters)))[0]) == [Called("f", {"x": value})]


def test_a_parameter_that_is_described_elsewhere_is_found() -> None:
    parts = {"anyOf": [{"properties": {"a": {"type": "string"}}}, {"$ref": "#/$defs/b"}]}
    parameters = parts | {"$defs": {"b": {"properties": {"b": {"type": "string"}}}}}
    written = qwen_xml([Called("f", {"a": "1", "b": "2", "c": "3"})])
    (call,) = items_of(read(written, reading(QWEN_XML, Tool("f", "", parameters)))[0])
    assert call == Called("f", {"a": "1", "b": "2", "c": 3})
    (call,) = items_of(read(written, reading(QWEN_XML, Tool("f", "", {"additionalProperties": {"type": "string"}})))[0])
    assert call == Called("f", {"a": "1", "b": "2", "c": "3"})


def test_a_value_may_hold_the_words_that_end_one() -> None:
    value = "write </parameter> here\n\n</parameter> or <function=now>, <parameter=x>"
    call = Called("get_weather", {"city": value, "days": 1})
    assert items_of(read(qwen_xml([call, "done"]), reading(QWEN_XML))[0]) == [call, "done"]


# --- which form -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("<tool_call>{{ call | tojson }}</tool_call>", HERMES),
        ("<tool_call><function={{ name }}>", QWEN_XML),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", MISTRAL),
        ("<|start_header_id|>ipython<|end_header_id|>", LLAMA),
        ("<|im_start|>", JSON),
    ],
)
def test_the_template_shows_how_its_model_writes_calls(template: str, format: CallFormat) -> None:
    assert find_format(template) is format


def test_tools_that_are_named_alike_are_one() -> None:
    assert items_of(read(json_call(NOW), reading(JSON, CLOCK, WEATHER, CLOCK))[0]) == [NOW]


def test_a_profile_names_the_forms_that_there_are() -> None:
    (names,) = (get_args(kind) for kind in get_args(Profile.model_fields["calls"].annotation) if get_args(kind))
    assert set(names) == FORMATS.keys()
