"""docs/memory.md says what the code says."""

from __future__ import annotations

from pathlib import Path

from tandem.contract.messages import MemoryView, RefusalCode, RequestState
from tandem.engine.memory import LOOK_EVERY
from tandem.memory.budget import Level

PROJECT = Path(__file__).parents[2]
PAGE = " ".join((PROJECT / "docs" / "memory.md").read_text().split())
LEVELS = {
    Level.STORE: "shared heads",
    Level.ANCHORS: "resume points",
    Level.END: "ends of answers",
    Level.STASH: "rows put aside",
    Level.PARK: "parked conversations",
    Level.PIN: "pinned ones",
}


def test_its_words_are_those_of_the_code() -> None:
    for word in (RefusalCode.NO_MEMORY, RefusalCode.MEMORY_TIMEOUT, RequestState.WAITING_MEMORY):
        assert f"`{word}`" in PAGE
    assert "free_blocks" in MemoryView.__struct_fields__ and "`free_blocks`" in PAGE
    assert LOOK_EVERY == 0.1 and "ten times a second" in PAGE


def test_caches_give_back_in_the_order_it_tells() -> None:
    assert f"Caches, in this order: {', '.join(LEVELS[level] for level in sorted(Level))}." in PAGE


def test_the_default_profile_has_the_pool() -> None:
    assert "kv_pool: on" in (PROJECT / "profiles" / "smollm2-135m.yaml").read_text()
    assert "the default profile has it on" in PAGE
