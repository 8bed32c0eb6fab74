from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tandem.config.documents import Figure, Weights
from tandem.config.weights import HubSource, hub_source, is_hub_directory, locate
from tandem.contract.plan import Basis


def weights(source: str, distribution: str | None = None) -> Weights:
    figure = Figure.model_validate({"size": "1 B", "basis": Basis.ESTIMATE})
    return Weights(source=source, distribution=distribution, in_memory={"float32": figure})


def test_a_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "carrier_of_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "model.gguf").write_bytes(b"x")
    monkeypatch.syspath_prepend(str(tmp_path))
    located = locate(weights("package:carrier_of_weights/model.gguf", "carrier==1"), tmp_path, tmp_path)
    assert (located.path, located.present, located.fetchable) == (package / "model.gguf", True, True)
    assert "carrier_of_weights" not in sys.modules


def test_a_package_that_is_not_installed_has_a_place_already(tmp_path: Path) -> None:
    located = locate(weights("package:no_such_carrier/model.gguf"), tmp_path, tmp_path)
    assert located.path.parts[-3:] == ("site-packages", "no_such_carrier", "model.gguf")
    assert (located.present, located.fetchable) == (False, False)


def test_a_path_is_beside_the_appliance(tmp_path: Path) -> None:
    assert locate(weights("path:models/x.gguf"), tmp_path, tmp_path / "state").path == tmp_path / "models/x.gguf"
    assert locate(weights("path:/srv/x.gguf"), tmp_path, tmp_path / "state").path == Path("/srv/x.gguf")


def test_a_hub_file_is_in_the_state_directory(tmp_path: Path) -> None:
    located = locate(weights("hub:owner/name/deep/x.gguf@abc123"), tmp_path, tmp_path / "state")
    assert located.path == tmp_path / "state/models/owner/name/abc123/deep/x.gguf"
    assert located.fetchable


def test_a_hub_file_has_an_address() -> None:
    file = hub_source("hub:owner/na.me/deep/x.gguf@v1")
    assert file == HubSource("owner/na.me", "deep/x.gguf", "v1")
    assert file.url("https://hub.example/") == "https://hub.example/owner/na.me/resolve/v1/deep/x.gguf"
    assert hub_source("hub:owner/name/x.gguf").revision == "main"


def test_a_hub_directory_is_pinned_by_its_commit_and_stands_apart_from_files(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    located = locate(weights(f"hub:owner/name@{commit}"), tmp_path, tmp_path)
    assert located.path == tmp_path / "checkpoints/owner/name" / commit
    assert (located.present, located.fetchable) == (False, True)
    source = hub_source(f"hub:owner/name@{commit}")
    assert source.url("https://h/", "config.json") == f"https://h/owner/name/resolve/{commit}/config.json"
    assert is_hub_directory(f"hub:owner/name@{commit}") and not is_hub_directory("hub:owner/name/x.gguf@main")


@pytest.mark.parametrize(
    "source",
    [
        "hub:owner/name",
        "hub:owner/name@main",
        "hub:owner/x.gguf",
        "hub:owner/name/../../../etc/passwd",
        "package:nothing",
        "package:a.b/x",
        "package:a/../x",
    ],
)
def test_sources_that_name_nothing(source: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="source is"):
        locate(weights(source), tmp_path, tmp_path)
