"""What a file holds is read once, and again after anything that may have changed it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.contract import content
from tandem.contract.content import remember, remembered_sha256, sha256_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights " * 1000)
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are milliseconds old."""
    monkeypatch.setattr(content, "_SETTLED", -1)


def reads(path: Path, state: Path) -> tuple[str, bool]:
    """What it holds, and whether it was read for that."""
    told: list[int] = []
    return remembered_sha256(path, state, lambda done, total: told.append(done)), bool(told)


def truth(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_it_is_read_once(file: Path, state: Path) -> None:
    assert reads(file, state) == (truth(file), True)
    assert reads(file, state) == (truth(file), False)


def rewrite(file: Path) -> None:
    file.write_bytes(b"WEIGHTS " * 1000)


def rewrite_and_hide_it(file: Path) -> None:
    before = file.stat()
    rewrite(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(file: Path) -> None:
    other = file.with_name("other")
    shutil.copy2(file, other)
    rewrite_and_hide_it(other)
    other.replace(file)


def cut(file: Path) -> None:
    os.truncate(file, 17)


@pytest.mark.parametrize("change", [rewrite, rewrite_and_hide_it, replace, cut])
def test_it_is_read_again_after_any_change(file: Path, state: Path, change: Callable[[Path], None]) -> None:
    before, _ = reads(file, state)
    change(file)
    assert reads(file, state) == (truth(file), True)
    assert truth(file) != before


def test_what_has_changed_just_now_may_change_again_unseen(
    file: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "_SETTLED", 60 * 1_000_000_000)
    assert reads(file, state) == reads(file, state) == (truth(file), True)
    remember(file, state, truth(file))  # whoever wrote it, and nobody else can
    assert reads(file, state) == (truth(file), False)


def test_files_that_are_gone_are_forgotten(file: Path, state: Path) -> None:
    reads(file, state)
    other = file.with_name("other")
    shutil.copy(file, other)
    file.unlink()
    reads(other, state)
    kept = (state / "contents.json").read_text()
    assert str(other) in kept and str(file) not in kept


@pytest.mark.parametrize("damage", ["", "{", '{"a": 1}', "[]"])
def test_a_damaged_memory_is_none(file: Path, state: Path, damage: str) -> None:
    reads(file, state)
    (state / "contents.json").write_text(damage)
    assert reads(file, state) == (truth(file), True)
    assert reads(file, state) == (truth(file), False)


def test_where_nothing_can_be_kept_it_is_read_each_time(file: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "no" / "such" / "folder"
    assert reads(file, nowhere) == reads(file, nowhere) == (truth(file), True)


def test_progress_reaches_the_whole(file: Path) -> None:
    told: list[tuple[int, int]] = []
    assert sha256_of(file, lambda done, total: told.append((done, total))) == truth(file)
    assert told[-1] == (8000, 8000)
