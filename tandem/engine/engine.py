"""The device thread's object: letters come in, passes run, letters go out. Read `Engine.turn` first.

One writer: everything here belongs to the thread that calls `turn`. Time, memory and noise come from callables, so
a test drives it by hand.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

import msgspec

from tandem.contract.messages import (
    Cancel,
    Drain,
    FinishReason,
    Generate,
    Health,
    Marks,
    RefusalCode,
    Refused,
    Resume,
    Sampling,
    SetLive,
)
from tandem.contract.plan import EnginePlan, Live, SlotPlan
from tandem.draft.drafting import Drafting
from tandem.engine import round
from tandem.engine.admit import RowCost
from tandem.engine.choice import choice_for
from tandem.engine.drafters import no_drafting
from tandem.engine.gate import find_refusal
from tandem.engine.grammar.mask import Compiled
from tandem.engine.letters import Leave, PeerGone, Prepared, Received, Sent
from tandem.engine.outbox import Outbox
from tandem.engine.pressure import Pressure
from tandem.engine.round import running_on
from tandem.engine.row_memory import FirstWrite
from tandem.engine.schedule import Key, Schedule, Start
from tandem.engine.slot import Failed, Request, Sequence, Slot
from tandem.memory.budget import Budget
from tandem.memory.guard import Guard
from tandem.memory.kvpool import KVPool
from tandem.memory.pages import CommitRefused, PageBackend
from tandem.memory.view import engine_parts
from tandem.model.interface import Model
from tandem.residency.journal import Event
from tandem.units import format_gib

log = logging.getLogger("tandem.engine")

DRAINING_RETRY: Final = 5.0  # seconds; a restart is usually over by then
IDLE_WAIT: Final = 0.5  # seconds between two signs of life of an idle engine, and two looks at memory
MEMORY_WAIT: Final = 0.1  # seconds between two looks at memory while someone waits for it


@dataclass(frozen=True, slots=True)
class World:
    """What the engine takes from outside."""

    clock: Callable[[], float]  # seconds, monotonic
    available: Callable[[], int]  # MemAvailable in bytes
    noise: Callable[[], int]  # a fresh seed of 64 bits
    post: Callable[[list[Sent], Health], None]  # once a turn: what happened, and the state after it
    held: Callable[[], int] = lambda: 0  # bytes this process holds alone
    trim: Callable[[], int] = lambda: 0  # hands back what allocators keep free; returns the bytes
    ask_roles: Callable[[int], int] = lambda size: 0  # asks the director to unload roles; returns the bytes freed
    journal: Callable[[Event], None] = lambda event: None


class Engine:
    def __init__(
        self,
        model: Model,
        plan: EnginePlan,
        live: Live,
        room: int,
        world: World,
        pages: PageBackend | None = None,
        drafting: Drafting | None = None,
    ) -> None:
        """`room` is what the floor and all requests share: the machine's memory less the engine's own, in bytes.

        With `pages` the KV pool is on: rows have memory from the pass that writes them to the end of their request.
        Without `drafting` every round writes one token a slot.
        """
        cost = RowCost(plan.bytes_a_token, plan.workspace)
        pool = KVPool(pages, plan.kv_margin_rows, self._make_room) if pages else None
        slots = [_build_slot(slot, model, cost, pool) for slot in plan.slots]
        self.schedule = Schedule(slots, plan.chunk, cost)
        self._pool = pool
        self.budget = _budget(plan)
        trim = world.trim if pages is None else lambda: pages.trim() + world.trim()
        self.pressure = Pressure(
            slots, self.budget, trim=trim, ask_roles=world.ask_roles, clock=world.clock, has_pool=pool is not None
        )
        self._guard = Guard()
        self._waits_for_memory: Key | None = None  # counted last
        self._is_trimmed = True
        self._model = model
        self._drafting = drafting or no_drafting()
        self._ends_loops = plan.end_loops
        self._chunk = plan.chunk
        self._live = live
        self._room = room
        self._world = world
        self._rows_elsewhere = plan.device != "cpu"  # rows are no part of the process then
        self._loaded = self._held()
        self._outbox = Outbox()
        self._turns = 0
        self._chunk_was_last = False
        self._draining = False
        self._leave_by: float | None = None
        self._facts = {
            "family": plan.family,
            "compute": plan.compute,
            "device": plan.device,
            "threads": str(plan.threads),
            "chunk": str(plan.chunk),
            "row_bucket": str(model.row_bucket),
            "drafting": ", ".join(each.drafter.name for each in self._drafting.guessers) or "off",
        }

    def turn(self, letters: Iterable[Received]) -> None:
        """Receive, retire, admit, send; then one pass on the device."""
        now = self._world.clock()
        self._turns += 1
        self._receive(letters, now)
        self._watch_memory(now)
        self._retire(now)
        self._admit(now)
        self._send()
        self._run_pass()

    @property
    def patience(self) -> float:
        """Seconds until the next turn when no letter comes before it."""
        if self.schedule.running:
            return 0.0
        return MEMORY_WAIT if self.schedule.waiting else IDLE_WAIT

    @property
    def is_done(self) -> bool:
        """It was asked to leave and nothing is left to do."""
        return self._leave_by is not None and self.schedule.is_idle

    def warm_up(self) -> None:
        """One whole chunk and one round on slot 0: what `ready` means. Raises when the model cannot do it."""
        slot = self.schedule.slots[0]
        rows = min(self._chunk, slot.window - 2)
        ask = Generate(
            id="warm-up",
            tokens=(self._model.config.bos_token or 0,) * rows,
            max_tokens=2,
            stop_tokens=(),
            sampling=Sampling(),
            marks=Marks(rows, rows),
            own_work=True,
        )
        drafting = no_drafting()
        choice, followed = choice_for(ask, self._model.config.vocab, seed=0), drafting.begin(slot.state, ask.scope)
        slot.begin(Sequence(Request(0, ask, 0.0), choice, followed, max_tokens=2, resumed=0, admitted=0.0, read=0))
        while not running_on(slot).end:
            if running_on(slot).is_reading:
                round.read_chunk(self._model, slot, self._chunk)
            else:
                round.step(self._model, [slot], drafting, self._world.clock)
        ended = slot.end(0.0)
        slot.forget()
        self.pressure.trim()
        self._loaded = self._held()
        if isinstance(ended.end, Failed):
            raise RuntimeError(f"the model wrote nothing: {ended.end.sentence}")

    # --- memory ---

    def _make_room(self, size: int) -> None:
        """A commit is about to take `size` bytes; before the hard floor is passed for it, all else is given back."""
        floor = self._live.floors.hard_floor
        if not self._relieve(size + floor):
            available = self._world.available()
            raise CommitRefused(
                f"memory is full: {format_gib(size)} GiB are needed for the next rows, {format_gib(available)} are "
                f"available and {format_gib(floor)} are the hard floor"
            )

    def _relieve(self, wanted: int, but: int | None = None, roles: bool = True) -> bool:
        """Whether `wanted` bytes are available, if need be after a walk down the ladder."""

        def short() -> int:
            return wanted - self._world.available()

        if short() <= 0:
            return True
        done = self.pressure.reclaim(short, but=but, roles=roles)
        self._outbox.tally.note_reclaim(done)
        if done.returned:
            self._journal("reclaimed", done.sentence, {step.rung: step.returned for step in done.steps})
        return not done.short

    def _watch_memory(self, now: float) -> None:
        """Below the hard floor everything is given back, whoever took the memory; when that does not stop the fall,
        the youngest request ends before the kernel ends all of them."""
        floor = self._live.floors.hard_floor
        available = self._world.available()
        if available < floor and not self._relieve(floor):
            available = self._world.available()
        if not self._guard.must_act(available, floor, now):
            return
        running = [sequence for sequence in map(running_on, self.schedule.running) if sequence.end is None]
        if not running:
            return
        youngest = max(running, key=lambda sequence: sequence.admitted)
        sentence = (
            f"memory fell to {format_gib(available)} GiB, under the hard floor of {format_gib(floor)}, and everything "
            f"else was given back: the youngest request ends so that the others can go on"
        )
        youngest.end = Failed(sentence, RefusalCode.NO_MEMORY, round.NO_MEMORY_RETRY)
        self._guard.acted(now)
        log.warning("[memory] %s: %s", youngest.request.ask.id, sentence)

    def _journal(self, act: str, sentence: str, figures: Mapping[str, int], subject: str = "") -> None:
        try:
            self._world.journal(Event(act, sentence, dict(figures), subject))
        except OSError as error:
            log.warning("the journal cannot be written: %s", error)

    # --- receive ---

    def _receive(self, letters: Iterable[Received], now: float) -> None:
        for letter in letters:
            match letter.message:
                case Generate() as ask:
                    self._submit(Request(letter.peer, ask, now))
                case Prepared(ask=ask, result=Refused() as refusal):
                    self._outbox.refused(Request(letter.peer, ask, now), refusal)
                case Prepared(ask=ask, result=Compiled() as grammar):
                    self._submit(Request(letter.peer, ask, now, grammar))
                case Cancel(id=id):
                    self._cancel({(letter.peer, id)}, now)
                case PeerGone():
                    self._cancel({key for key in self.schedule.keys if key[0] == letter.peer}, now)
                case SetLive(live=live):
                    self._live = msgspec.json.decode(live, type=Live)
                case Drain():
                    self._draining = True
                case Resume():
                    self._draining = self._leave_by is not None
                case Leave():
                    self._draining, self._leave_by = True, now + self._live.limits.drain_timeout
                case other:
                    log.warning("peer %d sent a %s: nothing for an engine", letter.peer, type(other).__name__)

    def _submit(self, request: Request) -> None:
        with self._outbox.refusing(request):
            refusal = self._find_refusal(request) or self.schedule.submit(request, self._live.limits.max_queue)
            if refusal is None:
                self._outbox.tally.requests += 1
            else:
                self._outbox.refused(request, refusal)

    def _find_refusal(self, request: Request) -> Refused | None:
        ask = request.ask
        if self._draining:
            return Refused(ask.id, RefusalCode.DRAINING, "the engine finishes what it has and stops", DRAINING_RETRY)
        if request.key in self.schedule.keys:
            return Refused(ask.id, RefusalCode.BAD_REQUEST, "id: a request of this id is still here")
        window = self.schedule.slots[0].window
        ceiling = self._room - self._live.floors.floor
        return find_refusal(ask, self._model.config.vocab, window, self.schedule.cost, ceiling)

    def _cancel(self, keys: set[Key], now: float) -> None:
        for request in self.schedule.remove(keys):
            self._outbox.cancelled_in_queue(request, now)
        for sequence in map(running_on, self.schedule.running):
            if sequence.request.key in keys:
                sequence.end = sequence.end or FinishReason.CANCELLED

    # --- retire ---

    def _retire(self, now: float) -> None:
        for request, refusal in self.schedule.expire(now, self._live.limits.request_timeout):
            self._outbox.refused(request, refusal)
        if self._leave_by is not None and now > self._leave_by:
            self._give_up()
        for slot in self.schedule.ended:
            sequence = slot.end(now)
            if isinstance(end := sequence.end, Failed) and end.code is RefusalCode.NO_MEMORY:
                self._outbox.tally.ended_for_memory += 1
                figures = {"available": self._world.available(), "hard_floor": self._live.floors.hard_floor}
                self._journal("ended", end.sentence, figures, sequence.request.ask.id)
            sequence.followed.end()
            self.schedule.note_duration(now - sequence.admitted)
            self._outbox.ended(sequence, now)

    def _give_up(self) -> None:
        """The drain timeout has passed: what is left ends with a clear word instead of a closed connection."""
        sentence = f"the engine stops; requests had {self._live.limits.drain_timeout:.0f} s to finish"
        for request in self.schedule.remove(self.schedule.keys):
            self._outbox.refused(request, Refused(request.ask.id, RefusalCode.DRAINING, sentence, DRAINING_RETRY))
        for sequence in map(running_on, self.schedule.running):
            sequence.end = sequence.end or Failed(sentence, RefusalCode.DRAINING, DRAINING_RETRY)

    # --- admit ---

    def _admit(self, now: float) -> None:
        if not self.schedule.waiting:
            return
        floor = self._live.floors.floor
        for start in self.schedule.admit(self._world.available(), floor):
            with self._outbox.refusing(start.request):
                self._begin(start, now)
        self._relieve_shortage()
        for peer, progress in self.schedule.progress(now, floor):
            self._outbox.tell(peer, progress)

    def _relieve_shortage(self) -> None:
        """What idle slots and caches keep must not make a client wait: it is given up for who waits for memory, who
        may then start at the next boundary. Not the conversation that it may be about to continue, unless the next
        boundary chooses another slot. Roles stay: they leave only under the hard floor."""
        if (shortage := self.schedule.shortage) is None:
            return
        if shortage.id != self._waits_for_memory:
            self._waits_for_memory = shortage.id
            self._outbox.tally.memory_waits += 1
        self._relieve(self._world.available() + shortage.need - shortage.left, but=shortage.slot, roles=False)

    def _begin(self, start: Start, now: float) -> None:
        ask, route = start.request.ask, start.route
        seed = self._world.noise() if ask.sampling.seed is None else ask.sampling.seed
        choice = choice_for(ask, self._model.config.vocab, seed, start.request.grammar)
        followed = self._drafting.begin(start.slot.state, ask.scope)
        ends_loops = self._ends_loops if ask.end_loops is None else ask.end_loops
        rows = route.resume_at
        sequence = Sequence(start.request, choice, followed, route.max_tokens, rows, now, rows, ends_loops)
        start.slot.begin(sequence)
        self._outbox.started(start.request, route, running=len(self.schedule.running))
        self._outbox.phase(sequence)

    # --- send ---

    def _send(self) -> None:
        """What happened so far leaves before the device is busy again."""
        self._world.post(self._outbox.take(), self.health())

    def health(self) -> Health:
        running, waiting = len(self.schedule.running), len(self.schedule.waiting)
        kv = tuple(chain.from_iterable(slot.memory.usage for slot in self.schedule.slots))
        return Health(
            ready=not self._draining,
            state="draining" if self._draining else "ready",
            sentence=f"{running} of {len(self.schedule.slots)} slots busy, {waiting} waiting",
            queued=waiting,
            running=running,
            waiting_memory=self.schedule.num_waiting_for_memory,
            slots=tuple(slot.view for slot in self.schedule.slots),
            counters=self._outbox.tally.counters(self._drafting),
            kv=kv,
            memory=engine_parts(self._held(), self._loaded, kv if self._pool else (), self.budget.cached),
            facts=self._facts,
        )

    def _held(self) -> int:
        return self._world.held() + (
            self._pool.committed + self._pool.spare if self._pool and self._rows_elsewhere else 0
        )

    # --- one pass ---

    def _run_pass(self) -> None:
        """A chunk or a round. They alternate while both are wanted: no prompt holds up the writing slots for longer
        than a chunk, and no answer holds up a prompt for longer than a round."""
        reading, writing = self.schedule.reading, self.schedule.writing
        if reading or writing:
            self._is_trimmed = False
        if reading and not (writing and self._chunk_was_last):
            self._read_chunk(reading)
        elif writing:
            self._run_round(writing)
        else:
            self._rest()

    def _rest(self) -> None:
        """Nobody waits for what is done here: the heap gives back what the last passes left in it."""
        if not self._is_trimmed and self.schedule.is_idle:
            self.pressure.trim()
            self._is_trimmed = True
        self.check_integrity()

    def _read_chunk(self, reading: list[Slot]) -> None:
        """Reading slots take turns, whoever waits longest first: a short prompt beside a long one waits for one chunk
        of it instead of all."""
        slot = min(reading, key=lambda slot: running_on(slot).last_chunk)
        sequence = running_on(slot)
        sequence.last_chunk = self._turns
        began = self._world.clock()
        rows = round.read_chunk(self._model, slot, self._chunk)
        ended = self._world.clock()
        self._chunk_was_last = True
        self._outbox.tally.note_chunk(rows, ended - began)
        self._outbox.phase(sequence)
        self._outbox.tokens(sequence, ended)

    def _run_round(self, writing: list[Slot]) -> None:
        """Every writing slot takes part; the model's row bucket says how many share one pass."""
        bucket = self._model.row_bucket
        for together in (writing[at : at + bucket] for at in range(0, len(writing), bucket)):
            began = self._world.clock()
            done = round.step(self._model, together, self._drafting, self._world.clock)
            ended = self._world.clock()
            if done.slots:
                self._outbox.tally.note_round(done, ended - began)
            for slot in together:
                self._outbox.tokens(running_on(slot), ended)
        self._chunk_was_last = False

    def check_integrity(self) -> None:
        self.schedule.check_integrity()
        if self._pool:
            self._pool.check_integrity()
        assert self._leave_by is None or self._draining, "who leaves takes nothing new"


def _budget(plan: EnginePlan) -> Budget:
    """The declared peak has the side slots in it; here they are fixed bytes, kept apart as `Budget` wants them."""
    rows = 0 if plan.kv_pool else plan.bytes_a_token
    fixed = sum(slot.constant + slot.window * rows for slot in plan.slots[1:])
    configured = max(0, plan.declared_peak - fixed)
    budget = Budget(configured, configured)
    budget.add_fixed(fixed)
    return budget


def _build_slot(plan: SlotPlan, model: Model, cost: RowCost, pool: KVPool | None) -> Slot:
    if pool is None:
        return Slot(plan.index, plan.window, model.new_state(plan.window), FirstWrite(plan.index, plan.window, cost))
    memory = pool.slot()
    return Slot(plan.index, plan.window, model.new_state(plan.window, memory.allocate), memory)
