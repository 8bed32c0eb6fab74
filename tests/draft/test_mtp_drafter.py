"""The model's own head as a drafter: what it proposes, and that it never changes what is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from checkpoints import random_tokens
from heads import HEADED, Head, save_with_head
from rounds_by_hand import write
from torch import Tensor

from tandem.draft.mtp import MtpDrafter, Session
from tandem.draft.tree import NO_GUESS, DraftTree, Origin
from tandem.model.decoder import Decoder
from tandem.model.families.directory import open_checkpoint
from tandem.model.interface import Block, Wants
from tandem.model.weights.quant import Compute

pytestmark = pytest.mark.usefixtures("one_thread")

WINDOW = 128


@dataclass
class Pair:
    """One checkpoint, and its head written a second time (`tests/model/heads.py`)."""

    model: Decoder
    head: Head

    @property
    def drafter(self) -> MtpDrafter:
        assert self.model.mtp is not None
        return MtpDrafter(self.model.mtp, least=0.0)

    def reading(self, tokens: Tensor, window: int = WINDOW) -> Session:
        """On a slot that has read all but the last token."""
        state, drafter = self.model.new_state(window), self.drafter
        session = drafter.begin(state, "")
        self.model.forward([Block(tokens[:-1], 0, state, Wants.NONE)])
        drafter.follow(session, tokens[:-1].tolist())
        drafter.follow(session, tokens[-1:].tolist())
        return session

    def expected(self, tokens: Tensor, limit: int) -> tuple[list[int], list[float]]:
        """Greedy tokens of the other head and the probabilities of the paths to them."""
        guessed, logits = self.head.guess(tokens, limit)
        return guessed, torch.stack([row.softmax(-1).max() for row in logits]).cumprod(0).tolist()


@pytest.fixture(scope="module", params=HEADED)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory: Path = tmp_path_factory.mktemp(request.param)
    head = save_with_head(request.param, directory)
    return Pair(open_checkpoint(directory, Compute.FLOAT32, mtp=True), head)


def propose(pair: Pair, session: Session, limit: int) -> DraftTree:
    return pair.drafter.propose([session], [limit])[0]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_proposes_what_the_head_written_a_second_time_does(pair: Pair, seed: int) -> None:
    tokens = random_tokens(41, seed)
    tree = propose(pair, pair.reading(tokens), 5)
    guessed, scores = pair.expected(tokens, 5)
    assert list(tree.tokens) == guessed and tree.parents == tuple(range(-1, len(guessed) - 1))
    assert tree.scores == pytest.approx(scores, rel=1e-3)
    assert set(tree.origins) == {Origin("mtp")}


def test_sequences_together_get_what_each_gets_alone(pair: Pair) -> None:
    """Also where one stops before the others."""
    texts, limits = [random_tokens(rows, rows) for rows in (12, 33, 70)], [1, 5, 3]
    together = pair.drafter.propose([pair.reading(text) for text in texts], limits)
    assert together == [propose(pair, pair.reading(text), limit) for text, limit in zip(texts, limits, strict=True)]
    assert [tree.nodes for tree in together] == limits


def test_what_is_written_is_what_is_written_without_it(pair: Pair) -> None:
    prompt = random_tokens(30, 4)
    plain, drafted = write(pair.model, prompt, 40), write(pair.model, prompt, 40, pair.drafter)
    assert drafted.tokens[:40] == plain.tokens[:40]
    assert all(tree.nodes for tree in drafted.trees)


def test_rounds_leave_the_head_where_it_would_be_without_guesses(pair: Pair) -> None:
    """Each round's guesses are those behind the text alone, whatever the rounds before guessed."""
    prompt = random_tokens(30, 4)
    drafted = write(pair.model, prompt, 25, pair.drafter)
    rows = 1
    for tree, accepted in zip(drafted.trees, drafted.accepted, strict=True):
        text = torch.cat([prompt, torch.tensor(drafted.tokens[:rows])])
        assert list(tree.tokens) == pair.expected(text, 4)[0]
        rows += 1 + accepted


def test_behind_an_unlikely_path_nothing_is_guessed(pair: Pair) -> None:
    assert pair.model.mtp is not None
    tokens = random_tokens(41, 1)
    scores = pair.expected(tokens, 5)[1]
    drafter = MtpDrafter(pair.model.mtp, least=scores[2] * 1.01)
    assert drafter.propose([pair.reading(tokens)], [5])[0].nodes == 3


def test_no_room_no_guess(pair: Pair) -> None:
    tokens = random_tokens(41, 1)
    full, almost = pair.reading(tokens, window=40), pair.reading(tokens, window=42)
    assert pair.drafter.propose([full, almost], [5, 5])[0] is NO_GUESS
    assert propose(pair, almost, 5).nodes == 2


def test_a_slot_that_reads_something_else_is_not_guessed_for(pair: Pair) -> None:
    session = pair.reading(random_tokens(41, 1))
    pair.drafter.follow(session, [5])  # whose forerunner the slot has not read
    assert propose(pair, session, 5) is NO_GUESS
    assert pair.drafter.propose([session], [0]) == [NO_GUESS]
