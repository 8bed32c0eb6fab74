"""One client request while the engine works on it: what has happened, and what follows from each happening.

Pure: `apply` takes a happening and the time, changes this object and returns what is to be done. Nothing here waits,
sends or looks at a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, TypeAlias

from msgspec import Struct

from tandem.conductor.blocks import Blocks
from tandem.conductor.status import Doing, Line, StatusLines
from tandem.contract.messages import (
    Cancel,
    Finished,
    FinishReason,
    Narrated,
    Progress,
    Reasoning,
    RefusalCode,
    Refused,
    RequestState,
    Started,
    Tokens,
    TokenScore,
)
from tandem.gateway.errors import REFUSALS, ApiError, engine_restarted, from_refusal
from tandem.gateway.inbox import Happening, Signal
from tandem.gateway.logprobs import Shown
from tandem.text.answer import Answer
from tandem.text.pieces import AnswerPart, CallBegun, Text, Thought


class Begun(Struct, frozen=True):
    """A slot was given to this choice."""

    index: int


class Piece(Struct, frozen=True):
    """More of a choice. `shown` are, where log-probabilities are wanted, the tokens whose text is whole with it; some
    have no text, and may come without a part."""

    index: int
    part: AnswerPart | None
    shown: tuple[Shown, ...] = ()


class Ended(Struct, frozen=True):
    """This choice is whole."""

    index: int
    reason: FinishReason


class Said(Struct, frozen=True):
    """A sentence for people, while nothing else comes."""

    sentence: str


class Failed(Struct, frozen=True):
    """The request ends here, for all its choices."""

    error: ApiError


Output: TypeAlias = Begun | Piece | Ended | Said | Line | Failed | Cancel


class Stage(Enum):
    WAITING = auto()
    WRITING = auto()
    CUT = auto()  # its text is whole; the engine has not yet confirmed
    SETTLED = auto()  # the engine's last word came


_OPEN: Final = frozenset({Stage.WAITING, Stage.WRITING})
_DOING: Final = {
    RequestState.QUEUED: Doing.QUEUED,
    RequestState.WAITING_MEMORY: Doing.WAITING_MEMORY,
    RequestState.READING: Doing.READING,
}
HEARD: Final = 240  # characters of thinking that the narrator may hear


class Choice:
    """One sequence of the request."""

    def __init__(self, index: int, id: str, answer: Answer, reasoning: Reasoning | None = None) -> None:
        self.index = index
        self.id = id
        self.answer = answer
        self.stage = Stage.WAITING
        self.reason: FinishReason | None = None  # why its text ended
        self.started: Started | None = None
        self.finished: Finished | None = None
        self._blocks = Blocks(reasoning) if reasoning is not None else None
        self._scored: list[tuple[int, TokenScore]] = []
        self._num_shown = 0
        self.has_calls = False
        self.heard = ""  # the end of what it thought

    @property
    def num_thinking(self) -> int:
        return self._blocks.num_thinking if self._blocks is not None else 0

    def push(self, tokens: Tokens) -> list[Output]:
        before = self.answer.num_tokens
        parts = self.answer.push(tokens.tokens)
        if self._blocks is not None:
            self._blocks.follow(tokens.tokens[: self.answer.num_tokens - before])
        self._scored += zip(tokens.tokens, tokens.scores, strict=False)  # no scores where none are wanted
        return self._pieces(parts)

    def finish(self, reason: FinishReason) -> list[Output]:
        """What was held back, and the end."""
        self.reason = reason
        return [*self._pieces(self.answer.finish()), Ended(self.index, reason)]

    def _pieces(self, parts: Sequence[AnswerPart]) -> list[Output]:
        """Log-probabilities go with the first of the parts that came together."""
        before, self._num_shown = self._num_shown, len(self.answer.starts)
        scored = self._scored[before : self._num_shown]
        starts = self.answer.starts[before : before + len(scored)]
        shown = tuple(Shown(*each, start) for each, start in zip(scored, starts, strict=True))
        self.has_calls |= any(isinstance(part, CallBegun) for part in parts)
        if not parts:
            return [Piece(self.index, None, shown)] if shown else []
        return [Piece(self.index, part, shown if n == 0 else ()) for n, part in enumerate(parts)]


class Call:
    """`is_over` when the client has been told everything; `is_settled` when the engine has, too."""

    def __init__(self, choices: Sequence[Choice], shows_status: bool = False) -> None:
        """`shows_status`: lines about what goes on are among the outputs."""
        self.choices = tuple(choices)
        self.status = StatusLines(shows_status)
        self.progress: Progress | None = None
        self.error: ApiError | None = None
        self.client_left = False
        self.waited_for_memory = False
        self.first_token_at: float | None = None
        self._by_id = {choice.id: choice for choice in choices}

    @property
    def _is_told(self) -> bool:
        """Whether the client is gone, or has been told that the request failed."""
        return self.client_left or self.error is not None

    @property
    def is_over(self) -> bool:
        return self._is_told or all(c.stage not in _OPEN for c in self.choices)

    @property
    def is_settled(self) -> bool:
        return all(choice.stage is Stage.SETTLED for choice in self.choices)

    def apply(self, happening: Happening, now: float) -> list[Output]:
        outputs = self._apply(happening, now)
        held = None if self.is_over else self.status.pending(now)
        return outputs if held is None else [*outputs, held]

    def _apply(self, happening: Happening, now: float) -> list[Output]:
        match happening:
            case Tokens():
                return self._tokens(self._by_id[happening.id], happening, now)
            case Progress():
                return self._progress(happening, now)
            case Narrated():
                return [] if self.is_over else _listed(self.status.narrate(happening.line, now))
            case Started():
                return self._started(self._by_id[happening.id], happening)
            case Finished():
                return self._finished(self._by_id[happening.id], happening)
            case Refused():
                return self._refused(self._by_id[happening.id], happening)
            case Signal.ENGINE_LOST:
                return self._engine_lost()
            case Signal.CLIENT_LEFT:
                return self._client_left()
            case Signal.SILENCE:
                return [] if self.is_over else [Said(self._sentence())]
            case Signal.CLIENT_STALLED:
                return self._fail(ApiError(503, "client_too_slow", "the client did not read its answer for too long"))
            case Signal.WAITED_TOO_LONG:
                return self._waited_too_long()
            case Signal.TOOK_TOO_LONG:
                return self._took_too_long()
            case Signal.UNSETTLED:
                return self._settle_all()

    def _tokens(self, choice: Choice, tokens: Tokens, now: float) -> list[Output]:
        if choice.stage not in _OPEN or self._is_told:
            return []
        choice.stage = Stage.WRITING
        outputs = self._with_status(choice, choice.push(tokens), now)
        if self.first_token_at is None:
            self.first_token_at = now
        return outputs + self._cut(choice, FinishReason.STOP) if choice.answer.is_stopped else outputs

    def _progress(self, progress: Progress, now: float) -> list[Output]:
        """Why a request waits is told at once, and about memory each time the engine says so again; how far it has
        read, only as a status and when a silence asks for it."""
        before, self.progress = self.progress, progress
        changed = before is None or before.state is not progress.state
        is_for_memory = progress.state is RequestState.WAITING_MEMORY
        self.waited_for_memory |= is_for_memory
        if self.is_over:
            return []
        doing = _DOING.get(progress.state)
        line = self.status.tell(doing, progress.sentence, now) if doing is not None else None
        is_said = is_for_memory or (changed and progress.state is RequestState.QUEUED)
        return [*([Said(progress.sentence)] if is_said else []), *_listed(line)]

    def _with_status(self, choice: Choice, outputs: list[Output], now: float) -> list[Output]:
        """What is written is told as well, but for the answer's text: where that begins, there is nothing to tell."""
        told: list[Output] = []
        for output in outputs:
            line = None
            match output:
                case Piece(part=Thought(text=text)):
                    choice.heard = (choice.heard + text)[-HEARD:]
                    line = self.status.tell(Doing.THINKING, "Thinking", now)
                case Piece(part=CallBegun(name=name)):
                    line = self.status.tell(Doing.CALLING, f"Writing a tool call: {name}", now)
                case Piece(part=Text()):
                    line = self.status.end()
            told += [*_listed(line), output]
        return told

    def _started(self, choice: Choice, started: Started) -> list[Output]:
        choice.started = started
        if choice.stage not in _OPEN or self._is_told:
            return []
        choice.stage = Stage.WRITING
        return [Begun(choice.index)]

    def _finished(self, choice: Choice, finished: Finished) -> list[Output]:
        stage, choice.stage, choice.finished = choice.stage, Stage.SETTLED, finished
        if stage not in _OPEN or self._is_told:
            return []
        if finished.reason is FinishReason.CANCELLED:
            return self._fail(ApiError(500, "engine_error", "the engine gave this request up", source="engine"))
        return self._ended(choice, finished.reason)

    def _refused(self, choice: Choice, refused: Refused) -> list[Output]:
        stage, choice.stage = choice.stage, Stage.SETTLED
        if stage not in _OPEN or self._is_told:
            return []
        return self._fail(from_refusal(refused))

    def _engine_lost(self) -> list[Output]:
        was_over = self.is_over
        self._settle_all()
        return [] if was_over else self._fail(engine_restarted())

    def _client_left(self) -> list[Output]:
        """A connection that closes after the last byte is not a client that left."""
        if self.is_over:
            return []
        self.client_left = True
        return self._cancels()

    def _waited_too_long(self) -> list[Output]:
        if self.is_over or any(choice.started for choice in self.choices):
            return []
        what, code = "no slot came free", RefusalCode.QUEUE_TIMEOUT
        if self.progress is not None and self.progress.state is RequestState.WAITING_MEMORY:
            what, code = "not enough memory came free", RefusalCode.MEMORY_TIMEOUT
        sentence = f"{what} in time ({self._sentence()})"
        return self._fail(ApiError(503, code, sentence, retry_after=REFUSALS[code][1], source="engine"))

    def _took_too_long(self) -> list[Output]:
        """What was written so far is an answer that met a limit; without any, the request has failed."""
        if self.is_over:
            return []
        if not any(choice.started for choice in self.choices):
            return self._waited_too_long()
        open_choices = [choice for choice in self.choices if choice.stage in _OPEN]
        return [output for choice in open_choices for output in self._cut(choice, FinishReason.LENGTH)]

    def _cut(self, choice: Choice, reason: FinishReason) -> list[Output]:
        choice.stage = Stage.CUT
        return [*self._ended(choice, reason), Cancel(choice.id)]

    def _ended(self, choice: Choice, reason: FinishReason) -> list[Output]:
        return [*_listed(self.status.end()), *choice.finish(reason)]

    def _fail(self, error: ApiError) -> list[Output]:
        self.error = error
        return [*_listed(self.status.end("It ended with an error")), Failed(error), *self._cancels()]

    def _cancels(self) -> list[Output]:
        return [Cancel(choice.id) for choice in self.choices if choice.stage in _OPEN]

    def _settle_all(self) -> list[Output]:
        for choice in self.choices:
            choice.stage = Stage.SETTLED
        return []

    def _sentence(self) -> str:
        return self.progress.sentence if self.progress is not None else "waiting for the engine"


def _listed(line: Line | None) -> list[Output]:
    return [line] if line is not None else []
