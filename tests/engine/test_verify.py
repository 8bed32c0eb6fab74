"""The gate itself: it passes what is equal, and finds what is not."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from engine_toy import VOCAB, ToyModel, ask, engine_plan, whole_plan
from torch import Tensor

from tandem.contract.messages import Sampling
from tandem.engine.drafters import no_drafting
from tandem.engine.verify import Case, Report, verify
from tandem.model.interface import Block

TOKENS = 12


def cases() -> list[Case]:
    prompts = [[(start * 17 + index * index) % VOCAB for index in range(4 + 3 * start)] for start in range(5)]
    seeded = Sampling(temperature=0.8, frequency_penalty=0.2, seed=3)
    greedy = [Case(ask(f"greedy {n}", prompt, TOKENS)) for n, prompt in enumerate(prompts)]
    drawn = [
        Case(ask(f"seeded {n}", prompt, TOKENS, sampling=seeded, scope="seeded")) for n, prompt in enumerate(prompts)
    ]
    return [*greedy, *drawn]


def report_of(model: ToyModel, folder: Path, slots: Sequence[int] = (1, 2, 4)) -> Report:
    plan = whole_plan(folder, engine_plan([64] * 4))
    return verify(model, plan, cases(), lambda: nullcontext(no_drafting()), lambda *_: None, slots)


def test_an_exact_engine_passes_in_every_mode(tmp_path: Path) -> None:
    report = report_of(ToyModel(row_bucket=16), tmp_path)
    assert report.passed and not report.differences
    modes = [str(outcome.mode) for outcome in report.outcomes]
    assert len(modes) == len(set(modes)) == 12 and modes[0] == "none, 1 slot" and "served, 4 slots" in modes
    by_mode = {str(outcome.mode): outcome for outcome in report.outcomes}
    assert {outcome.tokens for outcome in report.outcomes} == {10 * TOKENS}
    assert by_mode["none, 1 slot"].drafted == 0
    assert by_mode["wrong, 1 slot"].accepted == 0 < by_mode["wrong, 1 slot"].drafted
    half = by_mode["half-right, 2 slots"]
    assert 0 < half.accepted < half.drafted and half.rounds < by_mode["none, 2 slots"].rounds


class Leaking(ToyModel):
    """A row takes something over from the row before it in the pass, whoever's it is."""

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        logits = super().forward(blocks)
        if len(logits) > 1:
            logits[1:] += 0.5 * logits[:-1].clone()
        return logits


class Forgetful(ToyModel):
    """A path is settled without being moved into line."""

    def new_state(self, *args, **kwargs):
        state = super().new_state(*args, **kwargs)
        state.commit = lambda path: setattr(state, "_tree", None)
        return state


@pytest.mark.parametrize("broken", [Leaking, Forgetful])
def test_a_model_whose_rows_depend_on_each_other_is_found(broken: type[ToyModel], tmp_path: Path) -> None:
    report = report_of(broken(row_bucket=16), tmp_path, slots=(2,))
    assert not report.passed
    worst = max(report.differences, key=lambda difference: difference.lead)
    assert worst.lead > worst.tolerance and worst.expected != worst.written and worst.gap >= 0
    assert {str(difference.mode) for difference in report.differences} & {"half-right, 2 slots"}


class Rounding(ToyModel):
    """Rows of a joint pass are off by a hair, and every row has two tokens that score within it."""

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        logits = super().forward(blocks)
        best = logits.argmax(dim=1)
        for row, token in enumerate(best.tolist()):
            other = (token + 1) % VOCAB
            logits[row, other] = logits[row, token] - 1e-6
            if len(logits) > 1 and token % 5 == 0:
                logits[row, other] += 2e-6
        return logits


def test_near_ties_are_told_and_pass(tmp_path: Path) -> None:
    report = report_of(Rounding(row_bucket=16), tmp_path, slots=(2,))
    assert report.differences and report.passed
    assert all(difference.lead <= difference.tolerance for difference in report.differences)


def test_a_request_that_fails_fails_the_gate(tmp_path: Path) -> None:
    model = ToyModel(row_bucket=16)
    model.broken.append(RuntimeError("the device is unwell"))
    report = report_of(model, tmp_path, slots=(1,))
    assert not report.passed
    assert len(report.outcomes[0].failures) == 1 and "RuntimeError" in report.outcomes[0].failures[0]
