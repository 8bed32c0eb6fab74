"""docs/api.md names every route with what opens it, and every field of each door with what becomes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest
from msgspec import Struct

from tandem.gateway import ollama_request, responses_request
from tandem.gateway.anthropic_request import CountRequest, MessagesRequest
from tandem.gateway.auth import ROUTES, Access
from tandem.gateway.fields import Ignored
from tandem.gateway.ollama_request import OllamaChatRequest, OllamaGenerateRequest, Options
from tandem.gateway.responses_request import ResponsesRequest

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
OPENED = {
    Access.OPEN: "anyone",
    Access.SUMMARY: "anyone for one word",
    Access.USER: "a user's key",
    Access.METRICS: "any key",
    Access.ADMIN: "a key named in `keys.admin`",
}


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]


def test_every_route_stands_there_with_what_opens_it() -> None:
    table = rows(section("Routes, and what opens them"))
    told = {path: row[-1] for row in table for path in re.findall("`(/[^`]+)`", row[0])}
    plain = {path.replace("{id:path}", "ID"): access for path, access in ROUTES.items()}
    plain.pop("/v1/health")  # another name of /health
    assert set(told) == set(plain)
    for path, access in plain.items():
        assert told[path].startswith(OPENED[access]), path


DOORS: list[tuple[str, tuple[type[Struct], ...]]] = [
    ("`/v1/messages`", (MessagesRequest, CountRequest)),
    ("`/v1/responses`", (ResponsesRequest,)),
    ("`/api/...`", (OllamaChatRequest, OllamaGenerateRequest)),
]


@pytest.mark.parametrize(("heading", "kinds"), DOORS)
def test_every_field_of_a_door_stands_there_with_what_becomes_of_it(
    heading: str, kinds: tuple[type[Struct], ...]
) -> None:
    told = {name: row[1] for row in rows(section(heading)) for name in re.findall(r"`(\w+)`", row[0])}
    fields = {name: hint for kind in kinds for name, hint in get_type_hints(kind, include_extras=True).items()}
    assert set(told) | {"model"} == set(fields)
    for name, becomes in told.items():
        assert (fields[name] == Ignored) == becomes.startswith("accepted without effect"), name


def test_what_is_refused_by_name_is_said_to_be() -> None:
    for heading, refused in (
        ("`/v1/responses`", responses_request.REFUSED),
        ("`/api/...`", ollama_request.REFUSED),
    ):
        told = {name: row[1] for row in rows(section(heading)) for name in re.findall(r"`(\w+)`", row[0])}
        assert {name for name, said in told.items() if said.startswith("refused")} == {field.name for field in refused}


def test_every_option_of_ollama_that_is_read_stands_there() -> None:
    (row,) = [row for row in rows(section("`/api/...`")) if row[0] == "`options`"]
    assert set(re.findall(r"`(\w+)`", row[1])) == set(Options.__struct_fields__)
