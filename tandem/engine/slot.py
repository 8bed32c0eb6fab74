"""A slot: room for one sequence, the sequence that runs there, and what stays when it has ended.

Only the device thread touches a slot. Nothing here knows the queue or routing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from tandem.contract.messages import FinishReason, Generate, RefusalCode, SlotView, TokenScore
from tandem.draft.drafting import Followed
from tandem.engine.choice import Choice
from tandem.engine.grammar.mask import Compiled
from tandem.engine.row_memory import RowMemory
from tandem.engine.sample import Row
from tandem.model.interface import SequenceState


@dataclass(slots=True)
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
    choice: Choice
    followed: Followed
    max_tokens: int  # after the cut to the slot's room
    resumed: int  # rows that already lay in the slot
    admitted: float
    read: int  # rows of the prompt that lie in the slot
    ends_loops: bool = False  # an answer that repeats itself without end is ended
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
    def is_reading(self) -> bool:
        return self.read < len(self.prompt)

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

    That holds for rows written by whole chunks on the grid. Decoded rows and a prompt's last, shorter chunk came
    from passes of another shape; they are never counted.
    """

    scope: str = ""  # requests of another scope see none of this
    tokens: tuple[int, ...] = ()  # the prompt these rows belong to
    rows: int = 0  # of `tokens`, from the start; on the grid
    client_tokens: tuple[int, ...] = ()  # that prompt as the client's messages render it
    conversation: str = ""  # as the client names it
    is_errand: bool = False  # nobody comes back to it: a title, the appliance's own question

    def followed_by(self, ask: Generate, resumed: int) -> Resident:
        """What is kept once `ask` begins on the first `resumed` rows. An errand that goes on from a conversation does
        not take its name: whoever it belongs to comes back to what is left."""
        is_errand = ask.task or ask.own_work
        if is_errand and resumed and not self.is_errand:
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


@dataclass(slots=True)
class Slot:
    index: int
    window: int
    state: SequenceState
    memory: RowMemory
    rows: int = 0  # of the sequence that runs, or ran last
    kept: Resident = NOTHING_KEPT
    sequence: Sequence | None = None
    last_used: float = 0.0

    def begin(self, sequence: Sequence) -> None:
        """The sequence's first `resumed` rows stay; all others are its to overwrite."""
        assert self.sequence is None and sequence.resumed <= self.kept.rows
        self.kept = self.kept.followed_by(sequence.request.ask, sequence.resumed)
        self.rows = sequence.resumed
        self.sequence = sequence

    def wrote(self, rows: int) -> None:
        """The first `rows` rows of the state now hold this sequence."""
        self.rows = rows

    def keep(self, rows: int) -> None:
        """The first `rows` rows were written by whole chunks. A state that cannot be taken back to them keeps none."""
        if not self.state.can_rewind:
            return
        self.kept = replace(self.kept, rows=rows)

    def forget(self) -> int:
        """An idle slot holds nothing any more. Returns the bytes that freed."""
        assert self.sequence is None
        self.kept, self.rows = NOTHING_KEPT, 0
        return self.memory.give_back(0)

    def end(self, now: float) -> Sequence:
        """Free the slot. What failed leaves nothing to resume on; what gave way did not fail."""
        assert self.sequence is not None
        ended, self.sequence = self.sequence, None
        self.last_used = now
        if isinstance(ended.end, Failed) and ended.end.code is not RefusalCode.YIELDED:
            self.kept = NOTHING_KEPT
        self.rows = self.kept.rows
        self.memory.give_back(self.rows)
        return ended

    @property
    def view(self) -> SlotView:
        if self.sequence is None:
            return SlotView(self.index, self.window, self.rows, "idle")
        state = "reading" if self.sequence.is_reading else "writing"
        return SlotView(self.index, self.window, self.rows, state, self.sequence.request.ask.id)

    def check_integrity(self, chunk: int) -> None:
        assert 0 <= self.rows <= self.memory.rows <= self.window == self.state.window, f"rows of {self.view}"
        assert self.kept.rows <= self.memory.rows and self.kept.rows % chunk == 0, f"kept rows of {self.view}"
        assert self.kept.rows <= len(self.kept.tokens), f"kept tokens of {self.view}"
        if (sequence := self.sequence) is None:
            assert self.rows == self.kept.rows, f"an idle slot holds what is kept: {self.view}"
            return
        assert sequence.resumed <= sequence.read <= len(sequence.prompt), f"read of {self.view}"
        assert sequence.told <= len(sequence.written) <= sequence.max_tokens, f"written of {self.view}"
        assert sequence.accepted <= sequence.drafted, f"guesses of {self.view}"
        assert len(sequence.prompt) + sequence.max_tokens <= self.window, f"room of {self.view}"
        if sequence.end is None:
            unread = max(0, len(sequence.written) - 1)  # the last written token has no row yet
            assert self.rows == sequence.read + unread, f"rows of {self.view}"
            assert sequence.is_reading == (not sequence.written), f"phase of {self.view}"
