"""What conversations may leave behind, in memory and on disk."""

from __future__ import annotations

from typing import Final

from tandem.config import Documents
from tandem.contract.plan import CachesPlan, DiskCachePlan
from tandem.units import MIB

MEMORY: Final = 256 * MIB  # where nobody says how far the engine may grow
_ANCHORS: Final = 4  # all slots' anchors get this part of it


def caches_memory(documents: Documents) -> int:
    """Bytes of copies, where the engine's parts are all that is known of it."""
    said = documents.appliance.caches.memory
    return MEMORY if said is None else said


def plan_caches(documents: Documents, room: int, slots: int) -> CachesPlan:
    """`room`: bytes that the engine's peak has for caches."""
    caches = documents.appliance.caches
    memory = room if caches.memory is None else min(room, caches.memory)
    disk = None
    if caches.disk.enabled:
        disk = DiskCachePlan(str(documents.state / "cache"), caches.disk.size, caches.disk.max_age)
    return CachesPlan(memory, memory // _ANCHORS // slots, disk)
