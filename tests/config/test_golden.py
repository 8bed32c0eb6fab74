"""Every bad document beside what is said about it: the message is the product.

`NAME.yaml` is an appliance, `NAME.set` what lies over it, `NAME.txt` the words. A document that loads is planned on
its residency's box, where it must not fit. `GOLDEN=write pytest ...` writes the words anew; read them before you
keep them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandem.config import load
from tandem.config.report import render_error
from tandem.contract.plan import Box
from tandem.errors import DocumentError, DoesNotFit
from tandem.planner.compile import compile_plan

GOLDEN = Path(__file__).parent / "golden"
SECRETS = ("verysecret", "correct", "horse", "battery", "staple")


def overrides(path: Path) -> tuple[list[str], dict[str, str]]:
    lines = path.read_text().splitlines() if path.exists() else []
    flags = [line.removeprefix("--set ") for line in lines if line.startswith("--set ")]
    variables = dict(line.split("=", 1) for line in lines if not line.startswith("--set "))
    return flags, variables


def words(path: Path) -> str:
    flags, variables = overrides(path.with_suffix(".set"))
    with pytest.raises(DocumentError) as caught:
        documents = load(path.relative_to(Path.cwd()), flags, variables)
        box = documents.residency.box
        assert box is not None
        compile_plan(documents, Box("this box", box.total, box.available, box.cpus, declared=True))
    assert isinstance(caught.value, DoesNotFit) == path.stem.startswith("fit_")
    assert str(path) in caught.value.files
    return render_error(caught.value, "nothing was changed, the running plan stays as it is")


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_bad_document_says(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    said = words(path).replace(str(GOLDEN), "HERE")
    if os.environ.get("GOLDEN") == "write":
        path.with_suffix(".txt").write_text(said)
    assert said == path.with_suffix(".txt").read_text()
    for secret in SECRETS:
        assert secret not in said
