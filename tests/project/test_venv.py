"""The set-up script behind `make`: it does nothing twice, survives interruption, and explains what failed."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "venv.py"


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, owning an empty project, with the two commands it would run recorded instead of run."""
    spec = importlib.util.spec_from_file_location("tandem_venv", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    for name, path in {
        "PROJECT": tmp_path,
        "VENV": tmp_path / ".venv",
        "PYTHON": tmp_path / ".venv/bin/python",
        "STAMP": tmp_path / ".venv/tandem-stamp.json",
        "MARK": tmp_path / ".venv/tandem-unfinished",
        "LOG": tmp_path / ".venv/pip.log",
    }.items():
        monkeypatch.setattr(module, name, path)
    ran: list[list[str]] = []

    def run(command: list[str], what: str, log: Path | None) -> None:
        ran.append(command)
        if "venv" in command:
            module.PYTHON.parent.mkdir(parents=True)
            module.PYTHON.symlink_to(sys.executable)

    monkeypatch.setattr(module, "really_run", module.run, raising=False)
    monkeypatch.setattr(module, "run", run)
    module.ran = ran  # type: ignore[attr-defined]
    return module


def test_the_second_time_nothing_is_done(venv: ModuleType) -> None:
    assert venv.main(["engine"]) == 0
    assert [command[-1] for command in venv.ran] == [str(venv.VENV), ".[engine]"]
    venv.ran.clear()
    assert venv.main(["engine"]) == 0
    assert venv.ran == []


def test_a_further_extra_joins_the_ones_there(venv: ModuleType) -> None:
    venv.main(["engine"])
    venv.main(["engine", "dev"])
    assert venv.ran[-1][-1] == ".[dev,engine]"
    venv.ran.clear()
    venv.main(["engine"])
    assert venv.ran == []


def test_changed_dependencies_are_installed_into_the_same_environment(venv: ModuleType) -> None:
    venv.main(["engine", "dev"])
    (venv.PROJECT / "pyproject.toml").write_text("[project]\n# another dependency\n")
    venv.ran.clear()
    venv.main(["engine"])
    assert [command[-1] for command in venv.ran] == [".[dev,engine]"]


@pytest.mark.parametrize("damage", ["unfinished", "moved", "no interpreter"])
def test_a_broken_environment_is_made_afresh(venv: ModuleType, damage: str) -> None:
    venv.main(["engine"])
    leftover = venv.VENV / "leftover"
    leftover.touch()
    match damage:
        case "unfinished":
            venv.MARK.touch()
        case "moved":
            venv.STAMP.write_text(json.dumps({**json.loads(venv.STAMP.read_text()), "place": "/elsewhere"}))
        case "no interpreter":
            venv.PYTHON.unlink()
            venv.PYTHON.symlink_to("/gone/python")
    assert venv.main(["engine"]) == 0
    assert not leftover.exists()
    assert venv.read_stamp()["extras"] == ["engine"]


def test_an_environment_made_by_hand_is_kept(venv: ModuleType) -> None:
    venv.main(["engine"])
    venv.STAMP.write_text("{")
    leftover = venv.VENV / "leftover"
    leftover.touch()
    assert venv.main(["engine"]) == 0
    assert leftover.exists()
    assert venv.read_stamp()["extras"] == ["engine"]


def test_a_failed_installation_shows_the_end_of_its_log_and_is_begun_afresh(
    venv: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = venv.run

    def fail_to_install(command: list[str], what: str, log: Path | None) -> None:
        recorded(command, what, log)
        if log is not None:
            venv.really_run([sys.executable, "-c", "print('no space left'); raise SystemExit(3)"], what, log)

    with monkeypatch.context() as context:
        context.setattr(venv, "run", fail_to_install)
        assert venv.main(["engine"]) == 1
    said = capsys.readouterr().err
    assert "  no space left\n" in said
    assert "installing failed (status 3)" in said
    assert str(venv.LOG) in said
    venv.ran.clear()
    assert venv.main(["engine"]) == 0
    assert [command[-1] for command in venv.ran] == [str(venv.VENV), ".[engine]"]


def test_a_python_without_venv_is_told_in_one_sentence(
    venv: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venv.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())
    assert venv.main(["engine"]) == 1
    said = capsys.readouterr().err
    assert "apt install python3-venv" in said
    assert said.count("\n") == 1


def test_two_at_once_take_turns(venv: ModuleType) -> None:
    with (venv.PROJECT / "pyproject.toml").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        other = threading.Thread(target=venv.main, args=(["engine"],))
        other.start()
        other.join(timeout=0.2)
        assert other.is_alive()
        assert venv.ran == []
        fcntl.flock(held, fcntl.LOCK_UN)
    other.join(timeout=10)
    assert len(venv.ran) == 2


def test_an_old_python_is_told_in_one_sentence(tmp_path: Path) -> None:
    # The version is read before anything else is, so a lie about it in a child process is enough.
    lie = f"import sys, runpy; sys.version_info = (3, 9); runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    ran = subprocess.run([sys.executable, "-c", lie], capture_output=True, text=True)
    assert ran.returncode == 1
    assert "needs Python 3.11 or newer" in ran.stderr
    assert ran.stderr.count("\n") == 1
