"""The run directory: what lies in it, and the only way anything is written there, whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from tandem.contract.plan import Plan, encode_plan
from tandem.director.state import State
from tandem.planner.programs import supervisord_programs


def write_plan(plan: Plan) -> None:
    """`plan.json` for the processes, `programs.conf` for supervisord. Raises `OSError`.

    The sections go first: a plan that is there has its sections.
    """
    write_whole(Path(plan.paths.run, "programs.conf"), supervisord_programs(plan).encode())
    write_whole(plan.paths.plan, encode_plan(plan))


def memory_of(run: Path) -> Path:
    """Where a director leaves what the next one must know."""
    return run / "director.json"


def write_memory(run: Path, state: State) -> None:
    write_whole(memory_of(run), msgspec.json.encode(state))


def read_memory_of_director(run: Path) -> State | None:
    """None when there is none, or none that this version understands: what runs is then adopted as the plan's."""
    try:
        return msgspec.json.decode(memory_of(run).read_bytes(), type=State)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_whole(path: Path, content: bytes) -> None:
    """A reader sees the old content or the new, also when the disk fills up in between."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
