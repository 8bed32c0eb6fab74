"""The plan's drafters, opened over the default model: what they keep, and that a plan without them has none."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from engine_toy import GIB, Hand, ask, engine_plan, live
from msgspec.structs import replace
from test_verify_models import default_plan, default_weights

from tandem.contract.messages import Finished, Sampling
from tandem.contract.plan import DraftModelPlan, DraftPlan, EnginePlan
from tandem.draft.price import Price, write_prices
from tandem.engine.drafters import drafting_of, facts_of
from tandem.engine.engine import Engine
from tandem.engine.world import World
from tandem.errors import CannotStart
from tandem.model.interface import Model
from tandem.model.loading import load

GREEDY = Sampling()
PROMPT = tuple(range(1000, 1040)) * 2  # repeats itself, as what is copied does


@pytest.fixture(scope="module")
def model() -> Model:
    return load(default_weights(), "int4", threads=1)


def written(
    model: Model, plan: EnginePlan, *prompts: tuple[int, ...], sampling: Sampling = GREEDY
) -> tuple[list[list[int]], list[Finished]]:
    """Texts of the prompts, one after the other, and the last word about each."""
    driver: Hand
    with drafting_of(plan, model) as drafting:
        seconds = iter(range(1 << 30))
        world = World(
            clock=lambda: next(seconds) * 0.01,
            available=lambda: 64 * GIB,
            noise=lambda: 0,
            post=lambda letters, health: driver.sent.extend(letters),
        )
        driver = Hand(Engine(model, plan, live(), 64 * GIB, world, drafting=drafting), model)  # type: ignore[arg-type]
        for number, prompt in enumerate(prompts):
            driver.turn(ask(f"r{number}", prompt, 24, sampling=sampling))
            driver.until_idle()
    ids = [f"r{number}" for number in range(len(prompts))]
    return [driver.tokens(id) for id in ids], [driver.finished(id) for id in ids]


def test_what_was_written_is_found_again_after_a_restart(model: Model, tmp_path: Path) -> None:
    plan = default_plan(tmp_path, threads=1)
    hot = Sampling(temperature=1.5, seed=3)  # a text in which nothing comes twice
    (text,), (first,) = written(model, plan, PROMPT, sampling=hot)
    (again,), (second,) = written(model, plan, PROMPT, sampling=hot)
    assert again == text and len(set(text)) > 20
    assert second.rounds < first.rounds and second.accepted > first.accepted
    folder = tmp_path / "lookup"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(folder.glob("*.tokens"))


def test_without_a_plan_nobody_guesses(model: Model, tmp_path: Path) -> None:
    plan = default_plan(tmp_path, threads=1)
    (text,), (finished,) = written(model, replace(plan, draft=None), PROMPT)
    assert (finished.drafted, finished.rounds) == (0, len(text) - 1)
    assert not (tmp_path / "lookup").exists()


def test_a_smaller_model_guesses_what_the_model_writes(model: Model, tmp_path: Path) -> None:
    """The model itself stands in for a smaller one: it is nearly always right."""
    smaller = DraftModelPlan(str(default_weights()), "int8")
    plan = default_plan(tmp_path, threads=1)
    draft = DraftPlan(nodes=5, lookup=None, mtp=True, model=smaller, prices=str(tmp_path / "prices.json"))
    (plain,), _ = written(model, replace(plan, draft=None), PROMPT)
    (text,), (finished,) = written(model, replace(plan, draft=draft), PROMPT)
    assert text == plain and finished.accepted > 0


def test_prices_that_were_measured_here_are_used(model: Model, tmp_path: Path) -> None:
    plan = default_plan(tmp_path, threads=1)
    assert plan.draft is not None
    write_prices(Path(plan.draft.prices), facts_of(plan), [Price(rows, 64, 5.0 * rows) for rows in range(1, 17)])
    assert json.loads(Path(plan.draft.prices).read_text())["engine"] == facts_of(plan)
    with drafting_of(plan, model) as drafting:
        assert drafting._prices.table(16, 64)[16] == pytest.approx(80.0)


def test_a_store_that_cannot_be_made_is_a_sentence(model: Model, tmp_path: Path) -> None:
    plan = default_plan(tmp_path, threads=1)
    (tmp_path / "lookup").write_text("")
    with pytest.raises(CannotStart), drafting_of(plan, model):
        pass


def test_a_toy_plan_has_no_drafting(model: Model) -> None:
    with drafting_of(engine_plan(), model) as drafting:
        assert drafting.nodes == 0 and not drafting.guessers
