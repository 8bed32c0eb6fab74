"""Edits as editors make them, on real files. Only content counts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tandem.director.watch import Contents, edits, read_contents

QUIET = 1.0  # seconds in which nothing may come
SOON = 20.0  # seconds: only a failure takes them


async def first_edit(
    documents: list[Path], act: Callable[[], Awaitable[None] | None], within: float
) -> tuple[Contents, float] | None:
    """What `edits` says after `act`, and how long that took; None when it stays quiet."""
    async with contextlib.aclosing(edits(documents, read_contents(documents))) as stream:
        coming = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.2)
        assert not coming.done(), "nothing was edited yet"
        started = time.monotonic()
        waiting = act()
        if waiting is not None:
            await waiting
        done, _ = await asyncio.wait({coming}, timeout=within)
        if done:
            return coming.result(), time.monotonic() - started
        coming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await coming
        return None


def see(
    documents: list[Path], act: Callable[[], Awaitable[None] | None], within: float = SOON
) -> tuple[Contents, float] | None:
    return asyncio.run(first_edit(documents, act, within))


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "appliance.yaml"
    path.write_text("slots: 1\n")
    return path


def by_renaming(document: Path) -> None:
    part = document.with_name(".appliance.yaml.swp")
    part.write_text("slots: 2\n")
    part.replace(document)


def in_place(document: Path) -> None:
    with document.open("w") as file:
        file.write("slots: 2\n")


def by_backup(document: Path) -> None:
    document.rename(document.with_name("appliance.yaml~"))
    document.write_text("slots: 2\n")


@pytest.mark.parametrize("edit", [by_renaming, in_place, by_backup])
def test_an_edit_is_seen_well_within_a_second(document: Path, edit: Callable[[Path], None]) -> None:
    waits = []
    for _ in range(4):  # a busy machine may be late itself, not every time
        document.write_text("slots: 1\n")
        seen = see([document], lambda: edit(document))
        assert seen is not None
        contents, took = seen
        assert contents == read_contents([document])
        waits.append(took)
        if took < 0.8:
            return
    raise AssertionError(waits)


def test_the_second_edit_by_renaming_is_seen_too(document: Path) -> None:
    """Watching the file instead of its folder would lose it with the first rename."""

    async def twice() -> list[Contents]:
        found = []
        async with contextlib.aclosing(edits([document], read_contents([document]))) as stream:
            for text in ("slots: 2\n", "slots: 3\n"):
                coming = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0.15)
                part = document.with_name("part")
                part.write_text(text)
                part.replace(document)
                found.append(await asyncio.wait_for(coming, SOON))
        return found

    first, second = asyncio.run(twice())
    assert first != second == read_contents([document])


def test_delete_and_create_is_one_edit(document: Path) -> None:
    async def recreate() -> None:
        document.unlink()
        await asyncio.sleep(0.4)
        document.write_text("slots: 2\n")

    seen = see([document], recreate)
    assert seen is not None and seen[0] == read_contents([document])
    assert seen[0][str(document)] != ""


def test_a_document_that_stays_away_is_told_in_the_end(document: Path) -> None:
    async def remove() -> None:
        document.unlink()

    seen = see([document], remove)
    assert seen is not None and seen[0] == {str(document): ""}


def test_truncating_and_then_writing_is_one_edit(document: Path) -> None:
    async def slowly() -> None:
        with document.open("w") as file:
            file.flush()
            await asyncio.sleep(0.02)
            file.write("slots: 2\n")

    seen = see([document], slowly)
    assert seen is not None and seen[0] == read_contents([document])


def test_a_touch_and_a_rewrite_of_the_same_are_no_edits(document: Path) -> None:
    def touch() -> None:
        os.utime(document)
        document.write_text("slots: 1\n")
        document.with_name("other.yaml").write_text("slots: 7\n")

    assert see([document], touch, QUIET) is None


def test_a_document_that_was_looked_for_and_appears(tmp_path: Path, document: Path) -> None:
    missing = tmp_path / "profiles" / "mine.yaml"

    def create() -> None:
        missing.parent.mkdir()
        missing.write_text("model: x\n")

    seen = see([document, missing], create)
    assert seen is not None and seen[0][str(missing)] != ""


def test_what_was_edited_while_nobody_looked_is_told_at_once(document: Path) -> None:
    async def first() -> Contents:
        async with contextlib.aclosing(edits([document], {str(document): "of another time"})) as stream:
            return await asyncio.wait_for(anext(stream), SOON)

    assert asyncio.run(first()) == read_contents([document])


def test_edits_are_seen_where_the_kernel_has_no_watch_left(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "OS file watch limit reached")

    monkeypatch.setattr("tandem.director.watch.awatch", full)
    seen = see([document], lambda: by_renaming(document))
    assert seen is not None and seen[0] == read_contents([document])


MOUNTED = """
import asyncio, contextlib, subprocess, sys
from pathlib import Path
from tandem.director.watch import edits, read_contents

async def main(host, mounted):
    subprocess.run(["mount", "--bind", host, mounted], check=True)
    async with contextlib.aclosing(edits([mounted], read_contents([mounted]))) as stream:
        coming = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.3)
        host.write_text("slots: 2\\n")
        await asyncio.wait_for(coming, 20)

asyncio.run(main(*map(Path, sys.argv[1:])))
"""


def test_a_single_file_mounted_into_a_container(tmp_path: Path, document: Path) -> None:
    """Its folder gets no event: the host writes elsewhere."""
    host = tmp_path / "host"
    host.mkdir()
    (host / "appliance.yaml").write_text("slots: 1\n")
    command = ["unshare", "--mount", sys.executable, "-c", MOUNTED, str(host / "appliance.yaml"), str(document)]
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    subprocess.run(command, check=True, timeout=60)
