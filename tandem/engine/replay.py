"""A trace of requests through the real `route` and the real `admit`, on a clock of its own: what a slot count, a window
or a rule would have done to the same week. Pure; no model, no tensor.

Prompts are pieces of known length under the hash of what they say: two prompts share their first pieces as long as
these are the same. Device time is modelled coarsely, by two speeds; reading back from a cache takes none.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Final

from msgspec import Meta, Struct

from tandem.contract.plan import Routing
from tandem.engine.admit import Offer, Running, decide
from tandem.engine.case import fits
from tandem.engine.facts import Ask, Grid, Held, Holder, SlotFacts, Source, Take, Wait
from tandem.engine.route import route

JOINT: Final = 0.2  # what every further slot adds to a round, of one slot's round
Count = Annotated[int, Meta(ge=1)]
Pieces = tuple[tuple[str, Count], ...]  # (hash of the content, tokens)


class Arrival(Struct, frozen=True):
    """One request of a trace."""

    id: str
    at: Annotated[float, Meta(ge=0.0)]  # seconds
    prompt: Annotated[Pieces, Meta(min_length=1)]
    max_tokens: Count
    head_end: Annotated[int, Meta(ge=0)]  # tokens up to the end of the first user message
    client: str = ""
    writes: Count | None = None  # tokens that it wrote; None: all it may
    task: bool = False
    own_work: bool = False

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.prompt)


class Setting(Struct, frozen=True):
    """What the trace is played on."""

    windows: tuple[int, ...]
    grid: Grid
    rules: Routing
    read_rate: float = 1_000.0  # tokens a second
    write_rate: float = 45.0  # of one slot alone
    cache_rows: int = 0  # rows of conversations moved aside, and of heads
    memory_rows: int | None = None  # that all who run may take together
    block: int = 1  # rows in which they are taken


@dataclass(slots=True)
class Run:
    """A request on its slot."""

    arrival: Arrival
    take: Take
    began: float
    read: int
    left: int  # tokens to write
    reserved: int  # blocks
    first: float | None = None


@dataclass(slots=True)
class Lane:
    """A slot."""

    index: int
    window: int
    kept: Pieces = ()
    rows: int = 0  # of `kept`
    is_errand: bool = False
    run: Run | None = None
    last_used: float = 0.0
    busy: float = 0.0  # seconds


class Served(Struct, frozen=True):
    """What became of one request."""

    id: str
    client: str
    slot: int
    reason: str
    source: str
    prompt: int
    cached: int
    waited: float
    ttft: float
    ended: float
    max_tokens: int


class Replay:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.now = 0.0
        self.served: list[Served] = []
        self.yielded: list[str] = []  # own work that gave way to a client
        self.waits: Counter[str] = Counter()  # requests, by what they waited for
        self.lanes = [Lane(index, window) for index, window in enumerate(setting.windows)]
        self._aside: OrderedDict[int, int] = OrderedDict()  # tokens of a piece behind all before it; oldest first
        self._waiting: list[Arrival] = []
        self._kinds: dict[str, set[str]] = {}
        self._deadline: float | None = None
        self._chunk_was_last = False

    def play(self, trace: Iterable[Arrival]) -> Replay:
        coming = sorted(trace, key=lambda arrival: arrival.at)
        for arrival in coming:
            if arrival.tokens >= self.setting.windows[0]:
                raise ValueError(f"{arrival.id}: its prompt of {arrival.tokens:,} tokens has no room in slot 0")
        while coming or self._waiting or any(lane.run for lane in self.lanes):
            while coming and coming[0].at <= self.now:
                self._queue(coming.pop(0))
            if not self._boundary():
                self._pass(coming[0].at if coming else None)
        return self

    def _queue(self, arrival: Arrival) -> None:
        clients = sum(not each.own_work for each in self._waiting)
        self._waiting.insert(len(self._waiting) if arrival.own_work else clients, arrival)

    # --- the boundary ---

    def _boundary(self) -> bool:
        """Who starts, and which own work gives way; whether any did, so that there is another boundary at once."""
        takes: dict[str, Take] = {}
        waits: dict[str, Wait] = {}
        by_id = {arrival.id: arrival for arrival in self._waiting}

        def offer(id: str, free: frozenset[int]) -> Offer | None:
            arrival, given = by_id[id], {take.slot: by_id[other] for other, take in takes.items()}
            facts = [self._facts(arrival, lane, free, given.get(lane.index)) for lane in self.lanes]
            elsewhere = [Held(Source.PARK, rows) for rows in [self._found(arrival.prompt)] if rows]
            answer = route(_ask_of(arrival), facts, elsewhere, self.setting.rules, self.setting.grid, self.now)
            if isinstance(answer, Wait):
                waits[id] = answer
                return None
            takes[id] = answer
            return Offer(answer.slot, self._blocks(arrival.tokens + answer.max_tokens))

        running = [Running(lane.index, run.left, run.reserved) for lane in self.lanes if (run := lane.run)]
        rows = self.setting.memory_rows
        capacity = 1 << 62 if rows is None else rows // self.setting.block
        boundary = decide(running, list(by_id), range(len(self.lanes)), capacity, offer)
        for id, _ in boundary.admitted:
            self._waiting.remove(by_id[id])
            self._begin(by_id[id], takes[id])
        return self._note(waits, by_id)

    def _note(self, waits: dict[str, Wait], by_id: dict[str, Arrival]) -> bool:
        before = len(self.yielded)
        self._deadline = min((wait.until for wait in waits.values() if wait.until is not None), default=None)
        for id, wait in waits.items():
            if wait.kind not in self._kinds.setdefault(id, set()):
                self._kinds[id].add(wait.kind)
                self.waits[str(wait.kind)] += 1
            lane = self.lanes[wait.for_slot] if wait.for_slot is not None else None
            if lane and lane.run and lane.run.arrival.own_work and not by_id[id].own_work:
                self.yielded.append(lane.run.arrival.id)
                lane.run, lane.last_used = None, self.now
        return len(self.yielded) > before

    def _facts(self, arrival: Arrival, lane: Lane, free: frozenset[int], given: Arrival | None) -> SlotFacts:
        shared = min(lane.rows, num_shared(arrival.prompt, lane.kept))
        who = given or (lane.run.arrival if lane.run else None)
        holder = Holder.NOBODY
        if lane.index not in free:
            holder = Holder.OWN_WORK if who and who.own_work else Holder.CLIENT
        return SlotFacts(
            lane.index,
            lane.window,
            kept=lane.rows,
            shared=shared,
            served=lane.rows,
            continued=shared,
            lent=shared if given is None else 0,
            is_errand=lane.is_errand,
            last_used=lane.last_used,
            holder=holder,
        )

    def _begin(self, arrival: Arrival, take: Take) -> None:
        lane = self.lanes[take.slot]
        if take.park_first:
            self._move_aside(lane.kept, lane.rows)
        if take.moves and take.carry_from is not None and self.lanes[take.carry_from].run is None:
            self.lanes[take.carry_from].kept, self.lanes[take.carry_from].rows = (), 0
        lane.kept, lane.rows, lane.is_errand = arrival.prompt, take.resume_at, arrival.task or arrival.own_work
        writes = take.max_tokens if arrival.writes is None else min(arrival.writes, take.max_tokens)
        reserved = self._blocks(arrival.tokens + take.max_tokens)
        lane.run = Run(arrival, take, self.now, take.resume_at, max(1, writes), reserved)

    def _blocks(self, rows: int) -> int:
        return ceil(rows / self.setting.block)

    # --- what is kept elsewhere ---

    def _move_aside(self, pieces: Pieces, rows: int) -> None:
        """What several prompts begin with is there once, and leaves after what is behind it."""
        first = 0
        within = [(key, n) for key, n in _keys(pieces) if (first := first + n) <= rows]
        for key, tokens in reversed(within):
            self._aside[key] = tokens
            self._aside.move_to_end(key)
        while self._aside and sum(self._aside.values()) > self.setting.cache_rows:
            self._aside.popitem(last=False)

    def _found(self, prompt: Pieces) -> int:
        rows = 0
        for key, tokens in _keys(prompt):
            if key not in self._aside:
                break
            rows += tokens
        return rows

    # --- the device ---

    def _pass(self, next_arrival: float | None) -> None:
        reading = [lane for lane in self.lanes if lane.run and lane.run.first is None]
        writing = [lane for lane in self.lanes if lane.run and lane.run.first is not None]
        if reading and not (writing and self._chunk_was_last):
            self._read(min(reading, key=lambda lane: lane.run.began if lane.run else 0.0))
        elif writing:
            self._write(writing, 1 if reading else self._rounds_until(writing, next_arrival))
        else:
            self._skip(next_arrival)

    def _read(self, lane: Lane) -> None:
        run = lane.run
        assert run is not None
        rows = min(self.setting.grid.chunk - run.read % self.setting.grid.chunk, run.arrival.tokens - run.read)
        self._spend(rows / self.setting.read_rate)
        run.read += rows
        lane.rows = run.read - run.read % self.setting.grid.unit
        self._chunk_was_last = True
        if run.read == run.arrival.tokens:
            run.first = self.now
            run.left -= 1
            if not run.arrival.task and not run.arrival.own_work:
                self._move_aside(run.arrival.prompt, run.arrival.head_end)
            self._retire(lane)

    def _write(self, writing: list[Lane], rounds: int) -> None:
        self._spend(rounds * self._round_seconds(len(writing)))
        self._chunk_was_last = False
        for lane in writing:
            assert lane.run is not None
            lane.run.left -= rounds
            self._retire(lane)

    def _round_seconds(self, slots: int) -> float:
        return (1 + JOINT * (slots - 1)) / self.setting.write_rate

    def _rounds_until(self, writing: list[Lane], next_arrival: float | None) -> int:
        """As many as pass before anything can change."""
        rounds = min(lane.run.left for lane in writing if lane.run)
        for at in (next_arrival, self._deadline):
            if at is not None:
                rounds = min(rounds, ceil((at - self.now) / self._round_seconds(len(writing))))
        return max(1, rounds)

    def _skip(self, next_arrival: float | None) -> None:
        moments = [at for at in (next_arrival, self._deadline) if at is not None and at > self.now]
        if not moments and self._waiting and not any(lane.run for lane in self.lanes):
            raise ValueError(f"{self._waiting[0].id}: needs more memory than there is")
        self.now = min(moments, default=self.now)

    def _spend(self, seconds: float) -> None:
        self.now += seconds
        for lane in self.lanes:
            lane.busy += seconds if lane.run else 0.0

    def _retire(self, lane: Lane) -> None:
        run = lane.run
        assert run is not None and run.first is not None
        if run.left > 0:
            return
        arrival, take = run.arrival, run.take
        facts = (arrival.tokens, take.resume_at, run.began - arrival.at, run.first - arrival.at, self.now)
        self.served.append(
            Served(arrival.id, arrival.client, take.slot, take.reason, str(take.source), *facts, take.max_tokens)
        )
        lane.run, lane.last_used = None, self.now


def num_shared(one: Pieces, other: Pieces) -> int:
    """Tokens of the first pieces that are the same."""
    shared = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        shared += mine[1]
    return shared


def _keys(pieces: Pieces) -> Iterator[tuple[int, int]]:
    key = 0
    for piece in pieces:
        key = hash((key, piece))
        yield key, piece[1]


def _ask_of(arrival: Arrival) -> Ask:
    own, task = arrival.own_work, arrival.task
    return Ask(arrival.tokens, arrival.max_tokens, arrival.head_end, None, arrival.at, own, task)


# --- what it comes to -------------------------------------------------------------------------------------------


class ClientReport(Struct, frozen=True):
    """Of one client's requests; seconds, and shares of one."""

    client: str
    requests: int
    waited: float  # at the median
    waited_longest: float
    ttft: float  # at the median
    ttft_95: float
    cached: float  # of prompt tokens
    fit_a_side_slot: float  # tasks left out
    on_side_slots: float
    cut: float  # whose max_tokens were cut to the slot's room


def reports(replay: Replay, trace: Iterable[Arrival]) -> Iterator[ClientReport]:
    """Every client's, and that of all together as the client `all`."""
    asked = {arrival.id: arrival for arrival in trace}
    windows, least = replay.setting.windows, replay.setting.rules.side_min_room
    side = max(windows[1:], default=0)
    for client in [*sorted({each.client for each in replay.served}), None]:
        mine = [each for each in replay.served if client is None or each.client == client]
        if not mine:
            continue
        turns = [asked[each.id] for each in mine if not asked[each.id].task]
        yield ClientReport(
            client="all" if client is None else client,
            requests=len(mine),
            waited=_quantile([each.waited for each in mine], 0.5),
            waited_longest=max(each.waited for each in mine),
            ttft=_quantile([each.ttft for each in mine], 0.5),
            ttft_95=_quantile([each.ttft for each in mine], 0.95),
            cached=sum(each.cached for each in mine) / sum(each.prompt for each in mine),
            fit_a_side_slot=_share(fits(_ask_of(each), side, windows[0], least) for each in turns),
            on_side_slots=_share(each.slot > 0 for each in mine),
            cut=_share(each.max_tokens < asked[each.id].max_tokens for each in mine),
        )


def _share(cases: Iterable[bool]) -> float:
    counted = list(cases)
    return sum(counted) / len(counted) if counted else 0.0


def _quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]
