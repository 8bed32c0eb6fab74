"""The device's turn, lent to a role between two passes: one at a time, for a moment, and void when that is over.

Book-keeping only, on the device thread; `now` is an argument. While the turn is lent the engine runs no pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandem.contract.messages import AskLease, Lease

LONGEST: Final = 2.0  # seconds that any turn is lent for, whatever was asked


@dataclass(frozen=True, slots=True)
class _Lent:
    peer: int
    id: str
    until: float


class Lending:
    def __init__(self) -> None:
        self._lent: _Lent | None = None
        self._passed = True  # a pass has run since the last turn was lent

    def ask(self, peer: int, ask: AskLease, *, slot_0_idle: bool, has_work: bool, now: float) -> Lease:
        """Asked between two passes, so a turn that can be lent is lent at once. A role never has two in a row while
        requests have a pass to run."""
        if self.left(now) > 0:
            return Lease(ask.id, False, "another role has the device's turn")
        if ask.when_idle and not slot_0_idle:
            return Lease(ask.id, False, "slot 0 is busy")
        if has_work and not self._passed:
            return Lease(ask.id, False, "requests have the next turn")
        self._lent, self._passed = _Lent(peer, ask.id, now + min(ask.seconds, LONGEST)), False
        return Lease(ask.id, True)

    def give_back(self, peer: int, id: str | None = None) -> None:
        """Returned, or (without an id) everything of a peer that is gone. A turn that is void already is nobody's."""
        if self._lent is not None and self._lent.peer == peer and id in (None, self._lent.id):
            self._lent = None

    def left(self, now: float) -> float:
        """Seconds for which the turn is still somebody else's."""
        if self._lent is not None and now >= self._lent.until:
            self._lent = None
        return self._lent.until - now if self._lent is not None else 0.0

    def note_pass(self) -> None:
        self._passed = True
