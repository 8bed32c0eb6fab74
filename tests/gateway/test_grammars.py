from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.contract.messages import GrammarKind
from tandem.gateway.errors import ApiError
from tandem.gateway.grammars import grammar_of
from tandem.gateway.openai import ChatRequest, CompletionRequest
from tandem.gateway.reading import read

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"z": {"maximum": 1.0}, "a": {"const": 12345678901234567890}}}
TEXT = json.dumps(SCHEMA, separators=(",", ":"))
NAMED = {"name": "point", "schema": SCHEMA, "strict": True}
LISTED = json.dumps(["a", "ä"], ensure_ascii=False, separators=(",", ":"))


def asked(**fields: Any) -> Any:
    """The grammar of a chat request; that of a plain completion is the same."""
    chat, _ = read(ChatRequest, json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode())
    plain, unread = read(CompletionRequest, json.dumps({"prompt": "hi", **fields}).encode())
    assert grammar_of(chat) == grammar_of(plain)
    assert unread == ()
    return grammar_of(chat)


@pytest.mark.parametrize(
    ("fields", "kind", "text", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", "", "response_format"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", TEXT, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": NAMED}},
            "json_schema",
            TEXT,
            "response_format.json_schema.schema",
        ),
        ({"guided_json": SCHEMA}, "json_schema", TEXT, "guided_json"),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", TEXT, "guided_json"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"guided_choice": ["a", "ä"]}, "choice", LISTED, "guided_choice"),
        ({"guided_grammar": 'start: "a"'}, "lark", 'start: "a"', "guided_grammar"),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", TEXT, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, "json_object", "", "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+", "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a", "ä"]}}, "choice", LISTED, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, "lark", 'root ::= "a"', "structured_outputs.grammar"),
        ({"json_schema": SCHEMA}, "json_schema", TEXT, "json_schema"),
        ({"grammar": 'root ::= "a"'}, "lark", 'root ::= "a"', "grammar"),
    ],
    ids=str,
)
def test_every_way_to_say_it_is_one_grammar(fields: dict[str, Any], kind: str, text: str, param: str) -> None:
    grammar = asked(**fields)
    assert (grammar.kind, grammar.text, grammar.param) == (GrammarKind(kind), text, param)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": None, "guided_json": None, "grammar": None, "structured_outputs": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json_object": False}},
    ],
)
def test_what_asks_for_no_grammar(fields: dict[str, Any]) -> None:
    assert asked(**fields) is None


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        ({"guided_json": [1]}, "guided_json", "a JSON object"),
        ({"json_schema": "{"}, "json_schema", "not valid JSON"),
        ({"structured_outputs": {"json": True}}, "structured_outputs.json", "a JSON object"),
        ({"guided_regex": "a", "grammar": "b"}, "guided_regex", "`guided_regex` and `grammar`"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.regex", "one of them"),
        ({"guided_choice": [f"c{n}" for n in range(1001)]}, "guided_choice", "at most 1,000"),
        ({"response_format": {"type": "json_object"}, "guided_json": {}}, "response_format", "`guided_json`"),
    ],
)
def test_what_cannot_be_meant_is_a_400_that_names_the_field(fields: dict[str, Any], param: str, word: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked(**fields)
    detail = caught.value.detail
    assert (caught.value.status, detail.type, detail.param) == (400, "invalid_request_error", param)
    assert word in detail.message
