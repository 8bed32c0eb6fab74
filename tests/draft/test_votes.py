import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.draft.tree import NO_GUESS, ROOT, Origin
from tandem.draft.votes import Vote, elect, length_class

STOP = 0


def tree(*votes, limit=16, run=0):
    return elect(votes, limit, {STOP}, "lookup", run)


def first(tree):
    """token -> score of the guesses behind the root."""
    nodes = zip(tree.tokens, tree.parents, tree.scores, strict=True)
    return {token: score for token, parent, score in nodes if parent == ROOT}


def test_no_vote_is_no_guess():
    assert tree() == NO_GUESS
    assert tree(Vote([1, 2], 4, 0), limit=0) == NO_GUESS


def test_one_vote_is_a_chain_and_no_certainty():
    one = tree(Vote([7, 8, 9], 2, 0))
    assert (one.tokens, one.parents) == ((7, 8, 9), (ROOT, 0, 1))
    assert one.scores[0] == pytest.approx(1 / 3)
    assert 0 < one.scores[2] < one.scores[1] < one.scores[0]


def test_a_longer_match_is_surer():
    assert first(tree(Vote([7], 16, 0)))[7] > first(tree(Vote([7], 4, 0)))[7]


def test_more_votes_are_surer():
    assert first(tree(Vote([7], 4, 0), Vote([7], 4, 1)))[7] > first(tree(Vote([7], 4, 0)))[7]


def test_most_votes_win_and_the_others_stay_in_the_tree():
    scores = first(tree(Vote([7], 4, 0), Vote([8], 4, 1), Vote([8], 4, 2)))
    assert scores[8] > scores[7] > 0
    assert scores[7] + scores[8] < 1


def test_between_equals_the_latest_wins():
    scores = first(tree(Vote([8], 4, 1), Vote([7], 4, 0)))
    assert scores[7] > scores[8]


def test_a_longer_match_outvotes_many_shorter():
    scores = first(tree(Vote([7], 9, 6), *(Vote([8], 5, rank) for rank in range(6))))
    assert scores[7] > scores[8]


def test_a_request_is_trusted_more_than_a_text_of_others():
    votes = (Vote([7], 6, 0, trust=0.5, realm=1), Vote([8], 6, 0))
    built = tree(*votes)
    assert first(built)[8] > first(built)[7]
    origins = dict(zip(built.tokens, built.origins, strict=True))
    assert origins == {8: Origin("lookup", length_class(6), 0), 7: Origin("lookup", 10 + length_class(6), 0)}


def test_a_text_that_ended_votes_against_those_that_go_on():
    alone, beside = tree(Vote([7, 8], 4, 0)), tree(Vote([7, 8], 4, 0), Vote([7, STOP], 4, 0))
    assert beside.scores[0] > alone.scores[0]
    assert beside.scores[1] / beside.scores[0] < alone.scores[1] / alone.scores[0]
    assert STOP not in beside.tokens


def test_nothing_is_guessed_behind_a_stop():
    assert tree(Vote([7, STOP, 9], 4, 0)).tokens == (7,)
    assert tree(Vote([STOP, 9], 4, 0)) == NO_GUESS


def test_the_match_grows_with_the_guesses_that_came_true():
    matches = [origin.match for origin in tree(Vote([5] * 8, 6, 0)).origins]
    assert matches == [length_class(6 + depth) for depth in range(8)]


def test_length_classes():
    classes = [length_class(tokens) for tokens in (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 1000)]
    assert classes == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


votes = st.builds(
    Vote, st.lists(st.integers(0, 3), max_size=6), st.integers(2, 12), st.integers(0, 20), st.sampled_from([0.5, 1.0])
)


@given(st.lists(votes, max_size=12), st.integers(0, 20))
def test_any_votes_make_a_sound_tree_of_paths_that_were_seen(cast, limit):
    built = tree(*cast, limit=limit)
    assert built.is_sound and built.nodes <= limit
    paths: list[tuple[int, ...]] = []
    for token, parent, score in zip(built.tokens, built.parents, built.scores, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
        assert score <= (built.scores[parent] if parent != ROOT else 1)
    seen = {tuple(vote.tokens[:size]) for vote in cast for size in range(1, len(vote.tokens) + 1)}
    assert set(paths) <= seen and len(set(paths)) == len(paths)
    assert sum(first(built).values()) < 1
    for node, parent in enumerate(built.parents[1:], start=1):  # depth-first: behind the parent or one of its heirs
        heirs = [node - 1]
        while heirs[-1] != ROOT:
            heirs.append(built.parents[heirs[-1]])
        assert parent in heirs


@given(st.lists(votes, min_size=1, max_size=12))
def test_a_smaller_limit_keeps_the_likeliest(cast):
    whole = tree(*cast, limit=100)
    for limit in range(1, whole.nodes):
        part = tree(*cast, limit=limit)
        assert sorted(part.scores, reverse=True) == sorted(whole.scores, reverse=True)[:limit]
