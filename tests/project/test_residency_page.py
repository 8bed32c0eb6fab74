"""docs/residency.md says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from tandem.contract.messages import RoleState
from tandem.director.publish import KEPT_OUT
from tandem.director.state import ProgramState
from tandem.residency import controller

PAGE = (Path(__file__).parents[2] / "docs" / "residency.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE)


def test_every_state_of_a_role_is_told() -> None:
    assert [name for name, _ in ROWS] == list(RoleState)


def test_the_words_of_status_are_those_that_it_prints() -> None:
    words = {*ProgramState, *KEPT_OUT.values(), "failed"}
    for name, said in ROWS:
        told = set(re.findall(r"`(\w+)`", said))
        kept_out = KEPT_OUT.get(RoleState(name))
        assert told <= words
        assert kept_out is None or told == {kept_out}


def test_every_act_of_the_journal_is_told() -> None:
    journal = PAGE[PAGE.index("## The journal") :]
    source = Path(controller.__file__).read_text()
    acts = set(re.findall(r'Event\("(\w+)"', source)) | set(controller.TOLD.values()) | {"loading", "reloading"}
    assert acts == {"loading", "loaded", "refused", "unloaded", "freed", "reloading", "reloaded", "failed"}
    assert all(f"`{act}`" in journal for act in acts)


def test_the_times_are_the_code_s() -> None:
    assert controller.PATIENCE == 1.0 and "under the hard floor for a second" in " ".join(PAGE.split())
