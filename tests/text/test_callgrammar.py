"""Forced calls: what is allowed is always a call, whatever the model would rather write."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from written_calls import CLOCK, WEATHER, items_of, read

from tandem.contract.messages import Grammar, GrammarKind
from tandem.engine.grammar import library
from tandem.engine.grammar.trial import judge
from tandem.text.callgrammar import MOST_AT_ONCE, call_grammar, place_of
from tandem.text.detokenize import decode
from tandem.text.parts import Reading
from tandem.text.tokenizer import Tokenizer
from tandem.text.toolcalls.formats import FORMATS
from tandem.text.tools import Tool

NODE = {
    "type": "object",
    "properties": {
        "value": {"enum": ["a", "ü"]},
        "left": {"anyOf": [{"$ref": "#/properties/tree"}, {"type": "null"}]},
        "right": {"$ref": "#/properties/tree/properties/left"},
    },
    "required": ["value"],
}
TREE = Tool("tree", "", {"type": "object", "properties": {"tree": NODE}, "required": ["tree"]})
ITEM = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 3, "maximum": 70}}, "required": ["x"]}
LIST = Tool(
    "list",
    "",
    {
        "properties": {"first": {"$ref": "#/$defs/item"}, "all": {"type": "array", "items": {"$ref": "#/$defs/item"}}},
        "required": ["first"],
        "$defs": {"item": ITEM},
    },
)


def lets_pass(grammar: Grammar, text: str) -> bool:
    """Over single bytes, from the first character to the last."""
    verdict = judge(grammar)
    assert verdict.source, verdict.sentence
    words = library.Words(
        [b"" if byte == 0 else bytes([byte]) for byte in range(256)], [0], lambda text: list(text.encode())
    )
    position = library.start(verdict.source, words)
    return position.read(list(text.encode())) == len(text.encode()) and position.may_end


def call(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        (call("now", {}), True),
        (call("now", {"x": 1}), False),
        (call("tree", {"tree": {"value": "ü", "left": {"value": "a", "right": None}}}), True),
        (call("tree", {"tree": {"left": None}}), False),
        (call("list", {"first": {"x": 3}, "all": [{"x": 4}]}), True),
        (call("list", {"all": []}), False),
        (call("other", {}), False),
        (f"[{call('now', {})}, {call('now', {})}]", True),
        ("[]", False),
        (f"[{', '.join([call('now', {})] * MOST_AT_ONCE)}]", True),
        (f"[{', '.join([call('now', {})] * (MOST_AT_ONCE + 1))}]", False),
        ("I would rather not.", False),
    ],
)
def test_a_call_of_any_tool_or_several_may_be_written_and_nothing_else(text: str, passes: bool) -> None:
    assert lets_pass(call_grammar([CLOCK, TREE, LIST]), text) is passes


def test_one_call_where_no_more_are_wanted() -> None:
    grammar = call_grammar([CLOCK, TREE], most_calls=1)
    assert lets_pass(grammar, call("now", {}))
    assert not lets_pass(grammar, f"[{call('now', {})}]")


def test_a_named_tool_is_the_only_one() -> None:
    grammar = call_grammar([CLOCK, LIST], name="list")
    assert lets_pass(grammar, call("list", {"first": {"x": 3}}))
    assert not lets_pass(grammar, call("now", {}))
    assert not lets_pass(grammar, f"[{call('list', {'first': {'x': 3}})}]")
    with pytest.raises(ValueError, match="`other`"):
        call_grammar([CLOCK], name="other")


def test_a_strict_schema_is_kept_word_for_word_and_another_one_by_its_shape() -> None:
    strict, loose = (Tool("list", "", LIST.parameters, strict=strict) for strict in (True, False))
    for tool, passes in ((strict, False), (loose, True)):
        assert lets_pass(call_grammar([tool]), call("list", {"first": {"x": 2}})) is passes
    assert not lets_pass(call_grammar([loose]), call("list", {"first": {"x": "2"}}))


ODD = {
    "type": "object",
    "title": "odd",
    "properties": {
        "n": {"type": "integer", "format": "uint32", "default": 3},
        "u": {"oneOf": [{"type": "string"}, {"enum": ["a"]}], "description": "overlaps"},
        "r": {"$ref": "#/properties/u/oneOf/1"},
        "far": {"$ref": "https://example.org/schema.json"},
        "not": {"type": "string", "not": {"const": "x"}},
        "properties": {"type": "array", "uniqueItems": True, "items": {"type": "string", "pattern": "(?=x)"}},
        "if": {"type": "object", "if": {}, "then": {}},
    },
    "required": ["n"],
}


def test_what_authors_write_for_people_refuses_no_loose_tool() -> None:
    grammar = call_grammar([Tool("odd", "", ODD)])
    assert lets_pass(grammar, call("odd", {"n": 1, "u": "b", "r": "a", "not": "x", "properties": ["y"], "if": {}}))
    assert not lets_pass(grammar, call("odd", {"n": 1, "other": 2}))
    assert not lets_pass(grammar, call("odd", {"n": 1, "r": "b"}))
    assert judge(call_grammar([Tool("odd", "", ODD, strict=True)])).sentence


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": None, "required": True, "type": "OBJECT"},
        {"properties": {"a": {"type": "any"}, "b": {"type": []}, "c": {"enum": []}}, "required": ["a", "gone"]},
        {"properties": {"a": {"type": ["String", "null"]}, "b": {"items": [{"type": "null"}]}, "c": None}},
        {"properties": {"a": {"anyOf": [], "allOf": None, "$ref": 3}}, "additionalProperties": "no"},
        {"$schema": "https://json-schema.org/draft-07/schema", "$ref": "#/definitions/x", "definitions": []},
        {"properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": {"$id": "x", "minimum": "0"}}},
    ],
)
def test_a_schema_that_is_none_refuses_no_loose_tool(schema: dict[str, Any]) -> None:
    """Also where the fault is not in what is kept: agents send what their plugins' authors wrote."""
    grammar = call_grammar([Tool("f", "", schema)])
    assert lets_pass(grammar, call("f", {"a": "x"} if schema.get("properties") else {}))


def test_parts_that_stand_for_one_whole_are_not_closed_one_by_one() -> None:
    both = {"allOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"b": {"type": "null"}}}]}
    assert lets_pass(call_grammar([Tool("both", "", both)]), call("both", {"a": None, "b": None}))


ENDLESS = {"properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"], "$defs": {"n": {"$ref": "#/$defs/n"}}}
LOOKS_AHEAD = {"properties": {"n": {"type": "string", "pattern": "(?=x)"}}}


@pytest.mark.parametrize(
    ("tool", "name", "says", "place"),
    [
        (Tool("bad", "", ENDLESS), "bad", "without end", "$defs.n"),
        (Tool("bad", "", ENDLESS), None, "without end", "$defs.n"),
        (Tool("bad", "", ENDLESS, strict=True), "bad", "without end", "$defs.n"),
        (Tool("bad", "", LOOKS_AHEAD, strict=True), "bad", "look", "properties.n.pattern"),
        (Tool("bad", "", LOOKS_AHEAD, strict=True), None, "look", "properties.n.pattern"),
    ],
)
def test_what_is_wrong_in_a_schema_is_told_by_its_place_in_the_request(
    tool: Tool, name: str | None, says: str, place: str
) -> None:
    tools = [CLOCK, tool]
    grammar = call_grammar(tools, name=name)
    verdict = judge(grammar)
    assert says in verdict.sentence
    assert place_of(f"{grammar.param}.{verdict.path}") == f"tools[1].function.parameters.{place}"


def test_other_places_are_left_as_they_are() -> None:
    for place in ("response_format", "tools", "tools[0].function.name"):
        assert place_of(place) == place


def test_it_is_a_schema_that_any_reader_of_schemas_reads() -> None:
    grammar = call_grammar([CLOCK, TREE, LIST, WEATHER])
    assert grammar.kind is GrammarKind.JSON_SCHEMA
    validator = jsonschema.Draft202012Validator(json.loads(grammar.text))
    assert validator.is_valid(json.loads(call("tree", {"tree": {"value": "a", "left": {"value": "ü"}}})))
    assert not validator.is_valid(json.loads(call("tree", {"tree": {"value": "a", "left": {}}})))


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_whatever_a_forced_model_writes_is_read_as_calls(tokenizer: Tokenizer, format: Any) -> None:
    """A model that chooses any allowed token with the same liking."""
    tools = (CLOCK, TREE, LIST)
    verdict = judge(call_grammar(tools))
    ends = tokenizer.vocabulary.stop_tokens
    tokens = [b"" if id in ends else data for id, data in enumerate(tokenizer.bytes_of)]
    words = library.Words(tokens, ends, tokenizer.encode)
    choose = random.Random(7)
    names = set[str]()
    for _ in range(6):
        position, written = library.start(verdict.source, words), list[int]()
        while not (position.may_end and choose.random() < 0.5) and len(written) < 300:
            token = choose.choice(np.flatnonzero(position.allowed()).tolist())
            if token in ends:
                break
            assert position.read([token]) == 1
            written.append(token)
        if not position.may_end:
            continue
        called = items_of(read(decode(tokenizer, written), Reading(None, tools, format))[0])
        assert called
        for each in called:
            assert not isinstance(each, str)
            names.add(each.name)  # type: ignore[union-attr]
    assert names


def test_the_page_says_how_many_calls_a_list_may_hold() -> None:
    page = (Path(__file__).parents[2] / "docs" / "structured-output.md").read_text()
    assert f"a list of at most {MOST_AT_ONCE}" in page
