"""Copies in memory: rows a guest would overwrite, conversations moved aside, shared heads, what clients asked to keep.

The shelf holds pieces, not conversations: what two of them begin with is there once, and giving back takes the end of
the conversation used longest ago and leaves its beginning. Whoever puts a sequence claims all its pieces at a level; a
piece is of the highest level that claims it, so none outranks the piece it goes on from.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tandem.caches.holdings import Holdings
from tandem.caches.prefix import Index, Key, Piece, Prompt
from tandem.memory.budget import Level
from tandem.model.saved import Saved
from tandem.model.state import SequenceState, Snapshot

log = logging.getLogger("tandem.caches")

LEVELS: Final = (Level.STORE, Level.STASH, Level.PARK, Level.PIN)
COUNTED: Final = {Level.STASH, Level.PIN}  # claimed by somebody who will release it; the others are nobody's


@dataclass(slots=True, eq=False)
class Copy:
    """One piece in memory."""

    piece: Piece
    saved: Saved
    snapshot: Snapshot | None = None  # the state behind its last row: where one that cannot rewind may go on
    claims: Counter[Level] = field(default_factory=Counter)

    @property
    def level(self) -> Level:
        return max(self.claims)

    @property
    def bytes(self) -> int:
        return self.saved.bytes + (self.snapshot.bytes if self.snapshot else 0)


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """The copies of one sequence, from its first row on, as they were claimed."""

    level: Level
    rows: int
    copies: tuple[Copy, ...]


class Shelf:
    """Device thread only. Sizes are bytes."""

    def __init__(self, limit: int, holdings: Holdings) -> None:
        """`limit`: of all levels together."""
        self.index: Index[Copy] = Index()
        self.held = 0
        self.num_given_back = 0  # pieces
        self.num_refused = 0  # sequences
        self._limit = limit
        self._holdings = holdings
        self._by_use: dict[Level, OrderedDict[Key, Copy]] = {level: OrderedDict() for level in LEVELS}  # oldest first
        for level in LEVELS:
            holdings.register(level, partial(self.give_back, level))

    @property
    def room(self) -> int:
        """Bytes that are free, or of heads and conversations, which make way."""
        return self._limit - sum(copy.bytes for copy in self.index if COUNTED & copy.claims.keys())

    def put(
        self, prompt: Prompt, rows: int, state: SequenceState, level: Level, anchors: Iterable[Snapshot] = ()
    ) -> Hold | None:
        """Claim the first `rows` rows of `state`, which hold the prompt's first tokens; what is not here is copied.

        `anchors` are the sequence's snapshots; those at the end of a piece are kept with it. None when neither limit
        nor budget have the room, and nothing was copied then.
        """
        snapshots = {anchor.position: anchor for anchor in anchors}
        pieces = list(prompt.pieces(rows))
        size = sum(self._cost(piece, state, snapshots.get(piece.end)) for piece in pieces)
        if not self._make_room(size, level, pieces) or not self._holdings.may_take(level, size):
            self.num_refused += 1
            return None
        copies: list[Copy] = []
        try:
            copies.extend(self._place(piece, state, level, snapshots.get(piece.end)) for piece in pieces)
        except OSError as error:  # the system has less than the budget thinks
            log.warning("[caches] no memory for a copy: %s", error)
            self.num_refused += 1
            if level in COUNTED:
                self.release(Hold(level, rows, tuple(copies)))
            return None
        self.touch(copies)
        return Hold(level, rows, tuple(copies))

    def release(self, hold: Hold) -> None:
        """Nobody needs it any more; what nothing else claims goes."""
        for copy in reversed(hold.copies):
            if self.index.get(copy.piece.key) is not copy or not copy.claims[hold.level]:
                continue
            before = copy.level
            copy.claims[hold.level] -= 1
            if not copy.claims[hold.level]:
                del copy.claims[hold.level]
            if not copy.claims:
                self._forget(copy, before)
            elif copy.level is not before:
                self._move(copy, before)

    def put_back(self, hold: Hold, state: SequenceState) -> int:
        """Load what is still here of a hold; returns how many rows, from the first, that were."""
        right = 0
        for copy in hold.copies:
            if self.index.get(copy.piece.key) is not copy:
                break
            right = min(copy.piece.end, hold.rows)
            state.load(copy.saved, right - copy.piece.first)
        return right

    def touch(self, copies: Iterable[Copy]) -> None:
        """They are used now: the first row's copy most recently, so that of a sequence the end goes first."""
        for copy in reversed(list(copies)):
            if self.index.get(copy.piece.key) is copy:
                self._by_use[copy.level].move_to_end(copy.piece.key)

    def give_back(self, level: Level, size: int) -> int:
        """Drop pieces of a level until `size` bytes are free, or none is left; returns how many bytes are."""
        before = self.held
        while before - self.held < size and (oldest := next(iter(self._by_use[level].values()), None)):
            self._drop(oldest)
        return before - self.held

    def _cost(self, piece: Piece, state: SequenceState, snapshot: Snapshot | None) -> int:
        """Bytes that keeping a piece, and the snapshot at its end, would take."""
        copy = self.index.holder(piece, exactly=snapshot is not None)
        rows = state.saved_bytes(piece.rows) if copy is None else 0
        return rows + (snapshot.bytes if snapshot and (copy is None or copy.snapshot is None) else 0)

    def _make_room(self, size: int, level: Level, pieces: Iterable[Piece]) -> bool:
        """Whether `size` bytes fit under the limit, after others have gone: heads for all, conversations moved aside
        for all but heads. `pieces` are about to be claimed."""
        stays = {id(self.index.holder(piece, exactly=False)) for piece in pieces}
        give_way = [
            copy
            for lower in ((Level.STORE,) if level is Level.STORE else (Level.STORE, Level.PARK))
            for copy in self._by_use[lower].values()
            if id(copy) not in stays and not COUNTED & copy.claims.keys()
        ]
        if self.held + size - sum(copy.bytes for copy in give_way) > self._limit:
            return False
        for copy in give_way:  # what goes on from a copy is older than that, and gone before it
            if self.held + size <= self._limit:
                break
            self._drop(copy)
        return True

    def _place(self, piece: Piece, state: SequenceState, level: Level, snapshot: Snapshot | None) -> Copy:
        """A piece's copy, with a claim more. It is looked for again: what gave way meanwhile may have been ours."""
        if (copy := self.index.holder(piece, exactly=snapshot is not None)) is not None:
            self._claim(copy, level)
        else:
            copy = self._copy(piece, state, level)
        if snapshot is not None and copy.snapshot is None:
            copy.snapshot = snapshot.on_host()
            self.index.note_change()
            self._note(copy.level, snapshot.bytes)
        return copy

    # --- the books ---

    def _copy(self, piece: Piece, state: SequenceState, level: Level) -> Copy:
        self._drop_outgrown(piece, level)
        copy = Copy(piece.apart(), state.save(piece.first, piece.end), claims=Counter({level: 1}))
        self.index.add(copy)
        self._by_use[level][piece.key] = copy
        self._note(level, copy.bytes)
        return copy

    def _drop_outgrown(self, piece: Piece, level: Level) -> None:
        """A conversation's end of last time is the beginning of what stands there now."""
        for shorter in self.index.prefixes(piece):
            if shorter.snapshot is None and shorter.level <= level and not COUNTED & shorter.claims.keys():
                self._drop(shorter)

    def _claim(self, copy: Copy, level: Level) -> None:
        before = copy.level
        copy.claims[level] = copy.claims[level] + 1 if level in COUNTED else 1
        self._move(copy, before)

    def _move(self, copy: Copy, before: Level) -> None:
        if copy.level is not before:
            self._by_use[copy.level][copy.piece.key] = self._by_use[before].pop(copy.piece.key)
            self.index.note_change()
            self._holdings.note(before, -copy.bytes)
            self._holdings.note(copy.level, copy.bytes)

    def _drop(self, copy: Copy) -> None:
        """And what goes on from it: without its beginning nothing is found."""
        for child in self.index.children(copy.piece.key):
            self._drop(child)
        self.num_given_back += 1
        self._forget(copy, copy.level)

    def _forget(self, copy: Copy, level: Level) -> None:
        self.index.remove(copy)
        del self._by_use[level][copy.piece.key]
        self._note(level, -copy.bytes)

    def _note(self, level: Level, change: int) -> None:
        self.held += change
        self._holdings.note(level, change)

    def check_integrity(self) -> None:
        self.index.check_integrity()
        assert self.held == sum(copy.bytes for copy in self.index) <= self._limit, "bytes on the shelf"
        for level, copies in self._by_use.items():
            assert self._holdings.held(level) == sum(copy.bytes for copy in copies.values()), f"bytes of {level.name}"
            assert all(copy.level is level for copy in copies.values()), f"claims of {level.name}"
        assert sum(map(len, self._by_use.values())) == len(self.index), "a copy of no level"
        for copy in self.index:
            parent = self.index.get(copy.piece.parent)
            assert copy.piece.first == 0 or (parent and parent.level >= copy.level), "an end without its beginning"
