"""Rounds with the drafters that run a model: the served model's own head, and a model beside it.

They guess in every round here, whatever that costs, on slots with the KV pool, where a touch of a row without memory
ends the process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checkpoints import random_tokens
from engine_toy import GIB, Hand, ask, engine_plan, live
from heads import HEADED, save_with_head

from tandem.contract.messages import Generate, Sampling
from tandem.draft.drafting import Bid, Drafting, Guesses
from tandem.draft.interface import Drafter
from tandem.draft.model import ModelDrafter
from tandem.draft.mtp import MtpDrafter
from tandem.draft.price import Staircase
from tandem.engine.engine import Engine
from tandem.engine.world import World
from tandem.memory.host_pages import HostPages
from tandem.model.interface import Model
from tandem.model.loading import load

NODES = 3  # beside a row of each of four slots, they fill a pass
NEW_TOKENS = 24


class Always(Drafting):
    """Every drafter in every round."""

    def propose(self, bids: Sequence[Bid], row_limit: int) -> Guesses:
        [guesser] = self.guessers
        sessions = [bid.followed.sessions[guesser] for bid in bids]
        room = (row_limit - len(bids)) // len(bids)
        limits = [min(bid.limit, self.nodes, room) for bid in bids]
        return Guesses(tuple(guesser.drafter.propose(sessions, limits)), context=0)


def driven(model: Model, slots: int, drafter: Drafter[Any] | None, pages: HostPages) -> Hand:
    driver: Hand

    def post(letters: list[Any], health: Any) -> None:
        driver.sent += letters
        driver.health = health

    world = World(clock=lambda: driver.now, available=lambda: 64 * GIB, noise=count().__next__, post=post)
    plan = msgspec.structs.replace(engine_plan([128] * slots, chunk=16), kv_margin_rows=0)
    drafting = Always([drafter], NODES, Staircase()) if drafter else None
    driver = Hand(Engine.__new__(Engine), model)  # type: ignore[arg-type]
    driver.engine.__init__(model, plan, live(max_queue=100), 64 * GIB, world, pages, drafting)  # type: ignore[misc]
    return driver


def requests() -> list[Generate]:
    prompts = {f"{rows} rows": random_tokens(rows, rows).tolist() for rows in (1, 15, 40, 70)}
    sampled = Sampling(temperature=0.8, seed=3)
    return [
        *(ask(name, prompt, NEW_TOKENS) for name, prompt in prompts.items()),
        ask("seeded", random_tokens(33, 2).tolist(), NEW_TOKENS, sampling=sampled),
    ]


def told(driver: Hand) -> dict[str, tuple[list[int], int, int]]:
    """What each request wrote, and how many guesses were checked for it and came true."""
    driver.turn(*requests())
    driver.until_idle()
    ended = {each.id: driver.finished(each.id) for each in requests()}
    return {id: (driver.tokens(id), finished.drafted, finished.accepted) for id, finished in ended.items()}


def texts(driver: Hand) -> dict[str, list[int]]:
    return {id: text for id, (text, *_) in told(driver).items()}


def own_head(model: Model) -> Drafter[Any]:
    assert model.mtp is not None
    return MtpDrafter(model.mtp, least=0.0)


def itself(model: Model) -> Drafter[Any]:
    return ModelDrafter(model, model.config.vocab, least=0.0)


@pytest.fixture(scope="module", params=HEADED)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp(request.param)
    save_with_head(request.param, directory)
    return directory


@pytest.fixture(scope="module")
def model(directory: Path) -> Model:
    return load(directory, "float32", threads=1, mtp=True)


@pytest.fixture(scope="module")
def plain(directory: Path) -> dict[str, list[int]]:
    """Without a head, without guesses, one request at a time."""
    return texts(driven(load(directory, "float32", threads=1), 1, None, HostPages()))


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("drafter", [own_head, itself])
def test_texts_are_those_without_guesses(
    model: Model, plain: dict[str, list[int]], drafter: Callable[[Model], Drafter[Any]], slots: int
) -> None:
    assert texts(driven(model, slots, drafter(model), HostPages())) == plain


def test_every_slot_is_guessed_for_alike(model: Model) -> None:
    alone, together = (told(driven(model, slots, own_head(model), HostPages())) for slots in (1, 4))
    assert together == alone
    assert all(drafted > NEW_TOKENS for _, drafted, _ in alone.values())


def test_of_its_own_guesses_the_model_takes_all(model: Model) -> None:
    """Of a greedy request; but for those beyond its last token."""
    for id, (_, drafted, accepted) in told(driven(model, 4, itself(model), HostPages())).items():
        assert id == "seeded" or accepted == drafted >= NEW_TOKENS * 0.7


@pytest.mark.wire
def test_no_row_without_memory_is_ever_touched(directory: Path) -> None:
    """In a process of its own, because there a touch is fatal; the head writes rows ahead of those that are read."""
    code = (
        "import sys; sys.path += sys.argv[1:3]\n"
        "from pathlib import Path\n"
        "from test_drafting_models import HostPages, driven, load, own_head, texts\n"
        "model = load(Path(sys.argv[3]), 'float32', 1, mtp=True)\n"
        "texts(driven(model, 4, own_head(model), HostPages(guard=True))); print('touched no other row')\n"
    )
    here = Path(__file__).parent
    command = [sys.executable, "-c", code, str(here), str(here.parent / "model"), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stdout) == (0, "touched no other row\n"), done.stderr
