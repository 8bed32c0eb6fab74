"""The commands about documents, as a shell sees them: what they print and the status they end with."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tandem.cli import main
from tandem.contract.plan import decode_plan

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    returncode: int | str | None
    stdout: str
    stderr: str


class Run(Protocol):
    def __call__(self, *arguments: str, cwd: Path = ROOT) -> Done: ...


@pytest.fixture
def tandem(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process: a child each would take seconds."""

    def run(*arguments: str, cwd: Path = ROOT) -> Done:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["tandem", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
        sys.stdout.flush()
        said = capfd.readouterr()
        return Done(ended.value.code or 0, said.out, said.err)

    return run


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    (tmp_path / "appliance.yaml").write_text("slots: {cuont: 2}\n")
    return tmp_path


def test_check_says_good(tandem: Run) -> None:
    done = tandem("check")
    assert (done.returncode, done.stdout) == (0, "appliance.yaml: good (appliance)\n")
    assert done.stderr == "" or "`tandem pull`" in done.stderr  # where its weights are not here


def test_check_warns_of_what_plan_warns_of(tmp_path: Path, tandem: Run) -> None:
    for folder in ("profiles", "residency"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "keys.txt").write_text("ann:key\n")
    said = ("memory: {floor: 900 GiB}", "keys: {file: keys.txt, admin: [zed]}")  # what does not fit is another matter
    role = "roles: {narrator: {model: nope, claim: 1 GiB}}"
    (tmp_path / "appliance.yaml").write_text("\n".join((*said, role)))
    done = tandem("check", cwd=tmp_path)
    assert done.returncode == 0
    assert "warning: the model of narrator is not at " in done.stderr
    assert "warning: `keys.admin` names `zed`" in done.stderr
    assert len(json.loads(tandem("check", "--json", cwd=tmp_path).stdout)["warnings"]) >= 2


@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_model_to_draft_that_is_not_there_is_told_before_anything_starts(
    tmp_path: Path, tandem: Run, command: str
) -> None:
    for folder in ("profiles", "residency"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    document = tmp_path / "appliance.yaml"
    document.write_text("draft:\n  model: {weights: 'path:nope', in_memory: 1 GiB}\n")
    done = tandem(command, cwd=tmp_path)
    assert done.returncode == 2
    assert f"there is no model to draft at {tmp_path / 'nope'}" in done.stderr
    assert "appliance.yaml:2:" in done.stderr and "draft.model: off" in done.stderr
    document.write_text("draft:\n  model: {weights: 'path:nope', in_memory: 1 GiB, enabled: off}\n")
    assert tandem(command, cwd=tmp_path).returncode == 0


def test_check_reads_every_document_it_is_given(bad: Path, tandem: Run) -> None:
    done = tandem("check", str(bad / "appliance.yaml"), "profiles/_flashnext.yaml", "residency/dgx-spark.yaml")
    assert done.returncode == 2
    assert done.stdout.splitlines() == [
        "profiles/_flashnext.yaml: good (profile)",
        "residency/dgx-spark.yaml: good (residency)",
    ]
    assert "did you mean `count`?" in done.stderr


def test_a_bad_document_is_status_2_and_never_a_traceback(bad: Path, tandem: Run) -> None:
    for command in ("check", "plan", "pull"):
        done = tandem(command, cwd=bad)
        assert (command, done.returncode) == (command, 2)
        assert done.stderr.startswith(
            "error[unknown-key]: unknown key `cuont`\n --> appliance.yaml:1:9  (slots.cuont)\n"
        )
        assert "Traceback" not in done.stderr


def test_json_has_the_records(bad: Path, tandem: Run) -> None:
    for command in ("check", "plan"):
        done = tandem(command, "--json", cwd=bad)
        assert done.returncode == 2
        assert json.loads(done.stdout)["errors"][0]["place"]["path"] == "slots.cuont"
        assert done.stderr == ""
    assert json.loads(tandem("check", "--json").stdout)["errors"] == []


def test_a_plan_that_does_not_fit_is_status_3_and_still_shows_what_slots_cost(tandem: Run) -> None:
    flags = (
        "--box",
        "dgx-spark",
        "--profile",
        "qwen3.8-27b",
        "--set",
        "slots.count=4",
        "--set",
        "slots.side_window=262144",
    )
    done = tandem("plan", *flags)
    assert done.returncode == 3
    assert "104.25 GiB of KV before the first request" in done.stdout
    assert "error[does-not-fit]" in done.stderr
    assert " --> --set slots.count  (slots.count)" in done.stderr


def test_the_spark_s_numbers(tandem: Run) -> None:
    said = tandem("plan", "--box", "dgx-spark", "--profile", "qwen3.8-27b").stdout
    rows = [line.split() for line in said.splitlines()]
    assert "= 106,752 bytes a token" in said
    assert ["65,536", "on", "6.516", "7.500", "14.0", "GiB", "measured"] in rows
    assert ["65,536", "off", "6.516", "1.500", "8.0", "GiB", "configured", "these", "slots"] in rows
    assert ["8,192", "on", "0.814", "7.500", "8.3", "GiB", "measured"] in rows
    assert "4 slots of 262,144 without the pool: 104.25 GiB of KV before the first request" in said


def test_refused_roles_say_why(tandem: Run) -> None:
    said = " ".join(tandem("plan", "docs/examples/spark-with-roles.yaml", "--box", "dgx-spark").stdout.split())
    assert "not loaded: kept free for requests: 28.97 available, 8.25 still to grow" in said
    assert "14.22" in said
    assert "17.72" in said


def test_plan_as_json_is_the_plan(tandem: Run) -> None:
    done = tandem("plan", "--json", "--box", "laptop")
    assert decode_plan(done.stdout.encode()).box.name == "laptop"


def test_diff_says_the_class_and_what_happens(tmp_path: Path, tandem: Run) -> None:
    (tmp_path / "other.yaml").write_text("slots: {count: 2}\nlimits: {max_queue: 3}\n")
    done = tandem("plan", "--diff", str(tmp_path / "other.yaml"))
    assert done.returncode == 0
    assert done.stdout.startswith("engine: processes would drain and restart\n")
    assert "limits.max_queue: 64 -> 3: acts at once" in done.stdout
    assert "if it does not, the plan before comes back by itself" in done.stdout
    record = json.loads(tandem("plan", "--json", "--diff", str(tmp_path / "other.yaml")).stdout)
    assert (record["kind"], record["restarts"]) == ("engine", ["engine"])


def test_diff_with_the_same_is_none(tandem: Run) -> None:
    assert tandem("plan", "--diff", "appliance.yaml").stdout.startswith("none:")


def test_a_box_that_is_not_declared(tmp_path: Path, tandem: Run) -> None:
    text = "\n".join(line for line in (ROOT / "residency/laptop.yaml").read_text().splitlines() if "box" not in line)
    (tmp_path / "residency").mkdir()
    (tmp_path / "residency/mine.yaml").write_text(text)
    (tmp_path / "appliance.yaml").write_text("")
    done = tandem("plan", "--box", "mine", cwd=tmp_path)
    assert done.returncode == 3
    assert "declares no `box`" in done.stderr
    assert tandem("plan", "--box", "laptp", cwd=tmp_path).returncode == 2


def test_schema_of_each_kind(tandem: Run) -> None:
    for kind, key in (("appliance", "slots"), ("profile", "weights"), ("residency", "claims")):
        assert key in json.loads(tandem("schema", kind).stdout)["properties"]
    assert tandem("schema", "profil").returncode == 2


def test_import_env_writes_a_document_that_checks(tmp_path: Path, tandem: Run) -> None:
    (tmp_path / "serve.env").write_text("QSE_PARALLEL=2\nQSE_SIDE_SLOT_CONST_GB=1.134\nQWEN38_SIDE_DISK=off\n")
    done = tandem("import-env", "serve.env", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == "`QWEN38_SIDE_DISK=off`: there is no cache of this kind to size or to switch\n"
    (tmp_path / "appliance.yaml").write_text(done.stdout)
    assert tandem("check", cwd=tmp_path).returncode == 0
    assert tandem("import-env", "absent.env", cwd=tmp_path).returncode == 2


def test_pull_says_present_when_it_is(tandem: Run) -> None:
    done = tandem("pull")
    assert done.returncode == 0
    assert done.stdout.endswith("SmolLM2-135M-Instruct.Q4_1.gguf: present, sha256 as pinned\n")
    assert done.stderr == "verifying SmolLM2-135M-Instruct.Q4_1.gguf\n"


def test_documents_need_no_torch() -> None:
    for arguments in (["check"], ["plan"], ["schema"]):
        code = (
            "import sys; sys.argv[1:] = " + repr(arguments) + "\n"
            "from tandem.cli import main\n"
            "try: main()\n"
            "except SystemExit as done: assert not done.code\n"
            "assert not {'torch', 'transformers', 'litestar', 'httpx'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
