"""The words of routing: what it looks at, and what it answers. Plain values, no rule.

A request is put beside every slot, so those two are structs: they are made twenty times as fast as dataclasses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from msgspec import Struct


class Source(StrEnum):
    """Where the rows come from that are not read again; the cheapest first."""

    NONE = "none"
    RESIDENT = "resident"  # they lie in the slot
    SIDE = "side"  # copied from another slot
    STORE = "store"
    STASH = "stash"
    PARK = "park"
    PIN = "pin"
    DISK = "disk"


class Holder(Enum):
    """Who runs on a slot."""

    NOBODY = "nobody"
    CLIENT = "client"
    OWN_WORK = "own_work"  # the appliance's own: it gives way to clients


class WaitKind(StrEnum):
    SLOT0 = "slot0_wait"  # slot 0 holds its conversation
    HOME = "home_wait"  # another slot does
    SPILL = "spill_wait"  # slot 0 brings its conversation back
    OWN_WORK = "own_work_wait"  # the slot is held by nothing but own work
    TOO_LONG = "too_long"  # only slot 0 can hold it
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Grid:
    """Where a sequence can go on: at multiples of `unit` rows. What costs less than a `chunk` costs one pass anyway."""

    chunk: int
    unit: int


class Ask(Struct, frozen=True):
    """What routing needs to know of a request; token counts."""

    prompt: int
    max_tokens: int
    head_end: int  # end of the first user message
    client_head_end: int | None = None  # the same in the prompt as the client's messages render it; None: the same
    arrived: float = 0.0
    own_work: bool = False
    task: bool = False  # no turn of a conversation follows it
    anew: bool = False  # nothing that was kept is for it

    @property
    def is_errand(self) -> bool:
        return self.task or self.own_work


class SlotFacts(Struct, frozen=True):
    """What routing needs to know of a slot, free or busy. Row and token counts.

    Of a busy slot `kept` and what follows it are of the conversation that lies there when whoever runs has ended:
    the one that is put aside for a guest, else the one that runs.
    """

    index: int
    window: int
    kept: int = 0  # rows of a conversation that a later request may resume on
    shared: int = 0  # of them, rows that hold the first tokens of this prompt
    served: int = 0  # tokens of the prompt served there last, as the client's messages render it
    continued: int = 0  # of them, the first tokens of this prompt, as the client's messages render it
    lent: int = 0  # rows of this prompt's beginning that can be copied from here into another slot
    stash_room: int = 0  # rows that can be put aside for a guest
    is_errand: bool = False  # what is kept is no conversation: nobody comes back to it
    is_same: bool = False  # the client says that it is the same conversation
    last_used: float = 0.0
    holder: Holder = Holder.NOBODY
    runs_guest: bool = False  # who runs leaves what is kept as it was

    @property
    def is_free(self) -> bool:
        return self.holder is Holder.NOBODY


@dataclass(frozen=True, slots=True)
class Held:
    """Rows of this prompt's beginning that a cache holds."""

    source: Source
    rows: int
    slot0_only: bool = False  # nobody else can take them back


@dataclass(frozen=True, slots=True)
class Take:
    """The request gets this slot."""

    slot: int
    resume_at: int  # rows that need not be read again; at least one token is always read, for its logits
    max_tokens: int  # cut to the slot's room
    reason: str
    source: Source = Source.NONE  # of the rows up to `resume_at` that do not lie in the slot; else of all
    is_guest: bool = False  # the rows it overwrites are put aside, and back after it
    carry_from: int | None = None  # the slot that rows are copied from
    moves: bool = False  # with its conversation, which that slot need not keep
    park_first: bool = False  # a conversation makes way: it is worth keeping elsewhere
    gave_up: bool = False  # it would have wanted slot 0


@dataclass(frozen=True, slots=True)
class Wait:
    """The request stays in the queue. `until` is None where it waits for whatever comes free."""

    kind: WaitKind
    sentence: str
    for_slot: int | None = None
    until: float | None = None
