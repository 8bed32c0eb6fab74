"""The exactness gate: the same requests with every kind of guess and every number of slots, and conversations that come
back from wherever they were kept, compared token for token.

The first run, without guesses on one slot, says what the text is; of conversations, one that reads every prompt anew.
Every other run must write the same, or part at a near tie: a position where the token it wrote scored within rounding
of the one that was expected. All of it goes through `Engine` itself, with its real queue, slots, rounds and caches.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import msgspec
import numpy as np
from torch import Tensor

from tandem.contract.messages import Finished, Health, Refused, Tokens
from tandem.contract.plan import CachesPlan, Plan, SlotPlan
from tandem.draft.drafting import Drafting
from tandem.engine.choice import comparison_for
from tandem.engine.drafters import no_drafting
from tandem.engine.engine import Engine
from tandem.engine.invented import Inventing, Texts, half_right, wrong
from tandem.engine.letters import Prepared, Received, Sent
from tandem.engine.sample import Row
from tandem.engine.verify_turns import TURNS, Case, Kept, conversations, longest, returning
from tandem.engine.world import World
from tandem.errors import CannotStart, TandemError
from tandem.model.interface import Block, Model

SLOTS: Final = (1, 2, 4)
NODES: Final = 15  # of made-up trees
_ROUNDING: Final = {"float32": 1e-5}  # of the largest score: what a sum in another order may move
_COARSE: Final = 2.0**-7  # the same of every format that computes in 16 bits or fewer
_ROOM: Final = 1 << 60  # bytes; memory, the queue and patience are not what is tried here
_QUEUE: Final = 1 << 60  # requests
_PATIENCE: Final = 1e18  # seconds
_NO_CACHES: Final = CachesPlan(0, 0, None)
_SETTLES: Final = 30.0  # seconds in which a disk has looked, and written
_LOOK: Final = 0.002  # seconds between two looks at it

Served = Callable[[], AbstractContextManager[Drafting]]
Tell = Callable[[str, int, int], None]  # (what runs, requests done, of how many)


@dataclass(frozen=True, slots=True)
class Mode:
    drafter: str  # none | wrong | half-right | served
    slots: int
    kept: Kept | None = None  # of conversations that come back; None: nobody does

    def __str__(self) -> str:
        kept = f", back from {self.kept}" if self.kept is not None else ""
        return f"{self.drafter}, {self.slots} slot{'s' if self.slots > 1 else ''}{kept}"


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a run first wrote something else."""

    request: str
    mode: Mode
    position: int  # in the answer
    expected: int | None  # None: the answer should have ended here
    written: int | None
    gap: float  # between the two best scores there
    lead: float  # of the expected token over the one that was written
    tolerance: float

    @property
    def is_near_tie(self) -> bool:
        return self.lead <= self.tolerance


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run wrote, and how."""

    mode: Mode
    tokens: int
    rounds: int
    rows: int
    drafted: int
    accepted: int
    seconds: float
    differences: tuple[Difference, ...]
    failures: tuple[str, ...]  # sentences; a request that failed wrote nothing to compare
    prompts: int = 0  # tokens of all prompts
    resumed: int = 0  # of them, those whose rows were still there
    requests: int = 0  # each turn of a conversation is one
    together: int = 0  # the most that were in one round

    @property
    def is_tried(self) -> bool:
        """Whether what the mode is about has happened: with several slots, that two were in one round."""
        return self.requests > 0 and self.together >= min(2, self.mode.slots)


@dataclass(frozen=True, slots=True)
class Report:
    requests: int  # in each mode in which nobody comes back
    returning: int  # conversations, in each of the others
    outcomes: tuple[Outcome, ...]

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(each for outcome in self.outcomes for each in outcome.differences)

    @property
    def passed(self) -> bool:
        """Every difference is a near tie, and no request failed."""
        return all(each.is_near_tie for each in self.differences) and not any(each.failures for each in self.outcomes)


def verify(
    model: Model, plan: Plan, cases: Sequence[Case], served: Served, tell: Tell, slots: Sequence[int] = SLOTS
) -> Report:
    """Run `cases` in every mode. `served` opens the drafting of the plan. Made-up guesses know one text a scope and
    prompt. Caches are the gate's own, and gone with it."""
    gate = _Gate(model, plan, cases, tell, most_slots=max(slots))
    plain, texts = gate.run(Mode("none", 1), no_drafting())
    known = {(case.ask.scope, case.ask.tokens): texts.get(case.ask.id, ()) for case in cases}
    outcomes = [plain]
    for mode, drafting in _modes(known, slots, served):
        with drafting as each:
            outcomes.append(gate.run(mode, each, texts)[0])
    anew, texts = gate.run(Mode("none", 1, Kept.NOWHERE), no_drafting())
    outcomes.append(anew)
    for mode, drafting in _modes_of_return(slots, served):
        with drafting as each:
            outcomes.append(gate.run(mode, each, texts)[0])
    return Report(len(cases), len(gate.returning), tuple(outcomes))


def _modes(
    texts: Texts, slots: Sequence[int], served: Served
) -> Iterator[tuple[Mode, AbstractContextManager[Drafting]]]:
    for count in slots:
        if count > 1:
            yield Mode("none", count), nullcontext(no_drafting())
        yield Mode("wrong", count), nullcontext(Inventing(texts, wrong, NODES))
        yield Mode("half-right", count), nullcontext(Inventing(texts, half_right, NODES, seed=count))
        yield Mode("served", count), served()


def _modes_of_return(slots: Sequence[int], served: Served) -> Iterator[tuple[Mode, AbstractContextManager[Drafting]]]:
    for count in slots:
        yield Mode("none", count, Kept.SLOTS), nullcontext(no_drafting())
        yield Mode("served", count, Kept.MEMORY), served()
        yield Mode("none", count, Kept.DISK), nullcontext(no_drafting())


class _Gate:
    """One model, run again and again."""

    def __init__(self, model: Model, plan: Plan, cases: Sequence[Case], tell: Tell, most_slots: int) -> None:
        self._model = model
        self._plan = plan.engine
        limits = msgspec.structs.replace(plan.live.limits, max_queue=_QUEUE, request_timeout=_PATIENCE)
        self._live = msgspec.structs.replace(plan.live, limits=limits)
        self._cases = cases
        self.returning = returning(cases, model.config.window, least=most_slots)
        lengths = [len(case.ask.tokens) + case.ask.max_tokens for case in cases]
        self._window = max((*lengths, *(longest(case.ask) for case in self.returning)))
        self._tell = tell

    def run(
        self, mode: Mode, drafting: Drafting, expected: dict[str, tuple[int, ...]] | None = None
    ) -> tuple[Outcome, dict[str, tuple[int, ...]]]:
        """What happened, and the text of every request that finished."""
        began = time.perf_counter()
        done, total, sizes = list[Case](), Counter[str](), set[int]()
        cases = self._cases if mode.kept is None else self.returning
        asks = len(cases) * (1 if mode.kept is None else TURNS)
        written = _Written(lambda count: self._tell(str(mode), count, asks))
        with TemporaryDirectory(prefix="tandem-") as folder:
            caches = mode.kept.caches(Path(folder)) if mode.kept is not None else _NO_CACHES
            engine = self._engine(self._model, mode.slots, drafting, written, caches)
            for turn in self._turns(mode, cases, written.texts if expected is None else expected):
                if mode.kept is Kept.DISK and done:  # what is found now was read back
                    total += _close(engine, sizes)
                    engine = self._engine(self._model, mode.slots, drafting, written, caches)
                self._drive(engine, turn)
                done += turn
            total += _close(engine, sizes)
        outcome = Outcome(
            mode=mode,
            tokens=total["tokens"],
            rounds=total["rounds"],
            rows=total["rows"],
            drafted=total["drafted"],
            accepted=total["accepted"],
            seconds=time.perf_counter() - began,
            differences=tuple(self._compare(mode, done, written.texts, expected or {})),
            failures=tuple(written.failures),
            prompts=sum(len(case.ask.tokens) for case in done),
            resumed=written.resumed,
            requests=len(done),
            together=max(sizes, default=0),
        )
        return outcome, written.texts

    @staticmethod
    def _turns(mode: Mode, cases: Sequence[Case], written: dict[str, tuple[int, ...]]) -> Iterator[Sequence[Case]]:
        """What is asked at once; the next, when it is done."""
        if mode.kept is None:
            return iter([cases])
        return conversations(cases, written, anew=mode.kept is Kept.NOWHERE)

    def _engine(
        self, model: Model, slots: int, drafting: Drafting, written: _Written, caches: CachesPlan = _NO_CACHES
    ) -> Engine:
        windows = tuple(SlotPlan(index, self._window, 0) for index in range(slots))
        plan = msgspec.structs.replace(self._plan, slots=windows, caches=caches)
        world = World(time.perf_counter, lambda: _ROOM, lambda: 0, written.post)
        return Engine(model, plan, self._live, _ROOM, world, drafting=drafting)

    @staticmethod
    def _drive(engine: Engine, cases: Sequence[Case]) -> None:
        _settle(engine)
        letters = [case.ask if case.grammar is None else Prepared(case.ask, case.grammar) for case in cases]
        engine.turn([Received(1, letter) for letter in letters])
        while not engine.schedule.is_idle:
            engine.turn(())
            engine.check_integrity()

    # --- comparing ---

    def _compare(
        self,
        mode: Mode,
        cases: Sequence[Case],
        texts: dict[str, tuple[int, ...]],
        expected: dict[str, tuple[int, ...]],
    ) -> Iterator[Difference]:
        for case in cases:
            id = case.ask.id
            if id in texts and id in expected and texts[id] != expected[id]:
                yield self._difference(mode, case, texts[id], expected[id])

    def _difference(self, mode: Mode, case: Case, written: tuple[int, ...], expected: tuple[int, ...]) -> Difference:
        at = next((n for n, (a, b) in enumerate(zip(written, expected, strict=False)) if a != b), None)
        place = min(len(written), len(expected)) if at is None else at
        row = self._row(case, place)
        compare = comparison_for(case.ask, len(row), case.ask.sampling.seed or 0, case.grammar)
        scores = compare(row, expected[:place])
        best, second = np.sort(scores)[::-1][:2].tolist()

        def score(text: tuple[int, ...]) -> float:
            tokens = text[place : place + 1] or case.ask.stop_tokens
            return max((float(scores[token]) for token in tokens), default=-np.inf)

        return Difference(
            request=case.ask.id,
            mode=mode,
            position=place,
            expected=next(iter(expected[place:]), None),
            written=next(iter(written[place:]), None),
            gap=best - second,
            lead=score(expected) - score(written),
            tolerance=_ROUNDING.get(self._plan.compute, _COARSE) * float(np.abs(row).max()),
        )

    def _row(self, case: Case, position: int) -> Row:
        """The logits from which the expected text chose there: it is written again, alone, and looked at."""
        recorder = _Recorder(self._model, position)
        self._drive(self._engine(cast(Model, recorder), 1, no_drafting(), _Written(lambda done: None)), [case])
        if recorder.row is None:
            raise TandemError(f"the model ended before token {position} of `{case.ask.id}`, which it wrote before")
        return recorder.row


def _settle(engine: Engine) -> None:
    """Where there is a disk, its thread has looked and written."""
    until = time.perf_counter() + _SETTLES
    while (disk := engine.conversations.caches.stats.disk) and (not disk.is_scanned or disk.waiting):
        if time.perf_counter() > until:
            raise CannotStart(f"the disk has not read or written the conversations of the gate in {_SETTLES:.0f} s")
        engine.turn(())
        time.sleep(_LOOK)


def _close(engine: Engine, sizes: set[int]) -> Counter[str]:
    """What it counted. How many were in a round goes into `sizes`."""
    _settle(engine)
    counters = engine.health().counters
    assert counters is not None
    engine.close()
    sizes.update(int(size) for size, rounds in counters.rounds_by_size.items() if rounds)
    return Counter(
        tokens=counters.committed_tokens,
        rounds=sum(counters.rounds_by_size.values()),
        rows=counters.rows,
        drafted=sum(counters.drafted.values()),
        accepted=sum(counters.accepted.values()),
    )


class _Written:
    """What engines post."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.texts: dict[str, tuple[int, ...]] = {}  # of requests that finished
        self.failures: list[str] = []
        self.resumed = 0  # tokens of prompts whose rows were there
        self._growing: dict[str, list[int]] = {}
        self._tell = tell

    def post(self, letters: list[Sent], health: Health) -> None:
        for letter in letters:
            match letter.message:
                case Tokens(id=id, tokens=tokens):
                    self._growing.setdefault(id, []).extend(tokens)
                case Finished(id=id, cached_tokens=cached):
                    self.resumed += cached
                    self.texts[id] = tuple(self._growing.pop(id, ()))
                    self._tell(len(self.texts) + len(self.failures))
                case Refused(id=id, sentence=sentence):
                    self.failures.append(f"{id}: {sentence}")
                    self._tell(len(self.texts) + len(self.failures))


class _Recorder:
    """A model that keeps one row of logits: of the sequence that runs alone on it, the one behind `position` tokens."""

    def __init__(self, model: Model, position: int) -> None:
        self.row: Row | None = None
        self._model = model
        self._position = position
        self._seen = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        logits = self._model.forward(blocks)
        if len(logits):
            if self._seen == self._position:
                self.row = logits[0].numpy(force=True).copy()
            self._seen += 1
        return logits
