"""A slot: room for one sequence, the sequence that runs there, and what stays when it has ended.

Only the device thread touches a slot. Nothing here knows the queue or routing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from tandem.caches.anchors import Anchors
from tandem.caches.restore import Restore
from tandem.caches.shelf import Hold
from tandem.contract.messages import FinishReason, Generate, Missed, RefusalCode, SlotView, TokenScore
from tandem.draft.drafting import Followed
from tandem.engine.choice import Choice
from tandem.engine.facts import Take
from tandem.engine.grammar.mask import Compiled
from tandem.engine.row_memory import RowMemory
from tandem.engine.sample import Row
from tandem.model.interface import SequenceState


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """What a client asked for, from its arrival to its last message."""

    peer: int  # the channel it came by; ids are the peer's own
    ask: Generate
    arrived: float
    grammar: Compiled | None = None  # there when `ask` has one

    @property
    def key(self) -> tuple[int, str]:
        return self.peer, self.ask.id


@dataclass(frozen=True, slots=True)
class Failed:
    """The request could not go on; the fields are those of its `Refused`."""

    sentence: str
    code: RefusalCode = RefusalCode.FAILED
    retry_after: float | None = None


@dataclass(slots=True)
class Sequence:
    """One request on its slot: the prompt is read on the grid, then tokens are written one round at a time."""

    request: Request
    take: Take  # how it came to its slot
    choice: Choice
    followed: Followed
    admitted: float
    ends_loops: bool = False  # an answer that repeats itself without end is ended
    resumed: int = 0  # rows that it did not have to read
    read: int = 0  # rows of the prompt that lie in the slot
    restore: Restore | None = None  # more of them are on their way
    missed: Missed | None = None  # why nothing of its conversation was found
    written: list[int] = field(default_factory=list)  # a stop token is not among them
    scores: list[TokenScore] = field(default_factory=list)  # of the written tokens, where they are wanted
    told: int = 0  # written tokens that were sent
    rounds: int = 0  # it took part in
    drafted: int = 0  # guesses that were checked for it
    accepted: int = 0  # of them, the model's own choice
    first_token: float | None = None
    last_chunk: int = -1  # the turn of its last prefill chunk
    end: FinishReason | Failed | None = None

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.request.ask.tokens

    @property
    def max_tokens(self) -> int:
        """After the cut to the slot's room."""
        return self.take.max_tokens

    @property
    def is_reading(self) -> bool:
        return self.read < len(self.prompt)

    @property
    def is_errand(self) -> bool:
        return self.request.ask.task or self.request.ask.own_work

    @property
    def tokens_left(self) -> int:
        return 0 if self.end else self.max_tokens - len(self.written)

    def write(self, row: Row) -> int:
        """Choose the next token by its row and take it over, or end with it. The token is final, a stop token too."""
        token = self.choice.choose(row, self.written)
        if token in self.request.ask.stop_tokens:
            self.end = FinishReason.STOP
            return token
        self.written.append(token)
        if self.choice.score is not None:
            self.scores.append(self.choice.score(row, token))
        loop = self.choice.watch.follow((token,))
        if len(self.written) == self.max_tokens:
            self.end = FinishReason.LENGTH
        elif loop is not None and self.ends_loops:
            self.end = FinishReason.LOOP
        return token

    def take_untold(self) -> tuple[tuple[int, ...], tuple[TokenScore, ...]]:
        """What was written since it was asked last, and its scores."""
        fresh = tuple(self.written[self.told :]), tuple(self.scores[self.told :])
        self.told = len(self.written)
        return fresh


@dataclass(frozen=True, slots=True)
class Resident:
    """The rows of a conversation that a later request may resume on, because reading again gives the same bits.

    Of a model whose rows are the same whatever pass wrote them that holds for all rows. Otherwise for those written by
    whole chunks on the grid: decoded rows and a prompt's last, shorter chunk came from passes of another shape.
    """

    scope: str = ""  # requests of another scope see none of this
    tokens: tuple[int, ...] = ()  # the prompt these rows belong to, and its answer when that is read or written
    rows: int = 0  # of `tokens`, from the start
    client_tokens: tuple[int, ...] = ()  # that prompt as the client's messages render it
    conversation: str = ""  # as the client names it
    is_errand: bool = False  # nobody comes back to it: a title, the appliance's own question

    def followed_by(self, ask: Generate, resumed: int) -> Resident:
        """What is kept once `ask` begins on the first `resumed` rows. An errand that goes on from a conversation does
        not take its name: whoever it belongs to comes back to what is left."""
        is_errand = ask.task or ask.own_work
        if is_errand and resumed and self.rows and not self.is_errand:
            return replace(self, tokens=ask.tokens, rows=resumed)
        client_tokens = ask.tokens if ask.client_tokens is None else ask.client_tokens
        return Resident(ask.scope, ask.tokens, resumed, client_tokens, ask.conversation, is_errand)


NOTHING_KEPT = Resident()


def num_agreeing(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many first tokens are the same."""
    same, limit = 0, min(len(one), len(other))
    while same < limit and one[same : (end := min(same + _STRIDE, limit))] == other[same:end]:
        same = end
    while same < limit and one[same] == other[same]:
        same += 1
    return same


_STRIDE: Final = 256  # tokens compared at once


@dataclass(frozen=True, slots=True)
class Aside:
    """A conversation whose first rows a guest overwrites."""

    kept: Resident
    overwritten: int  # rows, at most
    shared: int  # of them, rows that the guest begins with as well
    hold: Hold | None  # copies of what is overwritten; None: there was no room for them


@dataclass(slots=True)
class Slot:
    index: int
    window: int
    state: SequenceState
    memory: RowMemory
    unit: int  # a sequence may go on at multiples of it: 1 where any row may be kept, else the chunk
    anchors: Anchors  # of the conversation that is kept, where the state cannot rewind
    rows: int = 0  # of the sequence that runs, or ran last
    kept: Resident = NOTHING_KEPT
    aside: Aside | None = None  # while its guest runs
    sequence: Sequence | None = None
    last_used: float = 0.0

    @property
    def returns_to(self) -> Resident:
        """What lies here when whoever runs has ended."""
        return self.aside.kept if self.aside else self.kept

    def resumable(self, rows: int) -> int:
        """Where a sequence may go on whose first `rows` rows lie here: there or before."""
        if self.state.can_rewind:
            return rows - rows % self.unit
        anchor = self.anchors.at(rows)
        return anchor.position if anchor else 0

    def begin(self, sequence: Sequence, aside: Aside | None = None, copied: Resident | None = None) -> None:
        """The sequence's first `resumed` rows lie here; all others are its to overwrite. With `aside` it is a guest.
        `copied` is whose rows they are where another slot lent them: then nothing is left of what lay here."""
        assert self.sequence is None and self.aside is None and sequence.resumed <= self.memory.rows
        self.aside = aside
        if aside is None:
            self.anchors.cut(sequence.resumed if copied is None else 0)
            if copied is not None and sequence.resumed:
                self.anchors.note(self.state)
        left = self.kept if copied is None else copied
        self.kept = left.followed_by(sequence.request.ask, sequence.resumed)
        self.rows = sequence.resumed
        self.sequence = sequence

    def brought_back(self, rows: int) -> None:
        """The first `rows` rows of the sequence have come; it reads on behind them."""
        assert self.sequence is not None and rows <= self.memory.rows
        self.sequence.resumed = self.sequence.read = self.rows = rows
        self.kept = replace(self.kept, rows=rows)

    def wrote(self, rows: int) -> None:
        """The first `rows` rows of the state now hold this sequence."""
        self.rows = rows

    def keep(self, rows: int) -> None:
        """The first `rows` rows of the prompt may be gone on from: they were written by whole chunks, or any may be."""
        self.kept = replace(self.kept, rows=rows)
        if self.aside is None:
            self.anchors.note(self.state)

    def forget(self) -> int:
        """An idle slot holds nothing any more. Returns the bytes that freed."""
        assert self.sequence is None
        self.kept, self.rows = NOTHING_KEPT, 0
        self.anchors.cut(0)
        return self.memory.give_back(0)

    def end(self, now: float) -> Sequence:
        """Free the slot. What failed leaves nothing to resume on; what gave way did not fail. A guest leaves nothing:
        `take_back` follows."""
        assert self.sequence is not None
        ended, self.sequence = self.sequence, None
        self.last_used = now
        if isinstance(ended.end, Failed) and ended.end.code is not RefusalCode.YIELDED:
            self.kept = NOTHING_KEPT
            if self.aside is None:
                self.anchors.cut(0)
        elif self.unit == 1 and self._can_go_on_here():
            self.kept = replace(self.kept, tokens=(*ended.prompt, *ended.written)[: self.rows], rows=self.rows)
        if self.aside is None:
            self.rows = self.kept.rows
            self.memory.give_back(self.rows)
        return ended

    def _can_go_on_here(self) -> bool:
        """Whether the next turn may go on behind the last row: it can rewind, or an end anchor is taken."""
        if self.state.can_rewind:
            return True
        return self.aside is None and self.state.position == self.rows and self.anchors.note_end(self.state)

    def take_back(self, rows: int) -> None:
        """The guest is gone, and the first `rows` rows of the conversation it interrupted are right."""
        assert self.sequence is None and self.aside is not None
        self.kept, self.aside = replace(self.aside.kept, rows=rows), None
        self.anchors.cut(rows)
        self.rows = rows
        self.memory.give_back(rows)

    @property
    def view(self) -> SlotView:
        if self.sequence is None:
            return SlotView(self.index, self.window, self.rows, "idle")
        state = "reading" if self.sequence.is_reading else "writing"
        return SlotView(self.index, self.window, self.rows, state, self.sequence.request.ask.id)

    def check_integrity(self) -> None:
        assert 0 <= self.rows <= self.memory.rows <= self.window == self.state.window, f"rows of {self.view}"
        assert self.kept.rows <= self.memory.rows and self.kept.rows % self.unit == 0, f"kept rows of {self.view}"
        assert self.kept.rows <= len(self.kept.tokens), f"kept tokens of {self.view}"
        self.anchors.check_integrity()
        if (sequence := self.sequence) is None:
            assert self.aside is None, f"nobody was a guest: {self.view}"
            assert self.rows == self.kept.rows, f"an idle slot holds what is kept: {self.view}"
            return
        if self.aside is not None:
            assert self.aside.kept.rows <= self.memory.rows, f"rows aside of {self.view}"
        assert sequence.resumed <= sequence.read <= len(sequence.prompt), f"read of {self.view}"
        assert sequence.told <= len(sequence.written) <= sequence.max_tokens, f"written of {self.view}"
        assert sequence.accepted <= sequence.drafted, f"guesses of {self.view}"
        assert len(sequence.prompt) + sequence.max_tokens <= self.window, f"room of {self.view}"
        if sequence.end is None:
            unread = max(0, len(sequence.written) - 1)  # the last written token has no row yet
            assert self.rows == sequence.read + unread, f"rows of {self.view}"
            assert sequence.is_reading == (not sequence.written), f"phase of {self.view}"
