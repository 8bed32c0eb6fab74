"""What `tandem status` says of memory: what is free, how much of it in one piece, and who holds the rest."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tandem.cli.screen import status_lines
from tandem.contract.messages import ApplianceState, MemoryPart, MemoryView
from tandem.contract.plan import KeySource
from tandem.units import GIB

PLAN = SimpleNamespace(
    appliance="appliance.yaml",
    warnings=("nobody is let in",),
    gateway=SimpleNamespace(host="127.0.0.1", port=8080),
    live=SimpleNamespace(keys=KeySource()),
)
PARTS = (MemoryPart("engine: weights and runtime", 2 * GIB), MemoryPart("outside", 6 * GIB))


@pytest.mark.parametrize("blocks", [3 * GIB, None])
def test_free_blocks_stand_beside_what_is_available(blocks: int | None) -> None:
    view = MemoryView(24 * GIB, 16 * GIB, PARTS, blocks)
    picture = ApplianceState("plan", "serving", (), b"{}", 16 * GIB, 24 * GIB, 0.0, memory=view)
    lines = list(status_lines(picture, PLAN))  # type: ignore[arg-type]
    assert "memory: 16.0 GiB available of 24.0 GiB" in lines
    assert ("  free in blocks of 2 MiB and more: 3.0 GiB" in lines) == (blocks is not None)
    assert "  in use: engine: weights and runtime 2.0 GiB, outside 6.0 GiB" in lines
    assert lines[-1] == "warning: nobody is let in"
