"""Who waits, in order: clients, then the appliance's own work, each in order of arrival.

Book-keeping only: it knows whom to ask next and whom to tell next, not what they are asked or told. There is a boundary
every round, and thousands may wait: a boundary at which nothing has changed costs nothing here. One at which somebody
starts or a slot becomes free copies the queue, which is references and no more, to ask all of it again, and so does the
beginning of a round of news; whom that concerns is then asked and told a few at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import chain, count, islice, takewhile
from math import inf
from typing import Final

from tandem.engine.slot import Request
from tandem.engine.waiting import Key, Waiting

AT_ONCE: Final = 16  # requests that one boundary asks, and that it tells of their place: half a millisecond


class Queue:
    def __init__(self) -> None:
        self._clients: dict[Key, Waiting] = {}
        self._own_work: dict[Key, Waiting] = {}
        # Whom the present circumstances have not been put to. Who was asked is asked again when these change, or when
        # its wait is over, which `_ends` knows.
        self._unasked: tuple[deque[Waiting], deque[Waiting]] = (deque(), deque())
        self._ends: list[tuple[float, int, Waiting]] = []  # a heap: when, and a number where two are equal
        self._numbers = count()
        self._oldest = inf  # nobody here arrived before
        self._telling: Iterator[Waiting] | None = None  # the round of news that goes on
        self._passed: tuple[set[Key], set[Key]] = (set(), set())  # whom it has come by, and who is still here
        self._has_news = False  # something has changed since it began

    def __len__(self) -> int:
        return len(self._clients) + len(self._own_work)

    def __iter__(self) -> Iterator[Waiting]:
        return chain(self._clients.values(), self._own_work.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._clients or key in self._own_work

    def get(self, key: Key) -> Waiting | None:
        return self._clients.get(key) or self._own_work.get(key)

    # --- who comes and goes ---

    def add(self, request: Request) -> None:
        entry, own_work = Waiting(request), request.ask.own_work
        assert request.key not in self, "a request waits once"
        (self._own_work if own_work else self._clients)[request.key] = entry
        self._unasked[own_work].append(entry)
        self._oldest = min(self._oldest, request.arrived)
        self._has_news = True

    def remove(self, keys: Iterable[Key]) -> list[Waiting]:
        """Those of them that wait here; they are gone then."""
        removed = [entry for key in keys if (entry := self._clients.pop(key, None) or self._own_work.pop(key, None))]
        for entry in removed:
            entry.has_left = True
            self._passed[entry.request.ask.own_work].discard(entry.request.key)
            self._has_news = True
        return removed

    def remove_arrived_before(self, time: float) -> list[Waiting]:
        """Who waits for too long; they are gone then."""
        if self._oldest >= time:
            return []
        late: list[Waiting] = []
        self._oldest = inf
        for entries in (self._clients, self._own_work):
            late += takewhile(lambda entry: entry.request.arrived < time, entries.values())
            firsts = (entry.request.arrived for entry in entries.values() if entry.request.arrived >= time)
            self._oldest = min(self._oldest, next(firsts, inf))
        return self.remove([entry.request.key for entry in late])

    # --- whom to ask ---

    def ask_all_again(self) -> None:
        """Circumstances are others than before."""
        self._unasked = (deque(self._clients.values()), deque(self._own_work.values()))
        self._ends.clear()

    def to_ask(self, now: float) -> Iterator[Waiting]:
        """The next whose answer is not known, in order; a few at a time, so that a round never waits for all of them.
        Until every client was asked, own work is not."""
        over: list[Waiting] = []
        while self._ends and self._ends[0][0] <= now:
            over.append(heappop(self._ends)[2])
        for entry in sorted(over, key=lambda entry: entry.request.arrived, reverse=True):
            self.ask_again(entry)
        return islice(self._next_unasked(), AT_ONCE)

    def _next_unasked(self) -> Iterator[Waiting]:
        for entries in self._unasked:
            while entries:
                if not (entry := entries.popleft()).has_left:
                    yield entry

    def ask_again(self, entry: Waiting) -> None:
        """Before all others of its kind: it was asked before them."""
        self._unasked[entry.request.ask.own_work].appendleft(entry)

    def note_answer(self, entry: Waiting) -> None:
        """It waits for what `entry.wait` says."""
        self._has_news = True
        if entry.wait is not None and entry.wait.until is not None:
            heappush(self._ends, (entry.wait.until, next(self._numbers), entry))

    @property
    def has_unasked(self) -> bool:
        return any(self._unasked)

    # --- whom to tell ---

    def to_tell(self, more: bool) -> Iterator[tuple[int, Waiting]]:
        """(how many stand before it, who) for the next few to whom there may be something new to say; `more` where
        something has changed that is not the queue's. Round after round, so that everyone's turn comes."""
        self._has_news |= more
        if self._telling is None and self._has_news:
            self._telling, self._has_news = iter(tuple(self)), False
            self._passed = (set(), set())
        if self._telling is None:
            return
        told = list(islice(self._telling, AT_ONCE))
        for entry in told:
            if not entry.has_left:
                own_work = entry.request.ask.own_work
                passed = self._passed[own_work]
                yield len(passed) + (len(self._clients) if own_work else 0), entry
                passed.add(entry.request.key)
        if len(told) < AT_ONCE:
            self._telling = None

    def check_integrity(self) -> None:
        for own_work, entries in ((False, self._clients), (True, self._own_work)):
            assert all(entry.request.ask.own_work is own_work for entry in entries.values()), "own work stands behind"
            arrivals = [entry.request.arrived for entry in entries.values()]
            assert arrivals == sorted(arrivals), "first come, first served"
            assert all(self._oldest <= arrival for arrival in arrivals)
        assert not any(entry.has_left for entry in self)
