from __future__ import annotations

from pathlib import Path

import pytest
from appliances import World, make_plan
from msgspec.structs import replace

from tandem.contract.plan import Paths, read_plan
from tandem.director.rundir import memory_of, read_memory_of_director, write_memory, write_plan, write_whole


def test_the_plan_and_its_sections_are_written(tmp_path: Path) -> None:
    plan = make_plan(run=tmp_path)
    write_plan(plan)
    assert read_plan(tmp_path) == plan
    sections = (tmp_path / "programs.conf").read_text()
    assert [line for line in sections.splitlines() if line.startswith("[")] == [
        "[program:director]",
        "[program:gateway]",
        "[program:engine]",
    ]


def test_a_directors_memory_is_found_again_or_counts_as_none(tmp_path: Path) -> None:
    world = World(make_plan(run=tmp_path))
    world.settle()
    assert read_memory_of_director(tmp_path) is None
    write_memory(tmp_path, world.state)
    assert read_memory_of_director(tmp_path) == world.state
    memory_of(tmp_path).write_bytes(b'{"plan": "of another version"}')
    assert read_memory_of_director(tmp_path) is None


def test_a_full_disk_leaves_the_old_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "plan.json"
    target.write_bytes(b"old")

    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as file:
            file.write(content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(target, b"new content")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert target.read_bytes() == b"old"


def test_a_plan_whose_directory_is_gone_is_an_error(tmp_path: Path) -> None:
    plan = replace(make_plan(), paths=Paths(str(tmp_path), str(tmp_path / "gone"), str(tmp_path)))
    with pytest.raises(OSError):
        write_plan(plan)
