"""Where in a growing run of token ids the last tokens stood before: an index of its n-grams, for any reader.

The tokens lie in one array. Behind every place of it stand its n-grams of a few sizes; each size has its places sorted
by hash, in segments that are never changed once built. So one writer appends while readers search a `View` of what
was there when they took it. Whatever is found by hash is compared token by token: a collision costs time, never truth.

Chosen over a suffix automaton (microseconds a token in Python: 0.3 s for a prompt of 100,000) and over a suffix array
(as fast to search, but cannot grow): hashes of all n-grams are a few passes over the array, and sorting them is one.
Segments of like size are merged eight at a time, so there are few of them and a token is sorted again rarely.

Knows neither requests nor files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

BOUNDARY: Final = 0xFFFFFFFF  # no token id: nothing matches across it, and no continuation goes past it
LONGEST: Final = 32  # tokens; matches are told apart up to this length
MOST_PLACES: Final = 256  # looked at in one search, the latest first

_PIECE: Final = 256  # tokens; fewer are searched one by one
_FAN: Final = 8  # segments of one tier that become one of the next
_MOST_MERGED: Final = 1 << 20  # tokens; sorting more at once would keep a core busy for longer than a round
_A_BUCKET: Final = 4  # places in a bucket of hashes, on average

_MULTIPLIER: Final = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: odd, and its bits are spread
_MASK: Final = (1 << 64) - 1


class Places(NamedTuple):
    """Where the last tokens stood before; `positions[i]` is the index of the token that came next there."""

    positions: NDArray[np.int64]  # descending: the latest first
    lengths: NDArray[np.int64]  # tokens before it that are the same, at most LONGEST


NOWHERE: Final = Places(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The places of one segment by the hash of the n-gram before them."""

    shift: int  # of a 64-bit hash to its bucket
    starts: Words  # [buckets + 1] into `places`
    places: Words  # ascending within a bucket, counted from the segment's start

    def bucket(self, hash_: int) -> Words:
        bucket = (hash_ * _MULTIPLIER & _MASK) >> self.shift
        return self.places[self.starts[bucket] : self.starts[bucket + 1]]


@dataclass(frozen=True, slots=True, eq=False)
class _Segment:
    """Places in (start, end]: the last one is where the next token will stand."""

    start: int
    end: int
    tables: tuple[_Table, ...]  # one an n-gram size, smallest first

    @property
    def tier(self) -> int:
        return ((self.end - self.start) // _PIECE).bit_length() // (_FAN.bit_length() - 1)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What an index held at one moment. Stays true while its index grows."""

    words: Words
    end: int  # words from here on are not part of the view
    sizes: tuple[int, ...]
    segments: tuple[_Segment, ...]

    def find(self, last: Sequence[int]) -> Places:
        """Places whose tokens before them are the same as `last`, or its end.

        Those of the largest n-gram size that any place shares, at most `MOST_PLACES` of them, the latest. A sequence
        does not find its own end: a place without a token behind it is none.
        """
        last = last[-LONGEST:]
        newest = self._unsorted(last)
        for which in reversed(range(len(self.sizes))):
            size = self.sizes[which]
            if len(last) >= size:
                found = self._sorted(which, _hash(last[-size:]), MOST_PLACES - len(newest))
                places = self._compared(np.concatenate([newest, *found]) if found else newest, last, size)
                if len(places.positions):
                    return places
        return NOWHERE

    def last(self, count: int) -> list[int]:
        """At most `count` of the latest tokens, in order."""
        return [int(word) for word in self.words[max(LONGEST, self.end - count) : self.end]]

    def after(self, positions: NDArray[np.int64], count: int) -> Words:
        """[places, count]: the tokens that came at and behind each place.

        What runs into the end goes on as it did from the place on: a text that repeats itself repeats itself again.
        """
        steps = np.arange(count) % (self.end - positions)[:, None]
        return self.words[positions[:, None] + steps]

    def _unsorted(self, last: Sequence[int]) -> NDArray[np.int64]:
        """Places behind the last segment that follow the last token, descending."""
        start = self.segments[-1].end if self.segments else LONGEST
        if not last or self.end - start < 2:
            return NOWHERE.positions
        follow = np.flatnonzero(self.words[start : self.end - 1] == last[-1])
        return (follow[::-1] + (start + 1))[:MOST_PLACES]

    def _sorted(self, which: int, hash_: int, most: int) -> list[NDArray[np.int64]]:
        """At most `most` places whose n-gram has this hash (or shares its bucket), the latest first."""
        found: list[NDArray[np.int64]] = []
        for segment in reversed(self.segments):
            if most <= 0:
                break
            places = segment.tables[which].bucket(hash_)
            if len(places):
                latest = places[-most:][::-1].astype(np.int64)
                latest += segment.start
                found.append(latest[1:] if latest[0] == self.end else latest)
                most -= len(found[-1])
        return found

    def _compared(self, positions: NDArray[np.int64], last: Sequence[int], size: int) -> Places:
        """Those of `positions` at which at least `size` tokens are the same, and how many are."""
        if not len(positions):
            return NOWHERE
        backwards = np.array(last[::-1], np.uint32)
        before = self.words[positions[:, None] - np.arange(1, len(last) + 1)]  # [places, tokens]
        differs = np.ones((len(positions), len(last) + 1), bool)  # the last column ends those that never differ
        np.not_equal(before, backwards, out=differs[:, :-1])
        lengths = differs.argmax(1)
        match = lengths >= size
        return Places(positions[match], lengths[match])


class GramIndex:
    """One writer appends; `view` may be read by any thread at any time."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        """`sizes`: powers of two, ascending: the shortest match that is found, and steps for longer ones."""
        assert all(size & (size - 1) == 0 for size in sizes) and list(sizes) == sorted(sizes)
        # Places look back LONGEST words without asking where the array begins; a word past the end is a boundary.
        self._words = np.full(2 * LONGEST, BOUNDARY, np.uint32)
        self._sealed = 0  # segments that are never merged again
        self.view = View(self._words, LONGEST, sizes, ())

    @property
    def num_words(self) -> int:
        return self.view.end - LONGEST

    @property
    def num_bytes(self) -> int:
        tables = [table for segment in self.view.segments for table in segment.tables]
        return self._words.nbytes + sum(table.starts.nbytes + table.places.nbytes for table in tables)

    def append(self, words: Sequence[int] | Words) -> None:
        start, end = self.view.end, self.view.end + len(words)
        if end + LONGEST > len(self._words):
            grown = np.full(end + end // 4 + 2 * LONGEST, BOUNDARY, np.uint32)
            grown[:start] = self._words[:start]
            self._words = grown  # views keep the array they have
        self._words[start:end] = words
        segments = self.view.segments
        if end - (segments[-1].end if segments else LONGEST) >= _PIECE:
            segments = self._with_rest(segments, end)
        self.view = View(self._words, end, self.view.sizes, segments)

    def seal(self) -> int:
        """Sort what is not sorted yet; no later segment reaches across this point, so `forget` may cut here.

        Returns the number of words so far.
        """
        segments, end = self.view.segments, self.view.end
        if (segments[-1].end if segments else LONGEST) < end:
            segments = (*segments, self._build(segments[-1].end if segments else LONGEST, end))
        segments = self._merged(segments, len(segments) - self._sealed)
        self._sealed = len(segments)
        self.view = View(self._words, end, self.view.sizes, segments)
        return self.num_words

    def forget(self, num_words: int) -> None:
        """Drop the first `num_words` words: a number that `seal` returned."""
        view = self.view
        cut = LONGEST + num_words
        kept = [segment for segment in view.segments if segment.start >= cut]
        assert not kept or kept[0].start == cut, "words are forgotten up to where they were sealed"
        self._sealed -= len(view.segments) - len(kept)
        self._words = np.concatenate([np.full(LONGEST, BOUNDARY, np.uint32), self._words[cut:]])
        moved = tuple(_Segment(each.start - num_words, each.end - num_words, each.tables) for each in kept)
        self.view = View(self._words, view.end - num_words, view.sizes, moved)

    def _with_rest(self, segments: tuple[_Segment, ...], end: int) -> tuple[_Segment, ...]:
        """With one more segment up to `end`; eight of a tier become one."""
        start = segments[-1].end if segments else LONGEST
        segments = (*segments, self._build(start, end))
        while True:
            tier = segments[-1].tier
            same = 0
            for segment in reversed(segments[self._sealed :]):
                if segment.tier > tier:
                    break
                same += 1
            if same < _FAN or end - segments[-same].start > _MOST_MERGED:
                return segments
            segments = self._merged(segments, same)

    def _merged(self, segments: tuple[_Segment, ...], count: int) -> tuple[_Segment, ...]:
        """The last `count` segments as few as possible."""
        if count < 2:
            return segments
        start, end = segments[-count].start, segments[-1].end
        pieces = range(start, end, _MOST_MERGED)
        return (*segments[:-count], *(self._build(piece, min(piece + _MOST_MERGED, end)) for piece in pieces))

    def _build(self, start: int, end: int) -> _Segment:
        sizes = self.view.sizes
        reach = sizes[-1]
        hashes = self._words[start + 1 - reach : end].astype(np.uint64)
        tables = []
        size = 1
        for wanted in sizes:
            while size < wanted:
                hashes = _doubled(hashes, size)
                size *= 2
            tables.append(_table(hashes[reach - size :]))  # the window of place p begins at p - size
        return _Segment(start, end, tuple(tables))


def _doubled(hashes: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Hashes of windows twice as long, from those of windows of `size`: each word counts by its place."""
    return hashes[:-size] * np.uint64(_power(size)) + hashes[size:]


def _hash(words: Sequence[int]) -> int:
    """As `_doubled`, of one window."""
    hash_ = 0
    for word in words:
        hash_ = (hash_ * _MULTIPLIER + word) & _MASK
    return hash_


def _power(exponent: int) -> int:
    return pow(_MULTIPLIER, exponent, _MASK + 1)


def _table(hashes: NDArray[np.uint64]) -> _Table:
    """Hash `i` belongs to place `i + 1` of the segment."""
    bits = max(1, (len(hashes) // _A_BUCKET).bit_length() - 1)
    shift = 64 - bits
    keys = (hashes * np.uint64(_MULTIPLIER)) >> np.uint64(shift)
    counts = np.bincount(keys.astype(np.int64), minlength=1 << bits)
    starts = np.zeros((1 << bits) + 1, np.uint32)
    np.cumsum(counts, out=starts[1:])
    keys <<= np.uint64(32)
    keys |= np.arange(1, len(hashes) + 1, dtype=np.uint64)
    keys.sort()  # numbers, not their indices: several times faster
    return _Table(shift, starts, keys.astype(np.uint32))
