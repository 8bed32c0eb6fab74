from __future__ import annotations

from pathlib import Path

import pytest

from tandem.config import load
from tandem.config.settings import as_variables, find_overridden
from tandem.errors import DocumentError


@pytest.fixture
def appliance(tmp_path: Path) -> Path:
    path = tmp_path / "appliance.yaml"
    path.write_text("slots: {count: 2, side_window: 4096}\n")
    return path


def test_flags_win_over_variables_and_variables_over_the_document(appliance: Path) -> None:
    environment = {"TANDEM_SLOTS__COUNT": "3", "TANDEM_LISTEN__PORT": "8100"}
    documents = load(appliance, ["slots.count=5"], environment)
    assert documents.appliance.slots.count == 5
    assert documents.appliance.slots.side_window == 4096
    assert documents.appliance.listen.port == 8100
    assert load(appliance, [], environment).appliance.slots.count == 3


def test_what_the_document_says_in_vain_is_found(appliance: Path) -> None:
    flags = ["slots.count=5", "slots.side_window=4096", "limits.max_queue=3"]
    documents = load(appliance, flags, {"TANDEM_SLOTS__COUNT": "3"})
    (said,) = find_overridden(documents.layers)
    assert said == (
        "`slots.count: 2` has no effect: `--set slots.count`, or `TANDEM_SLOTS__COUNT`, of `tandem up` holds this key"
    )


def test_the_last_flag_wins(appliance: Path) -> None:
    assert load(appliance, ["slots.count=5", "slots.count=6"], {}).appliance.slots.count == 6


def test_values_are_read_as_in_the_document(appliance: Path) -> None:
    environment = {
        "TANDEM_MEMORY__FLOOR": "1.5 GiB",
        "TANDEM_MEMORY__KV_POOL": "on",
        "TANDEM_LISTEN__CORS_ORIGINS": '["https://a.example", "https://b.example"]',
        "TANDEM_SLOTS": "{count: 7, graphs: off}",
        "TANDEM_LISTEN__HOST": "0.0.0.0",
    }
    documents = load(appliance, ["limits.queue_timeout=90s", "profile=qwen3.8-27b"], environment)
    said = documents.appliance
    assert (said.memory.floor, said.memory.kv_pool) == (3 << 29, True)
    assert said.listen.cors_origins == ("https://a.example", "https://b.example")
    assert (said.slots.count, said.slots.graphs, said.slots.side_window) == (7, False, 4096)
    assert float(said.limits.queue_timeout) == 90
    assert documents.profile_name == "qwen3.8-27b"


def test_an_error_names_the_variable_or_the_flag(appliance: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        load(appliance, ["slots.graphs=perhaps"], {"TANDEM_SLOTS__COUNT": "many"})
    said = {(problem.place.file, problem.place.path) for problem in caught.value.problems if problem.place}
    assert said == {("--set slots.graphs", "slots.graphs"), ("TANDEM_SLOTS__COUNT", "slots.count")}


def test_a_variable_hides_the_document_it_overrides(appliance: Path) -> None:
    """The document's own value is not looked at, so a bad one under a good override is no error."""
    appliance.write_text("slots: {count: many}\n")
    assert load(appliance, ["slots.count=2"], {}).appliance.slots.count == 2


def test_variables_of_others_and_ours_are_left_alone(appliance: Path) -> None:
    load(appliance, [], {"TANDEM_RUN": "/run", "TANDEM_LOGS": "/logs", "TANDEMONIUM": "x", "PATH": "/bin"})


def test_an_unknown_variable_is_an_error_and_its_value_stays_unseen(appliance: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        load(appliance, [], {"TANDEM_SLOT__COUNT": "s3cret"})
    (problem,) = caught.value.problems
    assert problem.place is not None
    assert "s3cret" not in problem.place.source + problem.message
    assert problem.help == "did you mean `slots`?"


def test_flags_can_travel_as_variables(appliance: Path) -> None:
    flags = ["slots.count=5", "listen.host=::1"]
    variables = as_variables(flags)
    assert variables == {"TANDEM_SLOTS__COUNT": "5", "TANDEM_LISTEN__HOST": "::1"}
    assert load(appliance, [], variables).appliance == load(appliance, flags, {}).appliance
