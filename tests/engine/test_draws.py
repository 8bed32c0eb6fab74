"""Sampled text has the model's distribution, guessed or not; and the test that says so catches the classic mistakes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from engine_toy import ask, slot_of

from tandem.contract.messages import Sampling
from tandem.draft.tree import ROOT, DraftTree, Origin
from tandem.engine.choice import choice_for
from tandem.engine.drafters import no_drafting
from tandem.engine.facts import Take
from tandem.engine.round import accept, running_on
from tandem.engine.sample import gumbel
from tandem.engine.slot import Request
from tandem.engine.slot import Sequence as Written
from tandem.model.state import SequenceState

VOCAB = 6
DRAWS = 10_000
TEMPERATURE = 0.8
# Of each token, the scores of the one behind it; row VOCAB is the start.
MODEL = np.random.default_rng(7).normal(0, 0.9, (VOCAB + 1, VOCAB)).astype(np.float32)

Pair = tuple[int, int]  # the first two tokens of a text


def shares(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores.astype(np.float64) / TEMPERATURE)
    return weights / weights.sum()


def expected() -> dict[Pair, float]:
    first = shares(MODEL[VOCAB])
    return {(a, b): first[a] * shares(MODEL[a])[b] for a in range(VOCAB) for b in range(VOCAB)}


def strangeness(draw: Callable[[int], Pair]) -> float:
    """How many standard deviations the chi-square of `DRAWS` draws against the model lies from its mean."""
    seen = Counter(draw(trial) for trial in range(DRAWS))
    law = expected()
    assert min(law.values()) * DRAWS > 5, "cells of a chi-square test hold some draws each"
    square = sum((seen[pair] - share * DRAWS) ** 2 / (share * DRAWS) for pair, share in law.items())
    free = len(law) - 1
    # Wilson and Hilferty 1931: the cube root of a chi-square is nearly normal
    return ((square / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))


REJECTED = 4.0  # one honest run in 30,000


# --- what is served ---------------------------------------------------------------------------------------------


def tree_of(*nodes: tuple[int, int]) -> DraftTree:
    tokens, parents = zip(*nodes, strict=True)
    count = len(nodes)
    return DraftTree(tokens, parents, (1.0,) * count, (Origin("hand"),) * count)


def likeliest(trial: int) -> DraftTree:
    first = int(MODEL[VOCAB].argmax())
    return tree_of((first, ROOT), (int(MODEL[first].argmax()), 0))


def random_tree(trial: int) -> DraftTree:
    luck = np.random.default_rng(trial)
    one, two = luck.choice(VOCAB, 2, replace=False).tolist()
    a, b, c = luck.integers(0, VOCAB, 3).tolist()
    return tree_of((one, ROOT), (a, 0), ((a + 1 + b) % VOCAB, 0), (two, ROOT), (c, 3))


def every_first(trial: int) -> DraftTree:
    return tree_of(*((token, ROOT) for token in range(VOCAB)))


def nothing(trial: int) -> DraftTree:
    return DraftTree((), (), (), ())


def served(guesses: Callable[[int], DraftTree]) -> Callable[[int], Pair]:
    """Two tokens of a request with its own noise, drawn by the round's own functions."""

    def draw(trial: int) -> Pair:
        request = ask("a", (0,), 2, sampling=Sampling(temperature=TEMPERATURE, seed=trial))
        state = SequenceState(64, np.float32, ())  # type: ignore[arg-type]  # a model that remembers nothing
        slot = slot_of(state)
        followed = no_drafting().begin(state, "")
        take = Take(0, resume_at=0, max_tokens=2, reason="test")
        slot.begin(Written(Request(1, request, 0.0), take, choice_for(request, VOCAB, trial), followed, 0.0, read=1))
        tree, last = guesses(trial), VOCAB
        while running_on(slot).end is None:
            if tree.nodes:
                state.begin(slot.rows, 1 + tree.nodes, settled=False)
            accept(slot, tree, MODEL[[last, *tree.tokens]])
            last, tree = running_on(slot).written[-1], nothing(trial)
        first, second = running_on(slot).written
        return first, second

    return draw


@pytest.mark.parametrize("guesses", [nothing, likeliest, random_tree, every_first])
def test_drafted_draws_have_the_distribution_of_the_model(guesses: Callable[[int], DraftTree]) -> None:
    assert abs(strangeness(served(guesses))) < REJECTED


def test_a_seed_draws_the_same_whatever_is_guessed() -> None:
    for trial in range(300):
        texts = {served(guesses)(trial) for guesses in (nothing, likeliest, random_tree, every_first)}
        assert len(texts) == 1


# --- what a mistake looks like ----------------------------------------------------------------------------------


def noisy(scores: np.ndarray, seed: int, position: int) -> int:
    return int((scores + TEMPERATURE * gumbel(seed, position, VOCAB)).argmax())


def reusing_noise(trial: int) -> Pair:
    """A guess is checked with the noise of the position before it."""
    first = noisy(MODEL[VOCAB], trial, 0)
    return first, noisy(MODEL[first], trial, 0)


def drawing_again(trial: int) -> Pair:
    """A draw that misses the guess is thrown away, and another one taken."""
    guess = int(MODEL[VOCAB].argmax())
    first = noisy(MODEL[VOCAB], trial, 0)
    if first != guess:
        first = noisy(MODEL[VOCAB], trial, 1)
    return first, noisy(MODEL[first], trial, 2)


def residual(trial: int, claim: float, subtract: bool) -> Pair:
    """Accept a guess that its drafter gave the probability `claim` as rejection sampling does; from what is left draw
    with or without taking the claim away."""
    luck = np.random.default_rng(trial)
    law = shares(MODEL[VOCAB])
    proposal = np.full(VOCAB, (1 - claim) / (VOCAB - 1))
    proposal[int(law.argmin())] = claim
    first = int(luck.choice(VOCAB, p=proposal))
    if luck.random() >= min(1.0, law[first] / proposal[first]):
        left = np.maximum(law - proposal, 0) if subtract else law
        first = int(luck.choice(VOCAB, p=left / left.sum()))
    return first, int(luck.choice(VOCAB, p=shares(MODEL[first])))


PLANTED: Sequence[tuple[str, Callable[[int], Pair]]] = (
    ("noise used for two positions", reusing_noise),
    ("a second draw after a miss", drawing_again),
    ("a residual that keeps what was taken", lambda trial: residual(trial, 0.5, subtract=False)),
)


@pytest.mark.parametrize("draw", [draw for _, draw in PLANTED], ids=[name for name, _ in PLANTED])
def test_a_planted_mistake_is_caught(draw: Callable[[int], Pair]) -> None:
    assert strangeness(draw) > REJECTED


def test_what_is_planted_is_the_mistake_and_not_the_method() -> None:
    assert abs(strangeness(lambda trial: residual(trial, 0.5, subtract=True))) < REJECTED
