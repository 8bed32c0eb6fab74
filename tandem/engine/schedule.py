"""The queue and the slots: who waits, who runs where, who has waited too long, and what each is told about it.

Book-keeping and messages only: no model, no clock (`now` is an argument), no memory reading (`available` is one).
Clients are served first come, first served; the appliance's own work stands behind every client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tandem.contract.messages import FinishReason, Progress, RefusalCode, Refused, RequestState, SlotView
from tandem.engine.admit import Boundary, Offer, RowCost, Running, Shortage, decide
from tandem.engine.route import Ask, Route, SlotFacts, fits, route
from tandem.engine.slot import Request, Slot
from tandem.units import format_bytes

Key = tuple[int, str]  # peer and the peer's own id

MEMORY_REMINDER = 15.0  # seconds after which a request that waits for memory hears again why
_RETRY_BOUNDS = (1.0, 60.0)  # seconds


@dataclass(slots=True)
class Waiting:
    """A request in the queue, and what its client was told last."""

    request: Request
    told: Progress | None = None
    told_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """A waiting request takes a slot."""

    request: Request
    slot: Slot
    route: Route


class Schedule:
    def __init__(self, slots: list[Slot], chunk: int, cost: RowCost) -> None:
        self.slots = slots
        self.waiting: list[Waiting] = []  # clients, then own work; each in order of arrival
        self._chunk = chunk
        self.cost = cost
        self._shortage: Shortage[Key] | None = None
        self._mean_seconds = 10.0  # of a request on its slot; moves with every one that ends

    # --- who is where ---

    @property
    def running(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.sequence is not None]

    @property
    def reading(self) -> list[Slot]:
        return [slot for slot in self.slots if (s := slot.sequence) and s.end is None and s.is_reading]

    @property
    def writing(self) -> list[Slot]:
        return [slot for slot in self.slots if (s := slot.sequence) and s.end is None and not s.is_reading]

    @property
    def ended(self) -> list[Slot]:
        return [slot for slot in self.slots if (s := slot.sequence) and s.end is not None]

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def num_waiting_for_memory(self) -> int:
        """At most one: the request at which the last boundary stopped. Those behind it wait for it, not for memory."""
        return int(bool(self.waiting) and self._shortage is not None)

    @property
    def shortage(self) -> Shortage[Key] | None:
        """At which request the last boundary stopped, and for how much."""
        return self._shortage if self.waiting else None

    @property
    def views(self) -> tuple[SlotView, ...]:
        """The slots; the one that waits for the memory of its next request says so."""
        views = [slot.view for slot in self.slots]
        if (shortage := self.shortage) is not None and self.slots[shortage.slot].sequence is None:
            view = views[shortage.slot]
            waiting = str(RequestState.WAITING_MEMORY)
            views[shortage.slot] = SlotView(view.index, view.window, view.rows, waiting, shortage.id[1])
        return tuple(views)

    @property
    def keys(self) -> list[Key]:
        """Every request that is here, once."""
        running = [slot.sequence.request.key for slot in self.slots if slot.sequence is not None]
        return running + [entry.request.key for entry in self.waiting]

    # --- the queue ---

    def submit(self, request: Request, max_queue: int) -> Refused | None:
        """Queue a request, or say why not. Free slots count as room: a burst on an idle engine is not refused."""
        room = max_queue + len(self.slots) - len(self.running)
        if len(self.waiting) >= room:
            return Refused(
                request.ask.id,
                RefusalCode.QUEUE_FULL,
                f"the queue is full: `limits.max_queue` lets {max_queue:,} wait",
                self.expected_wait(len(self.waiting)),
            )
        clients = sum(not entry.request.ask.own_work for entry in self.waiting)
        place = len(self.waiting) if request.ask.own_work else clients
        self.waiting.insert(place, Waiting(request))
        return None

    def expected_wait(self, ahead: int) -> float:
        """Seconds until a slot is free for someone with `ahead` requests before them, from how long requests took."""
        low, high = _RETRY_BOUNDS
        return round(min(high, max(low, (ahead + 1) * self._mean_seconds / len(self.slots))), 1)

    def remove(self, keys: Iterable[Key]) -> list[Request]:
        """Take these out of the queue; those that run are not touched."""
        wanted = set(keys)
        removed = [entry.request for entry in self.waiting if entry.request.key in wanted]
        self.waiting = [entry for entry in self.waiting if entry.request.key not in wanted]
        return removed

    def expire(self, now: float, request_timeout: float) -> list[tuple[Request, Refused]]:
        """A request older than `request_timeout` ends: refused when it never started, else cut where it stands."""
        for sequence in (slot.sequence for slot in self.running):
            if sequence and now - sequence.request.arrived > request_timeout:
                sequence.end = sequence.end or FinishReason.LENGTH
        late = [entry for entry in self.waiting if now - entry.request.arrived > request_timeout]
        self.remove(entry.request.key for entry in late)
        return [(entry.request, self._refuse_late(entry, now - entry.request.arrived)) for entry in late]

    def _refuse_late(self, entry: Waiting, waited: float) -> Refused:
        for_memory = entry.told is not None and entry.told.state is RequestState.WAITING_MEMORY
        code = RefusalCode.MEMORY_TIMEOUT if for_memory else RefusalCode.QUEUE_TIMEOUT
        what = "enough free memory" if for_memory else "a slot"
        sentence = f"waited {waited:.0f} s for {what}, as long as limits.request_timeout allows"
        return Refused(entry.request.ask.id, code, sentence, self.expected_wait(len(self.waiting)))

    # --- the boundary ---

    def admit(self, available: int, floor: int) -> list[Start]:
        """Who starts now. The caller begins each on its slot before it calls again."""
        routes: dict[Key, Route] = {}
        entries = {entry.request.key: entry.request for entry in self.waiting}

        def offer(key: Key, free: frozenset[int]) -> Offer | None:
            request = entries[key]
            if (found := self._route(request, free)) is None:
                return None
            routes[key] = found
            rows = len(request.ask.tokens) + found.max_tokens
            return Offer(found.slot, self._reservation(self.slots[found.slot], rows, reading=True))

        boundary: Boundary[Key] = decide(
            [self._reserved(slot) for slot in self.running],
            list(entries),
            [slot.index for slot in self.slots],
            available - floor,
            offer,
        )
        self._shortage = boundary.shortage
        self.remove(key for key, _ in boundary.admitted)
        return [Start(entries[key], self.slots[found.slot], routes[key]) for key, found in boundary.admitted]

    def _route(self, request: Request, free: frozenset[int]) -> Route | None:
        ask = request.ask
        facts = []
        for slot in (self.slots[index] for index in sorted(free)):
            shared = slot.kept.shared_with(ask.scope, ask.tokens, self._chunk)
            facts.append(SlotFacts(slot.index, slot.window, slot.kept.rows, shared, slot.last_used))
        return route(_facts_of(request), facts, self.slots[0].window, self._chunk)

    @property
    def reserved(self) -> int:
        """Bytes that those who run may still take."""
        return sum(request.reserved for request in map(self._reserved, self.running) if request.left > 0)

    def _reserved(self, slot: Slot) -> Running:
        sequence = slot.sequence
        assert sequence is not None
        rows = len(sequence.prompt) + sequence.max_tokens
        return Running(slot.index, sequence.tokens_left, self._reservation(slot, rows, sequence.is_reading))

    def _reservation(self, slot: Slot, rows: int, reading: bool) -> int:
        """What a request of `rows` = prompt + max_tokens may still take on `slot`."""
        return (self.cost.workspace if reading else 0) + slot.memory.still_to_commit(rows)

    def note_duration(self, seconds: float) -> None:
        """A request ended after `seconds` on its slot."""
        self._mean_seconds += 0.2 * (seconds - self._mean_seconds)

    # --- what the waiting are told ---

    def progress(self, now: float, floor: int) -> Iterator[tuple[int, Progress]]:
        """(peer, message) for each waiting request whose state or place changed, and the reminder about memory."""
        for ahead, entry in enumerate(self.waiting):
            message = self._describe(entry.request, ahead, floor)
            same_place = entry.told is not None and (entry.told.state, entry.told.done) == (message.state, message.done)
            remind = message.state is RequestState.WAITING_MEMORY and now - entry.told_at >= MEMORY_REMINDER
            if not same_place or remind:
                entry.told, entry.told_at = message, now
                yield entry.request.peer, message

    def _describe(self, request: Request, ahead: int, floor: int) -> Progress:
        state = RequestState.QUEUED
        shortage = self._shortage
        if shortage is not None and shortage.id == request.key:
            state = RequestState.WAITING_MEMORY
            sentence = (
                f"Waiting: memory is almost full: {format_bytes(shortage.need)} needed, {format_bytes(shortage.left)} "
                f"left above the floor of {format_bytes(floor)} and what running requests may still take"
            )
        else:
            sentence = f"Queued: {self._why_queued(request)}, {ahead:,} ahead"
        return Progress(request.ask.id, state, ahead, len(self.waiting), sentence)

    def _why_queued(self, request: Request) -> str:
        if self._shortage is not None and len(self.running) < len(self.slots):
            return "a request before it waits for memory"
        ask, widest = _facts_of(request), self.slots[0].window
        side = [slot.window for slot in self.slots[1:]]
        if side and not any(fits(ask, window, widest) for window in side):
            return f"too long for a side slot ({max(side):,} tokens), waits for slot 0"
        return "the slot is busy" if len(self.slots) == 1 else f"all {len(self.slots)} slots are busy"

    def check_integrity(self) -> None:
        keys = self.keys
        assert len(keys) == len(set(keys)), "a request is in one place only"
        own = [entry.request.ask.own_work for entry in self.waiting]
        assert own == sorted(own), "own work stands behind clients"
        for kind in (False, True):
            arrivals = [e.request.arrived for e in self.waiting if e.request.ask.own_work is kind]
            assert arrivals == sorted(arrivals), "first come, first served"
        for index, slot in enumerate(self.slots):
            assert slot.index == index, "slots lie in order"
            slot.check_integrity(self._chunk)


def _facts_of(request: Request) -> Ask:
    return Ask(len(request.ask.tokens), request.ask.max_tokens, request.ask.marks.head_end)
