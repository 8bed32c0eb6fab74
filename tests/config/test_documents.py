from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.config import check, load
from tandem.config.documents import KINDS, Appliance, json_schema
from tandem.config.quantities import exact_duration, exact_size
from tandem.config.reference import configuration_markdown
from tandem.config.section import Section
from tandem.units import parse_bytes, parse_duration

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "docs" / "models.md"
SHIPPED = sorted(
    [
        *ROOT.glob("*.yaml"),
        *ROOT.glob("profiles/*.yaml"),
        *ROOT.glob("residency/*.yaml"),
        *ROOT.glob("docs/examples/*.yaml"),
    ]
)


@given(st.integers(0, 1 << 53))
def test_a_size_reads_back_as_itself(size: int) -> None:
    assert parse_bytes(exact_size(size)) == size


@given(st.one_of(st.integers(0, 10**7).map(float), st.integers(0, 10**7).map(lambda n: n / 1000), st.floats(1e-3, 1e6)))
def test_a_duration_reads_back_as_itself(seconds: float) -> None:
    assert parse_duration(exact_duration(seconds)) == pytest.approx(seconds, rel=1e-12)


def test_quantities_are_written_as_people_do() -> None:
    assert [exact_size(size) for size in (0, 8 << 20, 3 << 29, 98362432, 23041)] == [
        "0 B",
        "8 MiB",
        "1.5 GiB",
        "98362432 B",
        "22.501 KiB",
    ]
    assert [exact_duration(seconds) for seconds in (0, 0.4, 60, 90 * 86400, 90)] == [
        "0ms",
        "400ms",
        "1min",
        "90d",
        "90s",
    ]


@pytest.mark.parametrize("path", [path for path in SHIPPED if path.name != "compose.yaml"], ids=lambda path: path.name)
def test_every_document_we_ship_is_good(path: Path) -> None:
    check(path, {})


def test_the_profile_in_the_docs_is_good(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"^```yaml\n(# (profiles/\S+)\n.*?)^```$", MODELS.read_text(), re.DOTALL | re.MULTILINE)
    path = tmp_path / snippet[1]
    path.parent.mkdir()
    path.write_text(snippet[0])
    assert check(path, {}) == "profile"
    (tmp_path / "appliance.yaml").write_text(f"profile: {path.stem}\n")
    assert load(tmp_path / "appliance.yaml", environment={}).weights.path == tmp_path / "models" / path.stem


def test_the_default_appliance_says_only_defaults() -> None:
    """A newcomer's document must not differ from an empty one: its comments would lie."""
    shipped = load(ROOT / "appliance.yaml", environment={}).appliance
    assert shipped.model_dump() == Appliance().model_dump()


def test_configuration_md_is_what_the_models_say() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text()
    assert written == configuration_markdown(), "run: tandem schema --markdown > docs/configuration.md"


def sections() -> list[type[Section]]:
    found: list[type[Section]] = []
    waiting = list(Section.__subclasses__())
    while waiting:
        found.append(section := waiting.pop())
        waiting += section.__subclasses__()
    return [section for section in found if section.__module__ == "tandem.config.documents"]


def test_every_key_is_described_and_no_renamed_key_hides_one() -> None:
    for section in sections():
        assert section.__doc__, section
        for name, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{name}"
        assert not set(section.renamed) & set(section.model_fields), section


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_for_editors(kind: str) -> None:
    schema = json_schema(kind)
    json.dumps(schema)
    assert schema["additionalProperties"] is False
    assert "default" not in json.dumps(schema["properties"].get("slots", {}))


def test_the_schema_writes_defaults_with_units() -> None:
    limits = json_schema("appliance")["$defs"]["LimitsSection"]["properties"]
    assert limits["max_body"]["default"] == "8 MiB"
    assert limits["request_timeout"]["default"] == "10min"
    assert json_schema("profile").get("required") is None  # an extended profile may bring them


def test_documents_are_frozen() -> None:
    appliance = load(ROOT / "appliance.yaml", environment={}).appliance
    with pytest.raises(ValueError, match="frozen"):
        appliance.slots.count = 3  # type: ignore[misc, unused-ignore]
