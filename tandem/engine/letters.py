"""What passes between the device thread and the thread that owns the channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from tandem.contract.messages import Generate, Health, Message, Refused
from tandem.engine.grammar.mask import Compiled


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The channel closed; nobody will read the answers to its requests."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Drain, and be done when nothing is left, at the latest after the drain timeout."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request whose grammar was read: what it became, or why the request cannot run."""

    ask: Generate
    result: Compiled | Refused


@dataclass(frozen=True, slots=True)
class Received:
    """What a peer said. Peers are the numbers the channels' thread gave them."""

    peer: int
    message: Message | Prepared | PeerGone | Leave


@dataclass(frozen=True, slots=True)
class Sent:
    """What a peer is to be told."""

    peer: int
    message: Message


@dataclass(slots=True)
class Link:
    """Where the two threads meet: a queue each way, and the device thread's word about itself.

    `health` and `beat` are written by the device thread alone, each replaced whole; the other thread only reads, so
    it can answer for a device thread that hangs.
    """

    inbox: SimpleQueue[Received]
    outbox: Callable[[list[Sent]], None]  # any thread may call it
    health: Health
    beat: float  # time.monotonic() of the last sign of life
    ask_roles: Callable[[int], int] = lambda size: 0  # bytes that roles give back for so many; waits a moment for it
