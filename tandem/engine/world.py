"""What the engine takes from outside, as callables: a test drives it without a clock, a kernel or a director."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.contract.messages import Health
from tandem.engine.letters import Sent
from tandem.residency.journal import Event


@dataclass(frozen=True, slots=True)
class World:
    clock: Callable[[], float]  # seconds, monotonic
    available: Callable[[], int]  # MemAvailable in bytes
    noise: Callable[[], int]  # a fresh seed of 64 bits
    post: Callable[[list[Sent], Health], None]  # once a turn: what happened, and the state after it
    held: Callable[[], int] = lambda: 0  # bytes this process holds alone
    trim: Callable[[], int] = lambda: 0  # hands back what allocators keep free; returns the bytes
    ask_roles: Callable[[int], int] = lambda size: 0  # asks the director to unload roles; returns the bytes freed
    journal: Callable[[Event], None] = lambda event: None
