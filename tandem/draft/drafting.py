"""What a round asks of drafting: guesses for every slot, and what became of them.

The engine's device thread is the only caller, so nothing here locks. Guesses change when text arrives, never what it
says: a drafter that fails is dropped from the sequence it failed on, with one line in the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.draft.interface import Drafter
from tandem.draft.price import Staircase
from tandem.draft.tree import NO_GUESS, DraftTree
from tandem.model.interface import SequenceState


class Followed:
    """One sequence as the drafters know it. Made by `Drafting.begin`."""

    def follow(self, tokens: Sequence[int]) -> None:
        """These tokens come behind all that was followed so far: the prompt, then what each round committed."""

    def end(self) -> None:
        """The sequence is over."""


@dataclass(frozen=True, slots=True)
class Bid:
    """A slot that takes part in a round."""

    followed: Followed
    rows: int  # of its sequence that lie in the slot: how far its next row looks back
    limit: int  # the most guesses it can take: tokens it may write beside the one that comes anyway, and room for rows
    forced: Sequence[int] = ()  # tokens that come next whatever the model says


@dataclass(frozen=True, slots=True)
class Guesses:
    """What a round has checked. `Drafting.learn` takes it back."""

    trees: tuple[DraftTree, ...]  # one a bid


class Drafting:
    """All drafters, what their guesses are worth, and what it costs to have them checked."""

    def __init__(
        self,
        drafters: Sequence[Drafter[Any]],
        nodes: int,
        prices: Staircase,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.nodes = nodes  # the most guesses a slot brings to a round
        self.drafted: dict[str, int] = {}  # guesses checked, by source
        self.accepted: dict[str, int] = {}  # of them, the model's own choice
        self.draft_seconds = 0.0

    def begin(self, state: SequenceState, scope: str) -> Followed:
        """A sequence starts on the slot whose state this is; it has read nothing yet."""
        return Followed()

    def propose(self, bids: Sequence[Bid], row_limit: int) -> Guesses:
        """A tree for each bid, in order; one row a slot and all trees together are at most `row_limit` rows."""
        return Guesses((NO_GUESS,) * len(bids))

    def learn(self, guesses: Guesses, written: Sequence[Sequence[int]], seconds: float) -> None:
        """What the model chose, a bid each: the accepted guesses' tokens and the one that came with them, all that it
        chose whether or not a stop token stands among them; nothing for a slot whose request failed.

        `seconds`: the joint pass, accepting and committing.
        """
