"""Roles under a real director and a real supervisord: asked for over its socket, held, and back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator

import pytest
from standins import CLAIM
from test_supervision import Box, until

from tandem.contract.channel import connect
from tandem.contract.messages import FreeRoles, RolesFreed, RoleState
from tandem.residency.journal import FILE

pytestmark = pytest.mark.wire
ROLES = ["narrator", "shadow-reader"]
SOON, LATER = 1.0, 600.0  # seconds that there has to be room before a role comes back


@pytest.fixture(scope="module")
def started() -> Iterator[Box]:
    box = Box()
    box.write(roles=ROLES, reload=SOON)
    assert box.up("--detach").wait(60) == 0
    yield box
    box.close()


@pytest.fixture
def box(started: Box) -> Box:
    """All are loaded; one that leaves stays away until the document says `SOON`."""
    edit(started, reload=SOON)
    until(lambda: roles(started) == dict.fromkeys(ROLES, RoleState.LOADED))
    edit(started, reload=LATER)
    return started


def edit(box: Box, **said: object) -> None:
    box.write(roles=ROLES, **said)
    until(lambda: (picture := box.picture()) and picture.plan_id == box.written)


def roles(box: Box) -> dict[str, RoleState]:
    picture = box.picture()
    return {role.name: role.state for role in picture.roles} if picture is not None else {}


def free(box: Box, size: int) -> RolesFreed:
    async def ask() -> RolesFreed:
        channel = await connect(box.paths.director_socket)
        answer = await channel.ask(FreeRoles(size), 60.0)
        channel.close()
        assert isinstance(answer, RolesFreed)
        return answer

    return asyncio.run(ask())


def story(box: Box) -> list[str]:
    lines = (box.base / FILE).read_text().splitlines()
    return [f"{event['subject']} {event['act']}" for event in map(json.loads, lines)]


def test_what_is_asked_for_leaves_at_once_is_held_and_comes_back(box: Box) -> None:
    before, told, heard = box.pids(), len(story(box)), len(box.words())
    answer = free(box, 1)
    assert answer.bytes == CLAIM
    assert roles(box) == {"narrator": RoleState.LOADED, "shadow-reader": RoleState.UNLOADED_FOR_MEMORY}
    assert box.program("shadow-reader").state == "held"
    ending = ["shadow-reader term", "shadow-reader end"]
    until(lambda: [word for word in box.words()[heard:] if word.startswith("shadow-reader")] == ending)
    edit(box, reload=SOON)
    until(lambda: roles(box)["shadow-reader"] is RoleState.LOADED)
    after = box.pids()
    assert {name: pid for name, pid in after.items() if name != "shadow-reader"} == {
        name: pid for name, pid in before.items() if name != "shadow-reader"
    }
    assert story(box)[:4] == [f"{name} {act}" for name in ROLES for act in ("loading", "loaded")]
    told_since = [f"shadow-reader {act}" for act in ("unloaded", "freed", "reloading", "reloaded")]
    assert story(box)[told:] == told_since
    assert "[roles] shadow-reader: unloaded for memory" in (box.base / "logs/director.log").read_text()


def test_more_than_there_is_gets_what_there_is(box: Box) -> None:
    assert free(box, 1 << 50).bytes == 2 * CLAIM
    assert roles(box) == dict.fromkeys(ROLES, RoleState.UNLOADED_FOR_MEMORY)


def test_a_role_that_is_killed_comes_back_and_nobody_else_is_touched(box: Box) -> None:
    before = box.pids()
    os.kill(before["narrator"], signal.SIGKILL)
    until(lambda: box.pids().get("narrator", before["narrator"]) != before["narrator"])
    until(lambda: roles(box) == dict.fromkeys(ROLES, RoleState.LOADED))
    assert box.program("narrator").restarts == 1
    assert others(box.pids()) == others(before)


def test_an_edit_of_a_role_restarts_that_role_alone(box: Box) -> None:
    before = box.pids()
    edit(box, reload=LATER, narrator=["--version", "2"])
    until(lambda: box.pids().get("narrator", before["narrator"]) != before["narrator"])
    until(lambda: roles(box) == dict.fromkeys(ROLES, RoleState.LOADED))
    assert others(box.pids()) == others(before)
    assert story(box)[-2:] == ["narrator loading", "narrator loaded"]


def others(pids: dict[str, int]) -> dict[str, int]:
    return {name: pid for name, pid in pids.items() if name != "narrator"}
