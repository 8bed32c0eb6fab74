"""What happened, told to the clients it concerns and counted, in one place."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from tandem.conductor.monitor import is_runaway
from tandem.contract.messages import (
    Counters,
    Finished,
    FinishReason,
    Message,
    Progress,
    RefusalCode,
    Refused,
    RequestState,
    Started,
    Tokens,
)
from tandem.draft.drafting import Drafting
from tandem.engine.facts import Source
from tandem.engine.letters import Sent
from tandem.engine.round import Round
from tandem.engine.slot import Failed, Request, Sequence
from tandem.memory.ladder import Reclaim

log = logging.getLogger("tandem.engine")


@dataclass(slots=True)
class Tally:
    """What `Counters` reports, while it grows."""

    rounds_by_size: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    committed_tokens: int = 0
    prefill_rows: int = 0
    cached_rows: int = 0
    requests: int = 0
    refused: int = 0
    cancelled: int = 0
    peak_running: int = 0
    round_seconds: float = 0.0
    prefill_seconds: float = 0.0
    rounds_by_rows: dict[int, int] = field(default_factory=dict)
    memory_waits: int = 0
    reclaims: int = 0
    reclaimed: dict[str, int] = field(default_factory=dict)
    ended_for_memory: int = 0

    def counters(self, drafting: Drafting) -> Counters:
        """With what drafting counts itself."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values |= {name: dict(getattr(self, name)) for name in ("rounds_by_size", "rounds_by_rows", "reclaimed")}
        drafted, accepted = dict(drafting.drafted), dict(drafting.accepted)
        return Counters(**values, drafted=drafted, accepted=accepted, draft_seconds=drafting.draft_seconds)

    def note_reclaim(self, done: Reclaim) -> None:
        self.reclaims += bool(done.steps)
        for step in done.steps:
            if step.returned:
                kind = step.rung.partition(" of slot")[0]
                self.reclaimed[kind] = self.reclaimed.get(kind, 0) + step.returned

    def note_running(self, running: int) -> None:
        self.peak_running = max(self.peak_running, running)

    def note_chunk(self, rows: int, seconds: float) -> None:
        self.prefill_rows += rows
        self.prefill_seconds += seconds

    def note_round(self, round: Round, seconds: float) -> None:
        self.rounds_by_size[round.slots] = self.rounds_by_size.get(round.slots, 0) + 1
        self.rounds_by_rows[round.rows] = self.rounds_by_rows.get(round.rows, 0) + 1
        self.rows += round.rows
        self.round_seconds += seconds


class Outbox:
    def __init__(self) -> None:
        self.tally = Tally()
        self._letters: list[Sent] = []

    def take(self) -> list[Sent]:
        letters, self._letters = self._letters, []
        return letters

    def tell(self, peer: int, message: Message) -> None:
        self._letters.append(Sent(peer, message))

    def started(self, sequence: Sequence) -> None:
        """It reads on behind what was there, or has come."""
        request, take, rows = sequence.request, sequence.take, sequence.resumed
        self.tally.cached_rows += rows
        facts = (take.slot, take.reason, take.max_tokens, rows, str(take.source if rows else Source.NONE))
        self.tell(request.peer, Started(request.ask.id, *facts, missed=sequence.missed))

    def returning(self, sequence: Sequence) -> None:
        """Rows of its prompt are on their way."""
        rows, total = sequence.take.resume_at, len(sequence.prompt)
        sentence = f"Reading back: {rows:,} of {total:,} prompt tokens from the {sequence.take.source}"
        self.tell(sequence.request.peer, Progress(sequence.request.ask.id, RequestState.READING, 0, total, sentence))

    def phase(self, sequence: Sequence) -> None:
        """How far the prompt is read, or that the answer begins."""
        done, total = sequence.read, len(sequence.prompt)
        state, word = (RequestState.READING, "Reading") if sequence.is_reading else (RequestState.WRITING, "Writing")
        sentence = f"{word}: {done:,} of {total:,} prompt tokens read"
        self.tell(sequence.request.peer, Progress(sequence.request.ask.id, state, done, total, sentence))

    def tokens(self, sequence: Sequence, now: float) -> None:
        """What the sequence wrote since it was asked last; nothing when that is nothing."""
        fresh, scores = sequence.take_untold()
        if fresh:
            sequence.first_token = sequence.first_token or now
            self.tally.committed_tokens += len(fresh)
            self.tell(sequence.request.peer, Tokens(sequence.request.ask.id, fresh, scores))

    def ended(self, sequence: Sequence, now: float) -> None:
        request = sequence.request
        if isinstance(end := sequence.end, Failed):
            self.refused(request, Refused(request.ask.id, end.code, end.sentence, end.retry_after))
            return
        assert end is not None, "only what has ended is retired"
        self.tally.cancelled += end is FinishReason.CANCELLED
        first = sequence.first_token or now
        thinking, loop = sequence.choice.num_thinking(sequence.written), sequence.choice.watch.seen
        runaway = is_runaway(thinking, sequence.max_tokens)
        if loop is not None:
            log.info("[monitor] %s: %d tokens came %d times in a row", request.ask.id, loop.period, loop.repeats)
        if runaway:
            log.info("[monitor] %s: %d of %d tokens were thinking", request.ask.id, thinking, sequence.max_tokens)
        finished = Finished(
            id=request.ask.id,
            reason=end,
            prompt_tokens=len(sequence.prompt),
            cached_tokens=sequence.resumed,
            completion_tokens=len(sequence.written),
            queue_seconds=sequence.admitted - request.arrived,
            prefill_seconds=first - sequence.admitted,
            decode_seconds=now - first,
            rounds=sequence.rounds,
            drafted=sequence.drafted,
            accepted=sequence.accepted,
            reasoning_tokens=thinking,
            loop=loop,
            runaway=runaway,
        )
        self.tell(request.peer, finished)

    def cancelled_in_queue(self, request: Request, now: float) -> None:
        self.tally.cancelled += 1
        counts = (len(request.ask.tokens), 0, 0)
        times = (now - request.arrived, 0.0, 0.0)
        self.tell(request.peer, Finished(request.ask.id, FinishReason.CANCELLED, *counts, *times))

    def refused(self, request: Request, refusal: Refused) -> None:
        self.tally.refused += 1
        told = refusal.sentence if refusal.param is None else "a place in the request"  # which may quote it
        log.info("%s: refused (%s): %s", request.ask.id, refusal.code, told)
        self.tell(request.peer, refusal)

    @contextmanager
    def refusing(self, request: Request) -> Iterator[None]:
        """A failure in here ends this request; the loop goes on."""
        try:
            yield
        except Exception as error:
            log.exception("%s could not be handled", request.ask.id)
            sentence = f"the engine could not handle this request ({type(error).__name__})"
            self.refused(request, Refused(request.ask.id, RefusalCode.FAILED, sentence))
