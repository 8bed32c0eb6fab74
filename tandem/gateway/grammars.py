"""What an answer is to be held to, in the words of the servers that clients know, as one grammar for the engine.

A grammar's text is read by the engine alone, beside everything it serves; what is wrong with one comes back as a
refusal that names the place. Here only the fields are told apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from tandem.contract.messages import Grammar, GrammarKind
from tandem.gateway.errors import ApiError

SchemaField = Annotated[Any, Meta(description="A JSON schema; an object, or its text.")]
Text = Annotated[str, Meta(min_length=1)]
Answers = Annotated[list[Text], Meta(min_length=1)]
FormatType = Literal["text", "json_object", "json_schema"]

MOST_CHOICES: Final = 1_000  # a longer list grows too complex for its grammar while the answer is written


class NamedSchema(Struct, frozen=True):
    """OpenAI's. `strict` changes nothing: a schema is always kept to."""

    schema: SchemaField = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, frozen=True):
    type: FormatType
    json_schema: NamedSchema | None = None
    schema: SchemaField = None  # llama.cpp's, with `json_object`


class StructuredOutputs(Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's."""

    json: SchemaField = None
    json_object: bool | None = None
    regex: Text | None = None
    choice: Answers | None = None
    grammar: Text | None = None


class HoldsAnswer(Protocol):
    """The fields of a request that say what its answer must match."""

    @property
    def response_format(self) -> ResponseFormat | None: ...
    @property
    def structured_outputs(self) -> StructuredOutputs | None: ...
    @property
    def guided_json(self) -> Any: ...
    @property
    def guided_regex(self) -> str | None: ...
    @property
    def guided_choice(self) -> list[str] | None: ...
    @property
    def guided_grammar(self) -> str | None: ...
    @property
    def json_schema(self) -> Any: ...
    @property
    def grammar(self) -> str | None: ...


def grammar_of(wanted: HoldsAnswer) -> Grammar | None:
    """None when any answer will do. Raises `ApiError` 400 for a schema that is missing or cannot be one, and for more
    than one thing to match."""
    first, *others = [*_grammars(wanted), None]
    if first is not None and others[:-1]:
        names = " and ".join(f"`{each.param}`" for each in (first, *others) if each is not None)
        raise ApiError(400, "invalid_value", f"{names}: an answer is held to one of them", param=first.param)
    return first


def _grammars(wanted: HoldsAnswer) -> Iterator[Grammar]:
    if (form := wanted.response_format) is not None:
        yield from _of_format(form)
    if (outputs := wanted.structured_outputs) is not None:
        yield from _of_outputs(outputs)
    for param in ("guided_json", "json_schema"):
        if (schema := getattr(wanted, param)) is not None:
            yield _schema(schema, param)
    if wanted.guided_regex is not None:
        yield Grammar(GrammarKind.REGEX, wanted.guided_regex, "guided_regex")
    if wanted.guided_choice is not None:
        yield _choice(wanted.guided_choice, "guided_choice")
    for param in ("guided_grammar", "grammar"):
        if (text := getattr(wanted, param)) is not None:
            yield Grammar(GrammarKind.LARK, text, param)


def _of_format(form: ResponseFormat) -> Iterator[Grammar]:
    match form.type:
        case "json_object" if form.schema is not None:
            yield _schema(form.schema, "response_format.schema")
        case "json_object":
            yield Grammar(GrammarKind.JSON_OBJECT, "", "response_format")
        case "json_schema":
            param = "response_format.json_schema"
            if form.json_schema is None:
                raise ApiError(400, "invalid_value", f"`{param}`: this field is required", param=param)
            yield _schema(form.json_schema.schema, f"{param}.schema")


def _of_outputs(outputs: StructuredOutputs) -> Iterator[Grammar]:
    place = "structured_outputs"
    if outputs.json is not None:
        yield _schema(outputs.json, f"{place}.json")
    if outputs.json_object:
        yield Grammar(GrammarKind.JSON_OBJECT, "", f"{place}.json_object")
    if outputs.regex is not None:
        yield Grammar(GrammarKind.REGEX, outputs.regex, f"{place}.regex")
    if outputs.choice is not None:
        yield _choice(outputs.choice, f"{place}.choice")
    if outputs.grammar is not None:
        yield Grammar(GrammarKind.LARK, outputs.grammar, f"{place}.grammar")


def _schema(schema: Any, param: str) -> Grammar:
    if schema is None:
        raise ApiError(400, "invalid_value", f"`{param}`: this field is required", param=param)
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError):
            raise ApiError(400, "invalid_value", f"`{param}`: this text is not valid JSON", param=param) from None
    if not isinstance(schema, dict):
        raise ApiError(400, "invalid_value", f"`{param}`: a schema is a JSON object", param=param)
    return Grammar(GrammarKind.JSON_SCHEMA, msgspec.json.encode(schema).decode(), param)


def _choice(answers: list[str], param: str) -> Grammar:
    if len(answers) > MOST_CHOICES:
        raise ApiError(
            400,
            "invalid_value",
            f"`{param}` names {len(answers):,} answers; at most {MOST_CHOICES:,} are kept, and `enum` in a JSON schema "
            "takes more",
            param=param,
        )
    return Grammar(GrammarKind.CHOICE, msgspec.json.encode(answers).decode(), param)
