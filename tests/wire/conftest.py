from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from wire_appliance import Appliance, until

for folder in ("model", "text"):  # for `checkpoints` and `tiny_tokenizer`
    sys.path.append(str(Path(__file__).parents[1] / folder))


@pytest.fixture(scope="session")
def started() -> Iterator[Appliance]:
    appliance = Appliance()
    up = appliance.run("up", "--detach")
    assert up.returncode == 0, up.stdout + up.stderr
    appliance.plain = until(appliance.ready_health)["plan"]
    yield appliance
    appliance.close()


@pytest.fixture
def appliance(started: Appliance) -> Appliance:
    """The shared appliance, idle and under its plain document."""
    started.write()
    until(lambda: (health := started.ready_health()) and health["plan"] == started.plain)
    until(started.all_pids)
    until(lambda: (health := started.ready_health()) and health["engine"]["running"] == 0)
    return started
