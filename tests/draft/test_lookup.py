from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.contract.plan import LookupPlan
from tandem.draft.grams import LONGEST
from tandem.draft.lookup import LEAST_SIZE, REQUEST_SIZES, Lookup, Realm, open_lookup, tokenizer_digest
from tandem.draft.tree import NO_GUESS, ROOT
from tandem.draft.votes import MOST_VOTES, Vote, elect, length_class
from tandem.errors import CannotStart
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import TokenKind, Vocabulary

STATE = object()  # a lookup does not look at it
STOP = 0
LETTERS = "abcdefghijklmnopqrstuvwxyz "
VOCABULARY = Vocabulary(
    tokens=("<|im_end|>", *LETTERS.replace(" ", "Ġ"), "Ċ"),
    kinds=(TokenKind.CONTROL, *[TokenKind.NORMAL] * (len(LETTERS) + 1)),
    merges=(),
    pre="gpt-2",
    bos=None,
    eos=STOP,
    add_bos=False,
    stop_tokens=(STOP,),
    chat_template="",
)


def plan_in(directory, scope="outputs", readonly=False, corpus=None):
    return LookupPlan(scope, readonly, LEAST_SIZE, str(directory / "lookup"), corpus)


def opened(directory, **how):
    return open_lookup(plan_in(directory, **how), VOCABULARY)


def begun(drafter, *texts, scope=""):
    session = drafter.begin(STATE, scope)
    for text in texts:
        drafter.follow(session, text)
    return session


def guess(drafter, session, limit=8):
    (tree,) = drafter.propose([session], [limit])
    return tree


def text(seed, length=60):
    return np.random.default_rng(seed).integers(1, 28, length).tolist()


# --- in the request ---


def test_it_goes_on_as_it_did_before():
    drafter = Lookup()
    tree = guess(drafter, begun(drafter, [5, 6, 7, 8, 9, 10, 11, 1, 2, 5, 6, 7]), limit=4)
    assert tree.tokens == (8, 9, 10, 11)
    assert tree.parents == (ROOT, 0, 1, 2)
    assert {origin.source for origin in tree.origins} == {"lookup"}


def test_what_was_written_counts_as_what_was_read():
    drafter = Lookup()
    session = begun(drafter, [1, 2, 3], [4, 5, 6], [7, 1, 4], [5])
    assert guess(drafter, session, 3).tokens == (6, 7, 1)


def test_several_sessions_are_answered_in_order():
    drafter = Lookup()
    one, two, three = begun(drafter, [1, 2, 3, 1, 2]), begun(drafter, [1, 2, 9, 1, 2]), begun(drafter, [1, 2, 3])
    trees = drafter.propose([one, two, three], [1, 1, 1])
    assert [tree.tokens for tree in trees] == [(3,), (9,), ()]


def test_nothing_known_and_nothing_wanted_are_no_guess():
    drafter = Lookup()
    assert guess(drafter, begun(drafter)) == NO_GUESS
    assert guess(drafter, begun(drafter, [1])) == NO_GUESS
    assert guess(drafter, begun(drafter, [1, 2, 3, 4])) == NO_GUESS
    assert guess(drafter, begun(drafter, [1, 2, 3, 1, 2]), limit=0) == NO_GUESS


def test_a_stop_token_is_no_guess():
    drafter = Lookup(frozenset({STOP}))
    assert guess(drafter, begun(drafter, [1, 2, 3, STOP, 4, 5, 1, 2])).tokens == (3,)


def test_runs_count_guesses_that_came_true():
    drafter = Lookup()
    copied = list(range(10, 40))
    session = begun(drafter, [*copied, 1, 2, 10, 11])
    runs = []
    for written in ([12], [13, 14, 15], [16, 17, 18, 99], [98], [20, 21]):
        tree = guess(drafter, session, limit=3)
        runs.append(tree.origins[0].run if tree.nodes else None)
        drafter.follow(session, written)
    # the third turn's three guesses came true and the fourth token had none; 98 then was not what 19 would have been
    assert runs == [length_class(0), length_class(1), length_class(4), None, None]


def test_a_wrong_guess_ends_the_run():
    drafter = Lookup()
    session = begun(drafter, [*range(10, 40), 1, 2, 10, 11])
    guess(drafter, session, limit=3)
    drafter.follow(session, [12, 13])
    guess(drafter, session, limit=3)
    drafter.follow(session, [14, 30, 31])  # 15 was guessed
    assert guess(drafter, session, limit=3).origins[0].run == 0


def naive_votes(words, limit):
    """By comparing all places with the end, one by one."""
    matches = [(place, _match(words[:place], words)) for place in reversed(range(1, len(words)))]
    for size in reversed(REQUEST_SIZES):
        if voters := [(place, match) for place, match in matches if match >= size]:
            ranked = sorted(enumerate(voters), key=lambda each: -each[1][1])[:MOST_VOTES]
            return [Vote(_repeated(words, place, limit), match, rank) for rank, (place, match) in ranked]
    return []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=30), min_size=1, max_size=8), st.integers(0, 12))
def test_all_places_vote_as_if_each_had_been_compared(pieces, limit):
    drafter = Lookup(frozenset({STOP}))
    words = [word for piece in pieces for word in piece]
    tree = guess(drafter, begun(drafter, *pieces), limit)
    assert tree == elect(naive_votes(words, limit), limit, {STOP}, "lookup", 0)
    assert tree.is_sound and tree.nodes <= limit and STOP not in tree.tokens


def _match(left, right):
    pairs = zip(reversed(left), reversed(right), strict=False)
    return min(LONGEST, len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))))


def _repeated(words, place, count):
    copied = list(words)
    for _ in range(count):
        copied.append(copied[place + len(copied) - len(words)])
    return copied[len(words) :]


def test_the_longest_match_decides():
    drafter = Lookup()
    session = begun(drafter, [9, 4, 5, 6, 1, 8, 5, 6, 2, 7, 5, 6, 2, 9, 4, 5, 6])
    assert guess(drafter, session, 1).tokens == (1,)


# --- the store ---


def test_outputs_are_learned_and_prompts_are_not(tmp_path):
    drafter = opened(tmp_path)
    prompt, answer = text(1), text(2)
    drafter.end(begun(drafter, prompt, answer[:7], answer[7:]))
    drafter.close()
    drafter = opened(tmp_path)
    drafter.begin(STATE, "")
    drafter.close()  # waits until the shelf is read
    assert guess(drafter, begun(drafter, answer[:10]), 5).tokens == tuple(answer[10:15])
    assert guess(drafter, begun(drafter, prompt[:10]), 5) == NO_GUESS


def test_all_learns_prompts_as_well(tmp_path):
    drafter = opened(tmp_path, scope="all")
    prompt, answer = text(1), text(2)
    drafter.end(begun(drafter, prompt, answer))
    drafter.close()
    tree = guess(drafter, begun(drafter, prompt[-10:]), 5)
    assert tree.tokens == tuple(answer[:5])
    assert tree.origins[0].match == Realm.STORE * 10 + length_class(10)


def test_an_answer_is_not_learned_past_its_end(tmp_path):
    drafter = opened(tmp_path)
    drafter.end(begun(drafter, text(1), [*text(2), STOP, *text(3)]))
    drafter.close()
    assert guess(drafter, begun(drafter, text(3)[:10])) == NO_GUESS
    assert guess(drafter, begun(drafter, text(2)[:10])).nodes
    assert guess(drafter, begun(drafter, text(2)[-10:])) == NO_GUESS


def test_request_keeps_nothing(tmp_path):
    drafter = opened(tmp_path, scope="request")
    drafter.end(begun(drafter, text(1), text(2)))
    drafter.close()
    assert guess(drafter, begun(drafter, text(2)[:10])) == NO_GUESS
    assert not (tmp_path / "lookup").exists()


def test_readonly_learns_nothing(tmp_path):
    opened(tmp_path).close()
    drafter = opened(tmp_path, readonly=True)
    drafter.end(begun(drafter, text(1), text(2)))
    drafter.close()
    assert guess(drafter, begun(drafter, text(2)[:10])) == NO_GUESS


def test_a_scope_is_not_answered_from_anothers_store(tmp_path):
    drafter = opened(tmp_path, scope="all")
    drafter.end(begun(drafter, text(1), text(2), scope="anna"))
    drafter.close()
    assert guess(drafter, begun(drafter, text(2)[:10], scope="anna")).nodes
    assert guess(drafter, begun(drafter, text(2)[:10], scope="ben")) == NO_GUESS
    assert guess(drafter, begun(drafter, text(2)[:10], scope="")) == NO_GUESS


def test_a_sequence_that_ended_before_its_prompt_was_read_leaves_nothing(tmp_path):
    drafter = opened(tmp_path, scope="all")
    drafter.end(drafter.begin(STATE, ""))
    drafter.close()
    assert not list((tmp_path / "lookup").glob("*.tokens"))


def test_the_requests_own_text_comes_first(tmp_path):
    drafter = opened(tmp_path)
    drafter.end(begun(drafter, [1], [*text(1, 20), 5]))
    drafter.close()
    tree = guess(drafter, begun(drafter, [*text(1, 20), 9, *text(1, 20)]), 2)
    assert tree.tokens[0] == 9 and tree.origins[0].match // 10 == Realm.REQUEST


def test_a_store_too_small_to_be_one_is_a_sentence(tmp_path):
    plan = LookupPlan("all", False, LEAST_SIZE - 1, str(tmp_path / "lookup"))
    with pytest.raises(CannotStart, match="1 MiB is the least"):
        open_lookup(plan, VOCABULARY)


def test_every_part_of_a_tokenizer_tells_it_from_others():
    others = [
        replace(VOCABULARY, tokens=(*VOCABULARY.tokens[:-1], "x")),
        replace(VOCABULARY, kinds=(TokenKind.NORMAL, *VOCABULARY.kinds[1:])),
        replace(VOCABULARY, merges=(("a", "b"),)),
        replace(VOCABULARY, pre="smollm"),
        replace(VOCABULARY, pairs="{}"),
    ]
    assert len({tokenizer_digest(each) for each in (VOCABULARY, *others)}) == 6
    assert tokenizer_digest(replace(VOCABULARY, chat_template="x")) == tokenizer_digest(VOCABULARY)


# --- the corpus ---


def encoded(words):
    return Tokenizer(VOCABULARY).encode(words)


def test_a_text_corpus_answers_every_scope(tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the quick brown fox\njumps over the lazy dog")
    drafter = opened(tmp_path, scope="request", corpus=str(corpus))
    tree = guess(drafter, begun(drafter, encoded("a very quick brown "), scope="anna"), 3)
    assert tree.tokens == tuple(encoded("fox"))
    assert tree.origins[0].match // 10 == Realm.CORPUS
    assert guess(drafter, begun(drafter, encoded("lazy dog"))) == NO_GUESS


def test_a_token_corpus_is_read_as_it_is(tmp_path):
    np.save(tmp_path / "corpus.npy", np.array(text(1), np.int64))
    drafter = opened(tmp_path, scope="request", corpus=str(tmp_path / "corpus.npy"))
    assert guess(drafter, begun(drafter, text(1)[:10]), 4).tokens == tuple(text(1)[10:14])


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.array([1, 29]), "ids from 1 to 29; this tokenizer has 29"),
        (np.array([-1, 2]), "ids from -1"),
        (np.array([[1, 2]]), "2 dimensions"),
        (np.array([1.5]), "float64"),
        (np.array(["a", object()], dtype=object), "pickle"),
    ],
)
def test_a_token_corpus_of_something_else_is_a_sentence(tmp_path, array, why):
    np.save(tmp_path / "corpus.npy", array, allow_pickle=True)
    with pytest.raises(CannotStart, match=why):
        opened(tmp_path, scope="request", corpus=str(tmp_path / "corpus.npy"))


def test_a_corpus_that_is_not_there_or_no_text_is_a_sentence(tmp_path):
    with pytest.raises(CannotStart, match=r"gone\.txt"):
        opened(tmp_path, scope="request", corpus=str(tmp_path / "gone.txt"))
    (tmp_path / "picture").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(CannotStart, match="picture"):
        opened(tmp_path, scope="request", corpus=str(tmp_path / "picture"))


def test_a_request_that_fills_its_own_words_with_many_places_stays_within_bounds():
    drafter = Lookup()
    session = begun(drafter, [1, 2, 3] * 5000)
    tree = guess(drafter, session, 16)
    assert tree.tokens == ((1, 2, 3) * 6)[:16]
    assert all(score > 0.5 for score in tree.scores)
