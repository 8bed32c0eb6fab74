"""docs/api.md says of every field what the code does with it."""

from __future__ import annotations

import re
from pathlib import Path

from tandem.config.documents import Api, Appliance
from tandem.gateway.errors import REFUSALS
from tandem.gateway.openai import ChatRequest, CompletionRequest
from tandem.gateway.thinking import ThinkingShown
from tandem.gateway.treatment import FIELDS, table

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def test_the_table_of_fields_is_the_code_s() -> None:
    assert table(ChatRequest, CompletionRequest) in PAGE, "docs/api.md: the table is `treatment.table`"
    assert all(f"| `{name}` |" in PAGE for name in FIELDS)


def test_every_way_to_show_thinking_is_told() -> None:
    ways = set(re.findall(r"^\| `(\w+)` \| (?:`|both|in|nowhere)", PAGE, re.MULTILINE))
    settings = set(map(str, ThinkingShown)) - {ThinkingShown.TAGS_AND_FIELD}
    assert settings <= ways
    assert settings == set(Api.model_fields["reasoning"].annotation.__args__)  # type: ignore[union-attr]


def test_keys_and_codes_that_it_names_are_there() -> None:
    for section, key in re.findall(r"`(api|limits)\.(\w+)", PAGE):
        annotation = Appliance.model_fields[section].annotation
        assert annotation is not None and key in annotation.model_fields, f"{section}.{key}"
    for code in ("queue_full", "queue_timeout", "memory_wait_timeout"):
        assert code in REFUSALS and code in PAGE
