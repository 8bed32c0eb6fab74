"""Where the memory in use lies: weights, rows, caches, each process, and everybody else. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tandem.contract.messages import KvUsage, MemoryPart, MemoryView
from tandem.memory.reading import MemoryReading

ENGINE = "engine"
OUTSIDE = "outside"


def engine_parts(held: int, loaded: int, kv: Iterable[KvUsage], caches: int) -> tuple[MemoryPart, ...]:
    """What an engine holds, in bytes, split so that the parts sum to `held`.

    `loaded` is what it held once its weights were in memory and no row had any. What is none of the named is the
    workspace: graphs, temporaries of passes, what the allocator keeps. Without the KV pool nobody knows which rows
    have memory: `kv` is empty, and they are part of that rest.
    """
    rows = [MemoryPart(f"rows of slot {usage.slot}, {usage.kind}", usage.committed) for usage in kv]
    others = [*rows, MemoryPart("caches", caches)]
    left = held - sum(part.bytes for part in others)
    weights = MemoryPart("weights and runtime", min(loaded, left))  # the heap may have shrunk since they were loaded
    rest = MemoryPart("workspace" if rows else "rows and workspace", left - weights.bytes)
    return (weights, *others, rest)


def memory_view(reading: MemoryReading, engine: Iterable[MemoryPart], processes: Mapping[str, int]) -> MemoryView:
    """`processes` are sizes in bytes of everything of ours, by name; the engine's own word about its parts, where it
    has spoken, replaces the one figure."""
    split = [MemoryPart(f"{ENGINE}: {part.name}", part.bytes) for part in engine]
    others = [MemoryPart(name, size) for name, size in processes.items() if not (split and name == ENGINE)]
    used = reading.total - reading.available
    parts = [*split, *others]
    outside = MemoryPart(OUTSIDE, used - sum(part.bytes for part in parts))
    return MemoryView(reading.total, reading.available, (*parts, outside), reading.free_blocks)
