"""Places where a sequence that cannot rewind may go on: copies of its fixed tensors, one set a slot.

Anchors are taken at chunk boundaries as they come. When their bytes run out those go first whose neighbours are
nearest, so that what stays is spread over the conversation; the newest stay always, because that is where the next
turn resumes. The end anchor, behind the last answer, is a level of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tandem.caches.holdings import Holdings
from tandem.model.state import SequenceState, Snapshot

NEWEST: Final = 2  # anchors that are never thinned out


class Anchors:
    """Device thread only. Empty for a state that can rewind: it needs none."""

    def __init__(self, limit: int, holdings: Holdings) -> None:
        """`limit`: bytes, of the anchors; the end anchor is one more."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Snapshot]:
        """By position, the end anchor last."""
        raise NotImplementedError

    def note(self, state: SequenceState) -> bool:
        """The state stands at a chunk boundary. False when it cannot be kept."""
        raise NotImplementedError

    def note_end(self, state: SequenceState) -> bool:
        """The state stands at the end of an answer."""
        raise NotImplementedError

    def at(self, rows: int) -> Snapshot | None:
        """The last of at most `rows` rows."""
        raise NotImplementedError

    def cut(self, rows: int) -> None:
        """The rows past the first `rows` are another sequence's now."""
        raise NotImplementedError
