"""The queue and the slots: who waits, who runs where, and who has waited too long.

Book-keeping and messages only: no model, no clock (`now` is an argument), no memory reading (`available` is one).
Clients are served first come, first served; the appliance's own work stands behind every client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tandem.contract.messages import (
    FinishReason,
    Parallel,
    Progress,
    RefusalCode,
    Refused,
    RequestState,
    SideDisk,
    SlotView,
    Turn,
)
from tandem.contract.plan import Routing
from tandem.engine.admit import Boundary, Offer, RowCost, Running, Shortage, decide
from tandem.engine.facts import Grid, Held, Source, Take, Wait, WaitKind
from tandem.engine.queue import Queue
from tandem.engine.route import route
from tandem.engine.slot import Failed, Request, Slot
from tandem.engine.waiting import Key, Waiting
from tandem.units import format_bytes

YIELDED_RETRY: Final = 1.0  # seconds
_RETRY_BOUNDS: Final = (1.0, 60.0)  # seconds


@dataclass(frozen=True, slots=True)
class Start:
    """A waiting request takes a slot."""

    request: Request
    slot: Slot
    take: Take


class Schedule:
    def __init__(
        self,
        slots: list[Slot],
        grid: Grid,
        cost: RowCost,
        find: Callable[[Request], Sequence[Held]] | None = None,
        stash_room: Callable[[Slot], int] = lambda slot: 0,
    ) -> None:
        """`find` says what caches hold of a request's prompt, `stash_room` how many rows of a slot can be put aside for
        a guest. Both are asked for whoever waits, once for as long as nobody comes to a slot or leaves one."""
        self.slots = slots
        self.waiting = Queue()
        self.cost = cost
        self._grid = grid
        self._find = find
        self._stash_room = stash_room
        self._waits: Counter[WaitKind] = Counter()
        self._gave_up = self._yielded = 0
        self._side_disk = SideDisk()
        self._shortage: Shortage[Key] | None = None
        self._asked: tuple[object, ...] = ()  # the rules and who ran when those in the queue were asked
        self._mean_seconds = 10.0  # of a request on its slot; moves with every one that ends

    # --- who is where ---

    @property
    def running(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.sequence is not None]

    @property
    def reading(self) -> list[Slot]:
        return [slot for slot in self._unended if (s := slot.sequence) and s.is_reading and s.restore is None]

    @property
    def returning(self) -> list[Slot]:
        """Rows of their sequences are on their way from a cache."""
        return [slot for slot in self._unended if (s := slot.sequence) and s.restore is not None]

    @property
    def writing(self) -> list[Slot]:
        return [slot for slot in self._unended if (s := slot.sequence) and not s.is_reading]

    @property
    def _unended(self) -> list[Slot]:
        return [slot for slot in self.slots if (s := slot.sequence) and s.end is None]

    @property
    def ended(self) -> list[Slot]:
        return [slot for slot in self.slots if (s := slot.sequence) and s.end is not None]

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def is_asking(self) -> bool:
        """The next boundary goes on where the last one stopped."""
        return self._shortage is None and self.waiting.has_unasked

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
        return self._running_keys + [entry.request.key for entry in self.waiting]

    def is_here(self, key: Key) -> bool:
        return key in self.waiting or key in self._running_keys

    @property
    def _running_keys(self) -> list[Key]:
        return [slot.sequence.request.key for slot in self.slots if slot.sequence is not None]

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
        self.waiting.add(request)
        return None

    def expected_wait(self, ahead: int) -> float:
        """Seconds until a slot is free for someone with `ahead` requests before them, from how long requests took."""
        low, high = _RETRY_BOUNDS
        return round(min(high, max(low, (ahead + 1) * self._mean_seconds / len(self.slots))), 1)

    def remove(self, keys: Iterable[Key]) -> list[Request]:
        """Take these out of the queue; those that run are not touched."""
        return [entry.request for entry in self.waiting.remove(keys)]

    def expire(self, now: float, request_timeout: float) -> list[tuple[Request, Refused]]:
        """A request older than `request_timeout` ends: refused when it never started, else cut where it stands."""
        for sequence in (slot.sequence for slot in self.running):
            if sequence and now - sequence.request.arrived > request_timeout:
                sequence.end = sequence.end or FinishReason.LENGTH
        late = self.waiting.remove_arrived_before(now - request_timeout)
        return [(entry.request, self._refuse_late(entry, now - entry.request.arrived)) for entry in late]

    def _refuse_late(self, entry: Waiting, waited: float) -> Refused:
        for_memory = entry.told is not None and entry.told.state is RequestState.WAITING_MEMORY
        code = RefusalCode.MEMORY_TIMEOUT if for_memory else RefusalCode.QUEUE_TIMEOUT
        what = "enough free memory" if for_memory else "a slot"
        sentence = f"waited {waited:.0f} s for {what}, as long as limits.request_timeout allows"
        return Refused(entry.request.ask.id, code, sentence, self.expected_wait(len(self.waiting)))

    # --- the boundary ---

    def admit(self, available: int, floor: int, rules: Routing, now: float) -> list[Start]:
        """Who starts now. The caller begins each on its slot before it calls again.

        An answer holds until its wait is over, the rules change, or another runs on a slot: nobody is asked before.
        """
        if (asked := (rules, *(slot.sequence and slot.sequence.request.key for slot in self.slots))) != self._asked:
            self.waiting.ask_all_again()
            self._asked = asked
        entries: dict[Key, Waiting] = {}
        takes: dict[Key, Take] = {}

        def next_keys() -> Iterator[Key]:
            for entry in self.waiting.to_ask(now):
                entries[entry.request.key] = entry
                yield entry.request.key

        def offer(key: Key, free: frozenset[int]) -> Offer | None:
            entry, given = entries[key], {take.slot: (entries[key].request, take) for key, take in takes.items()}
            facts = [
                entry.facts(slot, slot.index in free, self._stash_room(slot), given.get(slot.index))
                for slot in self.slots
            ]
            elsewhere = self._find(entry.request) if self._find else ()
            answer = route(entry.ask, facts, elsewhere, rules, self._grid, now)
            if isinstance(answer, Wait):
                self._note_wait(entry, answer)
                return None
            takes[key] = answer
            rows = len(entry.request.ask.tokens) + answer.max_tokens
            return Offer(answer.slot, self._reservation(self.slots[answer.slot], rows, reading=True))

        boundary: Boundary[Key] = decide(
            [self._reserved(slot) for slot in self.running],
            next_keys(),
            [slot.index for slot in self.slots],
            available - floor,
            offer,
        )
        if (shortage := boundary.shortage) is not None:
            self.waiting.ask_again(entries[shortage.id])
            if not entries[shortage.id].request.ask.own_work:
                self._yield([slot for slot in self.running if _is_own_work(slot)][-1:])
        self._shortage = shortage
        self.remove(key for key, _ in boundary.admitted)
        starts = [Start(entries[key].request, self.slots[at.slot], takes[key]) for key, at in boundary.admitted]
        for start in starts:
            self._count(start.take)
            self._asked = ()  # though it may fail to begin
        return starts

    def _note_wait(self, entry: Waiting, wait: Wait) -> None:
        """Own work ends where a client waits for its slot."""
        entry.wait = wait
        self.waiting.note_answer(entry)
        if wait.kind not in entry.waited_for:
            entry.waited_for.add(wait.kind)
            self._waits[wait.kind] += 1
        if wait.for_slot is not None and not entry.request.ask.own_work:
            self._yield([slot for slot in [self.slots[wait.for_slot]] if _is_own_work(slot)])

    def _count(self, take: Take) -> None:
        self._gave_up += take.gave_up
        if self._find and take.slot:
            hits = take.source is Source.DISK
            seen = self._side_disk
            self._side_disk = SideDisk(
                seen.lookups + 1, seen.hits + hits, seen.tokens + (take.resume_at if hits else 0)
            )

    def _yield(self, slots: list[Slot]) -> None:
        """The boundary is a safe point: no pass runs, and what own work has read stays."""
        for sequence in (slot.sequence for slot in slots):
            if sequence is not None and sequence.end is None:
                self._yielded += 1
                sequence.end = Failed("gave its slot to a client's request", RefusalCode.YIELDED, YIELDED_RETRY)

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

    # --- what everyone is told ---

    def parallel(self, turn: Turn) -> Parallel:
        """How requests share the slots now; `turn` is who has the device."""
        slots, shortage = len(self.slots), self.shortage
        running, reason = slots, "every slot may run"
        if shortage is not None:
            running = len(self.running)
            reason = f"memory: the next needs {format_bytes(shortage.need)}, {format_bytes(shortage.left)} are left"
        return Parallel(
            requested=slots,
            max_running=running,
            max_running_reason=reason,
            turn=turn,
            memory_needed=shortage.need if shortage else 0,
            memory_left=shortage.left if shortage else 0,
            waits={str(kind): count for kind, count in self._waits.items()},
            slot0_gave_up=self._gave_up,
            yielded=self._yielded,
            side_disk=self._side_disk,
        )

    def progress(self, now: float, floor: int) -> Iterator[tuple[int, Progress]]:
        """(peer, message) for the next few in the queue to whom something new is to be said."""
        for ahead, entry in self.waiting.to_tell(more=self._shortage is not None):
            if (news := entry.news(ahead, len(self.waiting), self._shortage, floor, now)) is not None:
                yield entry.request.peer, news

    def check_integrity(self) -> None:
        keys = self.keys
        assert len(keys) == len(set(keys)), "a request is in one place only"
        self.waiting.check_integrity()
        for index, slot in enumerate(self.slots):
            assert slot.index == index, "slots lie in order"
            slot.check_integrity()


def _is_own_work(slot: Slot) -> bool:
    return slot.sequence is not None and slot.sequence.request.ask.own_work
