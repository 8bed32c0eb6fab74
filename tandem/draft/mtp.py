"""The drafter that asks the model's own head (`tandem.model.mtp`), whose rows lie in the slot's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from tandem.draft.growing import LEAST, grow
from tandem.draft.tree import DraftTree, Origin
from tandem.model.interface import GuessingHead, SequenceState

NAME: Final = "mtp"


@dataclass(eq=False, slots=True)
class Session:
    state: SequenceState  # the slot's
    followed: int = 0
    last: int = 0  # token


class MtpDrafter:
    """Implements `interface.Drafter`."""

    name = NAME

    def __init__(self, head: GuessingHead, least: float = LEAST) -> None:
        """`least`: see `growing.grow`."""
        self._head = head
        self._least = least

    def begin(self, state: SequenceState, scope: str) -> Session:
        return Session(state)

    def follow(self, session: Session, tokens: Sequence[int]) -> None:
        if tokens:
            session.followed += len(tokens)
            session.last = tokens[-1]

    def propose(self, sessions: Sequence[Session], limits: Sequence[int]) -> list[DraftTree]:
        """Rows up to `limits` behind the slots' own must have memory: they are written while guessing."""
        rooms = [min(limit, _room(session)) for session, limit in zip(sessions, limits, strict=True)]
        step = _Steps(self._head, [session.state for session in sessions])
        return grow([session.last for session in sessions], rooms, step, Origin(NAME), self._least)

    def end(self, session: Session) -> None:
        pass


def _room(session: Session) -> int:
    """The most guesses there are rows for; none where the state has not read all that was followed but the last."""
    state = session.state
    return state.window - state.position if 0 < state.position == session.followed - 1 else 0


class _Steps:
    """Carries on what the head answered for each sequence."""

    def __init__(self, head: GuessingHead, states: Sequence[SequenceState]) -> None:
        self._head = head
        self._states = states
        self._carried: Tensor | None = None
        self._of: list[int] = []  # whose rows were carried

    def __call__(self, who: Sequence[int], tokens: Sequence[int], ahead: int) -> Tensor:
        if self._carried is not None and len(who) < len(self._of):
            self._carried = self._carried[[self._of.index(each) for each in who]]
        self._of = list(who)
        states = [self._states[each] for each in who]
        logits, self._carried = self._head.guess(states, tokens, ahead, self._carried)
        return logits
