"""The device thread's object: letters come in, passes run, letters go out. Read `Engine.turn` first.

One writer: everything here belongs to the thread that calls `turn`. Time, memory and noise come from callables, so
a test drives it by hand.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from tandem.contract.messages import (
    AskLease,
    Cancel,
    Drain,
    FinishReason,
    Generate,
    Health,
    Lease,
    Marks,
    RefusalCode,
    Refused,
    Resume,
    ReturnLease,
    Sampling,
    SetLive,
    Turn,
)
from tandem.contract.plan import EnginePlan, Live
from tandem.draft.drafting import Drafting
from tandem.engine import round
from tandem.engine.choice import choice_for
from tandem.engine.conversations import open_conversations
from tandem.engine.drafters import no_drafting
from tandem.engine.facts import Grid, Take
from tandem.engine.gate import find_refusal
from tandem.engine.grammar.mask import Compiled
from tandem.engine.lease import Lending
from tandem.engine.letters import Leave, PeerGone, Prepared, Received
from tandem.engine.memory import MemoryKeeper
from tandem.engine.outbox import Outbox
from tandem.engine.round import running_on
from tandem.engine.schedule import Schedule, Start
from tandem.engine.slot import Failed, Request, Sequence, Slot
from tandem.engine.waiting import Key
from tandem.engine.world import World
from tandem.memory.pages import PageBackend
from tandem.model.interface import Model

log = logging.getLogger("tandem.engine")

DRAINING_RETRY: Final = 5.0  # seconds; a restart is usually over by then
IDLE_WAIT: Final = 0.5  # seconds between two signs of life of an idle engine, and two looks at memory
MEMORY_WAIT: Final = 0.1  # seconds between two looks at memory while someone waits for it
_PASSES_BESIDE: Final = 2  # of a prompt, between two rounds of those who write
HEALTH_EVERY: Final = 0.05  # seconds between two pictures of an engine in which nobody comes or goes


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
        self._outbox = Outbox()
        self.memory = MemoryKeeper(plan, model, world, live.floors, self._outbox.tally, pages)
        self.conversations = open_conversations(plan, model, self.memory)
        grid = Grid(plan.chunk, self.memory.slots[0].unit)
        find, stash_room = self.conversations.find, self.conversations.stash_room
        self.schedule = Schedule(self.memory.slots, grid, self.memory.cost, find, stash_room)
        self._model = model
        self._drafting = drafting or no_drafting()
        self._ends_loops = plan.end_loops
        self._chunk = plan.chunk
        self._live = live
        self._room = room
        self._world = world
        self._turns = 0
        self._chunk_was_last = False
        self._lending = Lending()
        self._draining = False
        self._leave_by: float | None = None
        self._pictured: tuple[int, int, bool] | None = None  # who was there when the last picture was drawn
        self._next_picture = 0.0
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
        """Receive, retire, admit, send; then one pass on the device, unless its turn is lent."""
        now = self._world.clock()
        self._turns += 1
        self._receive(letters, now)
        self.memory.watch(now)
        self._retire(now)
        self._admit(now)
        self._bring_back()
        self._send()
        if not self._lending.left(now):
            self._run_pass()

    @property
    def patience(self) -> float:
        """Seconds until the next turn when no letter comes before it."""
        if left := self._lending.left(self._world.clock()):
            return left
        if self.schedule.running or self.schedule.is_asking:
            return 0.0
        return MEMORY_WAIT if self.schedule.waiting else IDLE_WAIT

    @property
    def is_done(self) -> bool:
        """It was asked to leave and nothing is left to do."""
        return self._leave_by is not None and self.schedule.is_idle

    def warm_up(self) -> None:
        """One whole chunk and one round on slot 0: what `ready` means. Raises when the model cannot do it.

        Of a model whose chunk is many passes of one kind, one of them says as much.
        """
        slot = self.schedule.slots[0]
        rows = min(self._model.row_bucket if self._model.is_row_invariant else self._chunk, slot.window - 2)
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
        take = Take(slot.index, resume_at=0, max_tokens=2, reason="warm-up")
        slot.begin(Sequence(Request(0, ask, 0.0), take, choice, followed, admitted=0.0))
        while not running_on(slot).end:
            if running_on(slot).is_reading:
                round.read_chunk(self._model, slot, self._chunk)
            else:
                round.step(self._model, [slot], drafting, self._world.clock)
        ended = slot.end(0.0)
        slot.forget()
        self.memory.note_loaded()
        if isinstance(ended.end, Failed):
            raise RuntimeError(f"the model wrote nothing: {ended.end.sentence}")

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
                    self._lending.give_back(letter.peer)
                case AskLease() as asked:
                    self._outbox.tell(letter.peer, self._lend(letter.peer, asked, now))
                case ReturnLease(id=id):
                    self._lending.give_back(letter.peer, id)
                case SetLive(live=live):
                    self._live = msgspec.json.decode(live, type=Live)
                    self.memory.floors = self._live.floors
                case Drain():
                    self._draining = True
                case Resume():
                    self._draining = self._leave_by is not None
                case Leave():
                    self._draining, self._leave_by = True, now + self._live.limits.drain_timeout
                case other:
                    log.warning("peer %d sent a %s: nothing for an engine", letter.peer, type(other).__name__)

    def _lend(self, peer: int, ask: AskLease, now: float) -> Lease:
        is_idle, has_work = self.schedule.slots[0].sequence is None, bool(self.schedule.running)
        return self._lending.ask(peer, ask, slot_0_idle=is_idle, has_work=has_work, now=now)

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
        if self.schedule.is_here(request.key):
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
            self.conversations.ended(slot, sequence, now)
            self.memory.retired(sequence)
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
        for start in self.schedule.admit(self.memory.available(), floor, self._live.routing, now):
            with self._outbox.refusing(start.request):
                self._begin(start, now)
        if (shortage := self.schedule.shortage) is not None:
            self.memory.relieve_shortage(shortage)
        for peer, progress in self.schedule.progress(now, floor):
            self._outbox.tell(peer, progress)

    def _begin(self, start: Start, now: float) -> None:
        ask, take = start.request.ask, start.take
        seed = self._world.noise() if ask.sampling.seed is None else ask.sampling.seed
        choice = choice_for(ask, self._model.config.vocab, seed, start.request.grammar)
        followed = self._drafting.begin(start.slot.state, ask.scope)
        ends_loops = self._ends_loops if ask.end_loops is None else ask.end_loops
        sequence = Sequence(start.request, take, choice, followed, now, ends_loops)
        log.info("[parallel] %s: slot %d, %s", ask.id, take.slot, take.reason)
        self.conversations.begin(start.slot, sequence)
        self._outbox.tally.note_running(len(self.schedule.running))
        if sequence.restore is None:
            self._outbox.started(sequence)
            self._outbox.phase(sequence)
        else:
            self._outbox.returning(sequence)

    def _bring_back(self) -> None:
        """Sequences whose rows are on their way from a cache: no pass waits for a disk."""
        returning = self.schedule.returning
        is_alone = len(returning) == len(self.schedule.running)
        for slot in returning:
            with round.ending_only([slot]):
                if self.conversations.advance(slot, is_alone):
                    self._outbox.started(running_on(slot))
                    self._outbox.phase(running_on(slot))

    # --- send ---

    def _send(self) -> None:
        """What happened so far leaves before the device is busy again. The picture of the whole is as old as
        `HEALTH_EVERY` while nobody comes or goes: drawing it takes as long as a fiftieth of a round."""
        state = (len(self.schedule.running), len(self.schedule.waiting), self._draining)
        if (now := self._world.clock()) >= self._next_picture or state != self._pictured:
            self._next_picture, self._pictured = now + HEALTH_EVERY, state
            self._picture = self.health()
        self._world.post(self._outbox.take(), self._picture)

    def health(self) -> Health:
        running, waiting = len(self.schedule.running), len(self.schedule.waiting)
        return Health(
            ready=not self._draining,
            state="draining" if self._draining else "ready",
            sentence=f"{running} of {len(self.schedule.slots)} slots busy, {waiting} waiting",
            queued=waiting,
            running=running,
            waiting_memory=self.schedule.num_waiting_for_memory,
            slots=self.schedule.views,
            counters=self._outbox.tally.counters(self._drafting),
            kv=self.memory.kv,
            memory=self.memory.parts,
            caches=self.conversations.view(self._world.clock()),
            cache_growth=self.memory.cache_growth,
            reserved=self.schedule.reserved,
            facts=self._facts,
            parallel=self.schedule.parallel(self._next_pass()),
        )

    # --- one pass ---

    def _next_pass(self) -> Turn:
        """A chunk or a round. They alternate while both are wanted: no prompt holds up the writing slots for longer
        than a chunk, and no answer holds up a prompt for longer than a round.

        Reading slots take turns, whoever waits longest first: a short prompt beside a long one waits for one chunk of
        it instead of all."""
        reading, writing = self.schedule.reading, self.schedule.writing
        if reading and not (writing and self._chunk_was_last):
            return Turn("reading", (min(reading, key=lambda slot: running_on(slot).last_chunk).index,))
        return Turn("writing", tuple(slot.index for slot in writing)) if writing else Turn("idle")

    def _run_pass(self) -> None:
        self._lending.note_pass()
        turn = self._next_pass()
        slots = [self.schedule.slots[index] for index in turn.slots]
        match turn.does:
            case "reading":
                self._read_chunk(slots[0])
            case "writing":
                self._run_round(slots)
            case _:
                self._rest()

    def _rest(self) -> None:
        """Nothing can run: all is idle, or waits."""
        if self.schedule.is_idle:
            self.memory.rest()
            self.conversations.rest()
            self.check_integrity()

    @property
    def _rows_at_once(self) -> int:
        """Of a prompt. Where any number of rows has the same bits, writing slots wait for a part of a chunk only."""
        if self._model.is_row_invariant and self.schedule.writing:
            return min(self._chunk, _PASSES_BESIDE * self._model.row_bucket)
        return self._chunk

    def _read_chunk(self, slot: Slot) -> None:
        sequence = running_on(slot)
        sequence.last_chunk = self._turns
        began = self._world.clock()
        rows = round.read_chunk(self._model, slot, self._rows_at_once)
        ended = self._world.clock()
        if rows:
            self.conversations.read(slot, rows)
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

    def close(self) -> None:
        """What conversations left behind reaches the disk, as far as a few seconds go."""
        self.conversations.close()

    def check_integrity(self) -> None:
        self.schedule.check_integrity()
        self.conversations.check_integrity()
        self.memory.check_integrity()
        assert self._leave_by is None or self._draining, "who leaves takes nothing new"
