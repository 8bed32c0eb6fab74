"""What `make` says when it cannot go on: one sentence that tells what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
MAKE = shutil.which("make") or "make"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files `make` needs, in a folder with a space, with nothing set up."""
    folder = tmp_path / "my box"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(PROJECT / name, folder)
    shutil.copytree(PROJECT / ".ci", folder / ".ci")
    return folder


def make(folder: Path, *words: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    """As from a shell, also when these tests were started by `make`, which tells its children so."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment["PATH"] = path
    return subprocess.run([MAKE, *words], cwd=folder, capture_output=True, text=True, env=environment)


def test_without_python_it_says_which_one_is_needed(checkout: Path) -> None:
    ran = make(checkout, "up", path="/nowhere")
    assert ran.returncode != 0
    assert "tandem needs Python 3.11 or newer and found none on the PATH" in ran.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("target", ["down", "status", "logs"])
def test_what_was_never_set_up_is_not_set_up_to_be_stopped(checkout: Path, target: str) -> None:
    ran = make(checkout, target)
    assert ran.returncode != 0
    assert "nothing is set up here yet: make up" in ran.stderr
    assert not (checkout / ".venv").exists()


def test_plain_make_lists_every_target_a_person_may_want(checkout: Path) -> None:
    listed = make(checkout)
    assert listed.returncode == 0
    assert [line.split()[1] for line in listed.stdout.splitlines()] == [
        "help", "up", "down", "status", "logs", "test", "test-slow", "test-gpu", "test-clients", "test-libraries",
        "check", "lint", "fix", "bench", "bench-peers", "bench-growth", "image-lint",
    ]  # fmt: skip
