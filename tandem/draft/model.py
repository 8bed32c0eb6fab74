"""The drafter that asks a smaller model of the same tokenizer.

It reads every sequence itself, into a state of its own for each slot, and writes on greedily. A prompt is read in the
course of many rounds, so many rows a round: no round waits for it, and until it is read nothing is guessed. Rows of
guesses that did not come true are written over; a state that cannot be rewound is put back to where it had read only
what was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from tandem.contract.plan import DraftModelPlan
from tandem.draft.growing import LEAST, grow
from tandem.draft.tree import NOT_YET, DraftTree, Origin
from tandem.errors import CannotStart
from tandem.model.interface import Block, Model, SequenceState, Wants
from tandem.model.loading import load
from tandem.model.state import Snapshot
from tandem.text.vocabulary import TokenKind, Vocabulary, read_vocabulary

NAME: Final = "model"
ROWS_A_ROUND: Final = 128  # of prompts, over all slots: about as long as a step of a model ten times as large


@dataclass(eq=False, slots=True)
class _Room:
    """What the model keeps for one slot. A later sequence of the same scope goes on where it shares the start."""

    state: SequenceState
    scope: str
    read: list[int] = field(default_factory=list)  # tokens whose rows are there
    kept: Snapshot | None = None  # of a state that cannot be rewound, before the last guesses

    def go_on(self, agreed: int) -> int:
        """The row to go on at, so that the first `agreed` tokens read still hold; what lies behind is forgotten."""
        row = self.state.resumable(min(agreed, len(self.read)))
        if self.kept is not None and self.kept.position > agreed:
            self.kept = None
        if self.kept is not None and row < self.kept.position:
            self.state.restore(self.kept)
            row = self.kept.position
        del self.read[row:]
        return row


@dataclass(eq=False, slots=True)
class Session:
    room: _Room
    tokens: list[int] = field(default_factory=list)  # followed so far
    agreed: int = 0  # of them, known to be what the room has read

    def unread(self) -> int:
        """How many tokens are to be read; the last one always is, for what follows it."""
        read, most = self.room.read, len(self.tokens) - 1
        agreed = min(self.agreed, len(read))
        while agreed < min(most, len(read)) and read[agreed] == self.tokens[agreed]:
            agreed += 1
        self.agreed = self.room.go_on(agreed)
        return len(self.tokens) - self.agreed


class ModelDrafter:
    """Implements `interface.Drafter`."""

    name = NAME

    def __init__(self, model: Model, vocab: int, rows_a_round: int = ROWS_A_ROUND, least: float = LEAST) -> None:
        """`vocab`: ids that the served model has. `rows_a_round`: the most that are read before anything is guessed.
        `least`: see `growing.grow`."""
        self._model = model
        self._vocab = min(vocab, model.config.vocab)
        self._rows_a_round = rows_a_round
        self._least = least
        self._rooms: dict[SequenceState, _Room] = {}  # by the slot's own state

    def begin(self, state: SequenceState, scope: str) -> Session:
        room = self._rooms.get(state)
        if room is None:
            window = min(state.window, self._model.config.window)
            room = self._rooms[state] = _Room(self._model.new_state(window), scope)
        elif room.scope != scope:
            room.scope, room.kept = scope, None
            room.read.clear()
        return Session(room)

    def follow(self, session: Session, tokens: Sequence[int]) -> None:
        session.tokens += tokens

    def propose(self, sessions: Sequence[Session], limits: Sequence[int]) -> list[DraftTree]:
        rooms = [min(limit, self._room(session)) for session, limit in zip(sessions, limits, strict=True)]
        behind = self._catch_up([session for session, room in zip(sessions, rooms, strict=True) if room > 0])
        rooms = [0 if session in behind else room for session, room in zip(sessions, rooms, strict=True)]

        def step(who: Sequence[int], tokens: Sequence[int], ahead: int) -> Tensor:
            if not ahead:
                return self._read_written([sessions[each] for each in who])
            return self._read([sessions[each].room for each in who], [[token] for token in tokens])

        trees = grow([0] * len(sessions), rooms, step, Origin(NAME), self._least)
        return [NOT_YET if session in behind else tree for session, tree in zip(sessions, trees, strict=True)]

    def end(self, session: Session) -> None:
        pass

    def _room(self, session: Session) -> int:
        """The most guesses there is room for. The last one is not read."""
        if not session.tokens or max(session.tokens[session.agreed :], default=0) >= self._model.config.vocab:
            return 0
        return session.room.state.window - len(session.tokens) + 1

    def _catch_up(self, sessions: Sequence[Session]) -> set[Session]:
        """Read up to a round's rows of what is long, the shortest first; returns whose turn to guess is not yet."""
        left, behind = self._rows_a_round, set[Session]()
        for session in sorted(sessions, key=Session.unread):
            unread = len(session.tokens) - session.agreed
            if unread <= left:
                left -= unread
                continue
            behind.add(session)
            if left:
                end = session.agreed + left
                self._read([session.room], [session.tokens[session.agreed : end]], Wants.NONE)
                session.agreed, left = end, 0
        return behind

    def _read_written(self, sessions: Sequence[Session]) -> Tensor:
        logits = self._read([each.room for each in sessions], [each.tokens[each.agreed :] for each in sessions])
        for session in sessions:
            session.agreed = len(session.tokens)
            if not session.room.state.can_rewind:
                session.room.kept = session.room.state.snapshot()
        return logits

    def _read(self, rooms: Sequence[_Room], tokens: Sequence[Sequence[int]], wants: Wants = Wants.LAST) -> Tensor:
        """float32 [rooms, vocab]"""
        blocks = [
            Block(torch.tensor(fresh), len(room.read), room.state, wants)
            for room, fresh in zip(rooms, tokens, strict=True)
        ]
        logits = self._model.forward(blocks)
        for room, fresh in zip(rooms, tokens, strict=True):
            room.read += fresh
        return logits[:, : self._vocab]


def open_model(plan: DraftModelPlan, served: Path, vocab: int, threads: int, device: str) -> ModelDrafter:
    """The plan's model, which drafts for the model in `served`, whose head has `vocab` ids.

    Raises `CannotStart` for a model that cannot be loaded or has another tokenizer.
    """
    path = Path(plan.weights)
    check_same_words(served, read_vocabulary(served), path, read_vocabulary(path))
    return ModelDrafter(load(path, plan.compute, threads, device=device), vocab)


def check_same_words(served: Path, ours: Vocabulary, drafter: Path, theirs: Vocabulary) -> None:
    """Raises `CannotStart` unless every id means the same to both. Spare ids mean nothing and may be more or fewer."""
    our_words, their_words = _words(ours), _words(theirs)
    differing = [id for id in our_words | their_words if our_words.get(id) != their_words.get(id)]
    if not differing:
        return
    first = min(differing)
    raise CannotStart(
        f"{drafter} cannot draft for {served}: their tokenizers differ in {len(differing):,} ids, first in {first}: "
        f"{_quoted(their_words.get(first))} in the one, {_quoted(our_words.get(first))} in the other",
        "name a smaller model with the same tokenizer as `draft.model.weights`, or set `draft.model: off`",
    )


def _words(vocabulary: Vocabulary) -> dict[int, str]:
    return {
        id: token
        for id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind != TokenKind.UNUSED
    }


def _quoted(word: str | None) -> str:
    return "nothing" if word is None else f"`{word}`"
