"""What the engine takes, part by part, in the order it takes it, and what our other processes take beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandem.config.documents import EngineOnBox, Profile
from tandem.contract.plan import Basis, MemoryItem
from tandem.planner.arithmetic import declared_peak, slot_bytes
from tandem.planner.serving import Serving
from tandem.units import GIB, MIB

BESIDE: Final = MemoryItem(
    "gateway, director, supervisord", 176 * MIB, Basis.MEASURED, "resident while they serve the default model"
)


@dataclass(frozen=True, slots=True)
class EngineMemory:
    items: tuple[MemoryItem, ...]  # they add up to `peak`
    peak: int  # declared: the most the engine may grow to
    loaded: int  # what it holds once loaded and idle
    caches: int  # of `peak`, what copies of conversations may take
    shortfall: int  # how far the box's declared peak lies under what its parts need; 0 when it does not


def engine_memory(profile: Profile, serving: Serving, seen: EngineOnBox | None) -> EngineMemory:
    """The engine's parts; `seen` is what the residency document knows of this engine on this box.

    Without it the parts and the caches are all there is. With it, what its declared peak leaves over the parts is the
    caches' room.
    """
    rows = serving.window * serving.bytes_a_token
    parts = _parts(profile, serving)
    needed = sum(item.bytes for item in parts) + (rows if serving.kv_pool else 0)
    configured = needed + serving.caches if seen is None else seen.peak.size
    caches = MemoryItem(
        "caches",
        max(0, configured - needed),
        seen.peak.basis if seen else Basis.CONFIGURED,
        "what the engine's declared peak leaves over its parts" if seen else "copies of conversations and heads",
    )
    sides = _side_slots(serving)
    fixed = [item.bytes for item in sides]
    peak = declared_peak(max(configured, needed), fixed, rows, pool=serving.kv_pool)
    idle = seen.loaded.size if seen and seen.loaded else None
    loaded = peak if idle is None else declared_peak(idle, fixed, rows, pool=serving.kv_pool)
    return EngineMemory(
        (*parts, *([caches] if caches.bytes else []), *sides), peak, loaded, caches.bytes, max(0, needed - configured)
    )


def _parts(profile: Profile, serving: Serving) -> list[MemoryItem]:
    weights = profile.weights.in_memory[serving.compute]
    constant = serving.constant
    parts = [
        MemoryItem("runtime", profile.runtime.size, profile.runtime.basis, profile.runtime.why),
        MemoryItem(f"weights, {serving.compute}", weights.size, weights.basis, weights.why),
    ]
    if not serving.kv_pool:
        arithmetic = f"{serving.window:,} rows x {serving.bytes_a_token:,} B"
        parts.append(MemoryItem("slot 0, rows", serving.window * serving.bytes_a_token, Basis.ARITHMETIC, arithmetic))
    parts.append(MemoryItem("slot 0, beside its rows", constant.bytes, constant.basis, constant.why))
    parts.append(
        MemoryItem("prefill workspace", profile.workspace.size, profile.workspace.basis, profile.workspace.why)
    )
    return [*parts, *serving.drafting]


def _side_slots(serving: Serving) -> list[MemoryItem]:
    constant = serving.side_constant
    size = slot_bytes(serving.side_window, serving.bytes_a_token, constant.bytes, pool=serving.kv_pool)
    why = (
        f"{serving.side_window:,} rows, committed when written"
        if serving.kv_pool
        else (f"{serving.side_window:,} rows x {serving.bytes_a_token:,} B and {constant.bytes / GIB:.2f} GiB")
    )
    basis = constant.basis if serving.kv_pool else Basis.ARITHMETIC
    return [MemoryItem(f"side slot {index}", size, basis, why) for index in range(1, serving.count)]
