import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.draft import grams
from tandem.draft.grams import BOUNDARY, LONGEST, MOST_PLACES, GramIndex, View

SIZES = (2, 4, 8)


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    """So that short texts have segments, and segments that merge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grams, "_PIECE", 4)
        patch.setattr(grams, "_MOST_MERGED", 64)
        yield


def index_of(*texts, sizes=SIZES):
    index = GramIndex(sizes)
    for text in texts:
        index.append(text)
    return index


def match(words, place, last):
    """Tokens before `place` that are the same as the last ones."""
    length = 0
    while length < min(len(last), place, LONGEST) and words[place - 1 - length] == last[-1 - length]:
        length += 1
    return length


def naive(words, last, sizes=SIZES):
    """(place, length) of all places of the largest size that any place shares, the latest first."""
    lengths = [(place, match(words, place, last)) for place in reversed(range(len(words)))]
    for size in reversed(sizes):
        if found := [(place, length) for place, length in lengths if length >= size]:
            return found
    return []


def found(view: View, last):
    places = view.find(last)
    return [(int(place) - LONGEST, int(length)) for place, length in zip(*places, strict=True)]


tokens = st.integers(0, 3)
texts = st.lists(st.lists(tokens, max_size=40), max_size=6)


@settings(max_examples=300, deadline=None)
@given(texts, st.lists(tokens, max_size=40))
def test_all_places_of_the_longest_match_are_found(pieces, others):
    words = [word for piece in pieces for word in piece]
    view = index_of(*pieces).view
    assert found(view, words) == naive(words, words)
    assert found(view, others) == naive(words, others)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=30), st.booleans(), st.booleans()), max_size=8))
def test_what_is_forgotten_is_not_found_and_the_rest_is(steps):
    index, words, seals = GramIndex(SIZES), [], [0]
    for piece, seal, forget in steps:
        index.append(piece)
        words += piece
        if seal:
            assert index.seal() == len(words)
            seals.append(len(words))
        if forget:
            cut = seals[len(seals) // 2]
            index.forget(cut)
            words = words[cut:]
            seals = [each - cut for each in seals if each >= cut]
        assert index.num_words == len(words)
        assert found(index.view, words) == naive(words, words)


@given(st.lists(tokens, min_size=3, max_size=60), st.integers(1, 20))
def test_a_continuation_that_runs_into_the_end_repeats_itself(words, count):
    view = index_of(words).view
    places = view.find(words)
    for place, continuation in zip(places.positions.tolist(), view.after(places.positions, count), strict=True):
        copied = list(words)
        for _ in range(count):
            copied.append(copied[place - LONGEST + len(copied) - len(words)])
        assert continuation.tolist() == copied[len(words) :]


def test_a_view_stays_as_it_was_while_its_index_grows():
    random = np.random.default_rng(1)
    words = random.integers(0, 4, 300).tolist()
    index = index_of(words[:100])
    view, before = index.view, found(index.view, words[90:100])
    index.append(words[100:])
    index.seal()
    index.forget(index.num_words)
    assert before and found(view, words[90:100]) == before


def test_nothing_matches_across_a_boundary():
    view = index_of([1, 2, 3, 4, BOUNDARY, 1, 2, 3, 4, 9]).view
    assert found(view, [BOUNDARY - 1, 1, 2, 3, 4]) == [(9, 4), (4, 4)]
    assert found(view, [4, BOUNDARY - 1]) == []


def test_of_very_many_places_the_latest_are_looked_at():
    words = [5, 6] * 2000
    found_places = [place for place, _ in found(index_of(words).view, [6, 5])]
    assert found_places == list(range(3999, 3999 - 2 * len(found_places), -2))
    assert MOST_PLACES // 2 <= len(found_places) <= MOST_PLACES


def test_segments_stay_few(monkeypatch):
    monkeypatch.setattr(grams, "_MOST_MERGED", 1 << 20)
    index = GramIndex(SIZES)
    for token in range(10_000):
        index.append([token % 7])
    assert len(index.view.segments) <= 8 * 5
    assert [each.start for each in index.view.segments[1:]] == [each.end for each in index.view.segments[:-1]]
    index.seal()
    assert len(index.view.segments) == 1


def test_memory_is_what_the_store_counts_with():
    index = GramIndex((4, 8))
    index.append(np.random.default_rng(2).integers(0, 50_000, 1 << 16).astype(np.uint32))
    assert index.num_bytes / index.num_words <= 16
