"""What the engine asks of whoever guesses: a session that follows one sequence and says how it may go on.

A drafter may be wrong about everything; it only costs time. It never sees text, and what it keeps beyond a sequence
keeps the sequences of different scopes apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tandem.draft.tree import DraftTree
from tandem.model.interface import SequenceState

S = TypeVar("S")


class Drafter(Protocol[S]):
    """One for all slots; `S` is what it keeps of one sequence."""

    @property
    def name(self) -> str:
        """As in `Origin.source`, counters and logs."""
        ...

    def begin(self, state: SequenceState, scope: str) -> S:
        """A sequence starts on the slot whose state this is. It has read nothing yet."""
        ...

    def follow(self, session: S, tokens: Sequence[int]) -> None:
        """These tokens come behind all that was followed so far: the whole prompt first, then what each round wrote."""
        ...

    def propose(self, sessions: Sequence[S], limits: Sequence[int]) -> list[DraftTree]:
        """For each session how it may go on behind its last token, at most `limits` nodes; `NO_GUESS` for nothing.

        `NOT_YET` where it still reads, which says nothing of what its guesses are worth.
        """
        ...

    def end(self, session: S) -> None:
        """The sequence is over."""
        ...
