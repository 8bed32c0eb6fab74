"""The parts of memory in use sum to it, whoever holds them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.contract.messages import KvUsage
from tandem.memory.reading import MemoryReading
from tandem.memory.view import engine_parts, memory_view

sizes = st.integers(0, 1 << 40)


@given(sizes, sizes, sizes, st.lists(sizes, max_size=4))
def test_an_engine_is_the_sum_of_its_parts(held: int, loaded: int, caches: int, rows: list[int]) -> None:
    kv = [KvUsage(slot, "attention", 1 << 40, size) for slot, size in enumerate(rows)]
    parts = engine_parts(held, loaded, kv, caches)
    assert sum(part.bytes for part in parts) == held
    assert [part.bytes for part in parts[1 : 1 + len(rows)]] == rows
    if sum(rows) + caches <= held:
        assert all(part.bytes >= 0 for part in parts), "also when less is held than once was loaded"


def test_rows_that_nobody_counts_are_named_with_the_rest() -> None:
    assert [part.name for part in engine_parts(10, 7, (), 0)] == ["weights and runtime", "caches", "rows and workspace"]


@given(sizes, sizes, st.dictionaries(st.sampled_from(["engine", "gateway", "narrator"]), sizes), st.booleans())
def test_the_view_is_the_memory_in_use(total: int, available: int, processes: dict[str, int], spoke: bool) -> None:
    engine = engine_parts(processes.get("engine", 0), 5, (), 0) if spoke else ()
    reading = MemoryReading(available=available, total=total, free_blocks=7)
    view = memory_view(reading, engine, processes)
    assert sum(part.bytes for part in view.parts) == total - available
    assert ("engine" in {part.name for part in view.parts}) == ("engine" in processes and not spoke)
    assert view.parts[-1].name == "outside"
    assert view.free_blocks == 7
