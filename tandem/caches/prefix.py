"""Tokens, how much two sequences share, and what names a prefix.

A sequence is cut on the chunk grid. A piece is one chunk of it, or a shorter one at its end, and its key stands for
all tokens up to its own end, whose they are, and everything else that makes rows what they are. So whoever holds
pieces under their keys holds a tree of prefixes: a head that a thousand chats begin with is there once. Keys only
find; what was found counts where every token is the same.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int32]  # token ids
Key = bytes

KEY_SIZE: Final = 16  # bytes
SECRET_SIZE: Final = 32  # bytes


def words(tokens: Sequence[int] | Words) -> Words:
    return np.asarray(tokens, dtype="<i4")


def shared(one: Words, other: Words) -> int:
    """How many first tokens are the same."""
    limit = min(len(one), len(other))
    differs = one[:limit] != other[:limit]
    first = int(differs.argmax()) if limit else 0
    return first if limit and differs[first] else limit


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Tokens `first` to `end` of a sequence: a whole chunk, or fewer tokens at a sequence's end."""

    key: Key  # of all tokens up to `end`
    parent: Key  # of all tokens up to `first`
    first: int
    tokens: Words

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)

    @property
    def order(self) -> bytes:
        """Sorts pieces by their tokens, the first token first."""
        return self.tokens.astype(">u4").tobytes()

    def apart(self) -> Piece:
        """With tokens of its own: to be kept, without keeping the whole sequence for them."""
        return replace(self, tokens=self.tokens.copy())


class Grid:
    """Cuts sequences and names their pieces."""

    def __init__(self, chunk: int, fingerprint: bytes, secret: bytes) -> None:
        """`fingerprint` stands for whatever rows depend on beside their tokens. Without `secret` nobody can tell from
        a key which tokens it is of."""
        self.chunk = chunk
        self._root = hashlib.blake2b(fingerprint, key=secret[:64], digest_size=SECRET_SIZE).digest()

    def prompt(self, scope: str, tokens: Sequence[int] | Words) -> Prompt:
        """Nothing of one `scope` is ever found by another."""
        return Prompt(scope, words(tokens), self.chunk, self._root)


@dataclass(slots=True, eq=False)
class Prompt:
    """A sequence whose keys are computed once, as far as they are asked for."""

    scope: str
    tokens: Words
    chunk: int
    root: bytes = field(repr=False)
    is_sought: bool = False  # it was looked for, once or often
    _keys: list[Key] = field(default_factory=list, repr=False)  # of 0, 1, ... whole chunks

    def pieces(self, rows: int) -> Iterator[Piece]:
        """The first `rows` tokens, the last of them in a shorter piece when they end off the grid."""
        assert 0 <= rows <= len(self.tokens), "more rows than tokens"
        for first in range(0, rows, self.chunk):
            parent, tokens = self._key_at(first), self.tokens[first : min(first + self.chunk, rows)]
            key = self._key_at(first + self.chunk) if len(tokens) == self.chunk else self._key(parent, tokens)
            yield Piece(key, parent, first, tokens)

    def key(self, rows: int) -> Key:
        """Of the first `rows` tokens."""
        whole = rows - rows % self.chunk
        return self._key_at(rows) if rows == whole else self._key(self._key_at(whole), self.tokens[whole:rows])

    def _key_at(self, rows: int) -> Key:
        keys = self._keys
        if not keys:
            keys.append(hashlib.blake2b(self.scope.encode(), key=self.root, digest_size=KEY_SIZE).digest())
        while len(keys) <= rows // self.chunk:
            first = (len(keys) - 1) * self.chunk
            keys.append(self._key(keys[-1], self.tokens[first : first + self.chunk]))
        return keys[rows // self.chunk]

    def _key(self, parent: Key, tokens: Words) -> Key:
        return hashlib.blake2b(parent + tokens.tobytes(), key=self.root, digest_size=KEY_SIZE).digest()


class Kept(Protocol):
    @property
    def piece(self) -> Piece: ...


E = TypeVar("E", bound=Kept)


class Index(Generic[E]):
    """What is kept, by key and by what it goes on from.

    One thread changes it; others may look meanwhile, and see each entry or do not see it.
    """

    def __init__(self) -> None:
        self.changes = 0  # grows after every one: who looks in between looks again
        self._entries: dict[Key, E] = {}
        self._children: dict[Key, tuple[E, ...]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[E]:
        return iter(tuple(self._entries.values()))

    def get(self, key: Key) -> E | None:
        return self._entries.get(key)

    def children(self, key: Key) -> tuple[E, ...]:
        """What goes on from there, in the order of tokens."""
        return self._children.get(key, ())

    def add(self, entry: E) -> None:
        piece = entry.piece
        assert piece.key not in self._entries, "kept twice"
        self._entries[piece.key] = entry
        siblings = self.children(piece.parent)
        place = _place_among(siblings, piece)
        self._children[piece.parent] = (*siblings[:place], entry, *siblings[place:])
        self.note_change()

    def remove(self, entry: E) -> None:
        piece = entry.piece
        del self._entries[piece.key]
        if left := tuple(other for other in self.children(piece.parent) if other is not entry):
            self._children[piece.parent] = left
        else:
            del self._children[piece.parent]
        self.note_change()

    def note_change(self) -> None:
        """Something of an entry is not as it was."""
        self.changes += 1

    def match(self, wanted: Piece, whole: bool = False) -> tuple[E, int] | None:
        """The entry that begins with most of a piece's tokens, and with how many; with `whole` the longest one that
        has no others. Every token was compared.

        In the order of tokens nothing shares more with a piece than its neighbours do, however many there are: a
        thousand short chats of one client all go on from its root.
        """
        if (exact := self.holder(wanted, exactly=True)) is not None:
            return exact, wanted.rows
        if whole:
            found = [(entry, entry.piece.rows) for entry in self.prefixes(wanted)]
        else:
            siblings = self.children(wanted.parent)
            place = _place_among(siblings, wanted)
            near = siblings[max(0, place - 1) : place + 1]
            found = [(entry, same) for entry in near if (same := shared(entry.piece.tokens, wanted.tokens))]
        return max(found, key=lambda match: match[1], default=None)

    def holder(self, piece: Piece, exactly: bool) -> E | None:
        """The entry with all tokens of a piece; `exactly`: and no others."""
        entry = self._entries.get(piece.key)
        if entry is not None and np.array_equal(entry.piece.tokens, piece.tokens):
            return entry
        if exactly:
            return None
        siblings = self.children(piece.parent)
        after = siblings[_place_among(siblings, piece) :][:1]
        return next((entry for entry in after if shared(entry.piece.tokens, piece.tokens) == piece.rows), None)

    def prefixes(self, piece: Piece) -> Iterator[E]:
        """Entries that a longer piece begins with."""
        for entry in self.children(piece.parent):
            if (rows := entry.piece.rows) < piece.rows and shared(entry.piece.tokens, piece.tokens) == rows:
                yield entry

    def check_integrity(self) -> None:
        by_parent = [entry for entries in self._children.values() for entry in entries]
        assert len(by_parent) == len(self._entries), "entries and children"
        assert all(self._entries[entry.piece.key] is entry for entry in by_parent), "an entry under another key"
        for siblings in self._children.values():
            order = [entry.piece.order for entry in siblings]
            assert order and order == sorted(set(order)), "siblings out of order"


def _place_among(siblings: Sequence[Kept], piece: Piece) -> int:
    """How many of them come before a piece in the order of tokens."""
    return bisect_left(siblings, piece.order, key=lambda entry: entry.piece.order)
