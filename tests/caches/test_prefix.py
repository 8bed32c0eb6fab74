"""How much two sequences share, and what keys say: all tokens up to here, whose they are, and of which model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.caches.prefix import Grid, Index, Piece, Prompt, shared, words

SECRET = bytes(range(32))
GRID = Grid(4, b"model", SECRET)
tokens = st.lists(st.integers(0, 2), max_size=20)


@given(tokens, tokens)
def test_shared_is_the_common_beginning(one: list[int], other: list[int]) -> None:
    expected = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    assert shared(words(one), words(other)) == expected


def test_a_sequence_is_cut_on_the_grid() -> None:
    pieces = list(GRID.prompt("one", range(10)).pieces(10))
    assert [(piece.first, piece.tokens.tolist()) for piece in pieces] == [
        (0, [0, 1, 2, 3]),
        (4, [4, 5, 6, 7]),
        (8, [8, 9]),
    ]
    assert [piece.parent for piece in pieces[1:]] == [piece.key for piece in pieces[:-1]]
    assert [piece.end for piece in GRID.prompt("one", range(10)).pieces(6)] == [4, 6]
    assert not list(GRID.prompt("one", ()).pieces(0))


@given(tokens, tokens, st.data())
def test_keys_are_equal_where_all_tokens_are(one: list[int], other: list[int], data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, min(len(one), len(other))))
    mine, theirs = GRID.prompt("s", one), GRID.prompt("s", other)
    assert (mine.key(rows) == theirs.key(rows)) == (one[:rows] == other[:rows])
    pieces = list(mine.pieces(rows))
    assert not pieces or pieces[-1].key == mine.key(rows)


@pytest.mark.parametrize(
    "other",
    [
        Grid(4, b"model", SECRET).prompt("two", range(8)),
        Grid(4, b"another model", SECRET).prompt("one", range(8)),
        Grid(4, b"model", bytes(32)).prompt("one", range(8)),
    ],
    ids=["scope", "fingerprint", "secret"],
)
def test_nothing_is_found_by_another(other: Prompt) -> None:
    mine = GRID.prompt("one", range(8))
    assert not {mine.key(rows) for rows in range(9)} & {other.key(rows) for rows in range(9)}


@dataclass(frozen=True, eq=False)
class Entry:
    piece: Piece


def last(sequence: list[int]) -> Piece:
    *_, piece = GRID.prompt("one", sequence).pieces(len(sequence))
    return piece


def test_the_entry_that_shares_most_is_found() -> None:
    index: Index[Entry] = Index()
    whole, short, other = (Entry(last([1, 2, 3, 4, *end])) for end in ([5, 6, 7, 8], [5, 6], [5, 9, 9, 9]))
    for entry in (whole, short, other):
        index.add(entry)
    assert index.match(last([1, 2, 3, 4, 5, 6, 7, 8])) == (whole, 4)
    assert index.match(last([1, 2, 3, 4, 5, 6])) == (short, 2)  # exactly that
    assert index.match(last([1, 2, 3, 4, 5, 6, 7])) == (whole, 3)
    assert index.match(last([1, 2, 3, 4, 5, 9, 9])) == (other, 3)
    assert index.match(last([1, 2, 3, 4, 6])) is None
    assert index.match(last([1, 2, 3, 3, 5, 6])) is None  # goes on from something else
    assert index.match(last([1, 2, 3, 4, 5, 6, 7]), whole=True) == (short, 2)
    assert index.match(last([1, 2, 3, 4, 5, 9, 9]), whole=True) is None
    index.remove(whole)
    assert index.match(last([1, 2, 3, 4, 5, 6, 7, 8])) == (short, 2)
    index.check_integrity()


def test_two_tokens_of_one_key_are_not_taken_for_each_other() -> None:
    """A key only finds: were two to collide, the tokens would tell."""
    piece = last([1, 2, 3, 4])
    index: Index[Entry] = Index()
    index.add(Entry(Piece(piece.key, piece.parent, 0, words([1, 2, 9, 9]))))
    match = index.match(piece)
    assert match is not None and match[1] == 2


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1), min_size=1, max_size=9)), max_size=30))
def test_an_index_is_its_entries(changes: list[tuple[bool, list[int]]]) -> None:
    index: Index[Entry] = Index()
    kept: dict[bytes, Entry] = {}
    for adds, sequence in changes:
        piece = last(sequence)
        if adds and piece.key not in kept:
            index.add(entry := Entry(piece))
            kept[piece.key] = entry
        elif not adds and piece.key in kept:
            index.remove(kept.pop(piece.key))
        index.check_integrity()
        assert len(index) == len(kept) and set(index) == set(kept.values())
        match = index.match(piece)
        best = max(
            (shared(entry.piece.tokens, piece.tokens) for entry in kept.values() if entry.piece.parent == piece.parent),
            default=0,
        )
        assert (match[1] if match else 0) == best
        within = [entry.piece.rows for entry in index.prefixes(piece)]
        assert (whole[1] if (whole := index.match(piece, whole=True)) else 0) == max(
            [*within, *[piece.rows] * (piece.key in kept)], default=0
        )
        assert (index.holder(piece, exactly=False) is not None) == (best == piece.rows)


def test_a_kept_piece_does_not_keep_the_sequence() -> None:
    piece = next(GRID.prompt("one", np.arange(1000)).pieces(1000)).apart()
    assert piece.tokens.base is None and piece.tokens.tolist() == [0, 1, 2, 3]
