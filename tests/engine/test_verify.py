"""The gate itself: it passes what is equal, and finds what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from engine_toy import VOCAB, ToyModel, ask, engine_plan, whole_plan
from msgspec.structs import replace
from torch import Tensor

import tandem.engine.verify as verify_module
from tandem.contract.messages import Marks, Sampling
from tandem.engine.drafters import no_drafting
from tandem.engine.verify import Report, verify
from tandem.engine.verify_turns import Case, Kept, conversations, returning
from tandem.errors import CannotStart
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


def long_cases() -> list[Case]:
    """Fewer tokens than these are read again where they are."""
    return [Case(ask(f"long {n}", [(n * 13 + at * 7) % VOCAB for at in range(90)], TOKENS)) for n in range(9)]


def report_of(
    model: ToyModel, folder: Path, slots: Sequence[int] = (1, 2, 4), of: Callable[[], list[Case]] = cases
) -> Report:
    plan = whole_plan(folder, engine_plan([64] * 4))
    return verify(model, plan, of(), lambda: nullcontext(no_drafting()), lambda *_: None, slots)


def test_an_exact_engine_passes_in_every_mode(tmp_path: Path) -> None:
    report = report_of(ToyModel(row_bucket=16), tmp_path)
    assert report.passed and not report.differences
    modes = [str(outcome.mode) for outcome in report.outcomes]
    assert len(modes) == len(set(modes)) == 12 + 1 + 9
    assert modes[0] == "none, 1 slot" and {"served, 4 slots", "served, 4 slots, back from memory"} <= set(modes)
    by_mode = {str(outcome.mode): outcome for outcome in report.outcomes}
    assert {outcome.tokens for outcome in report.outcomes[:12]} == {10 * TOKENS}
    assert by_mode["none, 1 slot"].drafted == 0
    assert by_mode["wrong, 1 slot"].accepted == 0 < by_mode["wrong, 1 slot"].drafted
    half = by_mode["half-right, 2 slots"]
    assert 0 < half.accepted < half.drafted and half.rounds < by_mode["none, 2 slots"].rounds


@pytest.mark.parametrize("is_row_invariant", [True, False])
def test_conversations_come_back_from_where_they_were_kept(is_row_invariant: bool, tmp_path: Path) -> None:
    report = report_of(ToyModel(is_row_invariant=is_row_invariant, row_bucket=16), tmp_path, slots=(1,), of=long_cases)
    assert report.passed and not report.differences
    by_kept = {outcome.mode.kept: outcome for outcome in report.outcomes if outcome.mode.kept}
    assert len({(outcome.tokens, outcome.prompts) for outcome in by_kept.values()}) == 1
    assert by_kept[Kept.NOWHERE].resumed == 0 < by_kept[Kept.SLOTS].resumed < by_kept[Kept.MEMORY].resumed
    assert 0 < by_kept[Kept.DISK].resumed < by_kept[Kept.DISK].prompts


class Misread(ToyModel):
    """Rows that are brought back to a state are those of others."""

    def new_state(self, *args, **kwargs):
        state = super().new_state(*args, **kwargs)
        load = state.load

        def load_wrong(*args, **kwargs):
            load(*args, **kwargs)
            state.part.rows[: state.position] += 1

        state.load = load_wrong
        return state


def test_rows_that_come_back_wrong_are_found(tmp_path: Path) -> None:
    report = report_of(Misread(row_bucket=16), tmp_path, slots=(2,), of=long_cases)
    assert not report.passed
    assert {difference.mode.kept for difference in report.differences} == {Kept.MEMORY, Kept.DISK}


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


def test_a_turn_asks_the_same_again_behind_what_was_written() -> None:
    marks = Marks(head_end=2, messages_end=3)
    first = Case(replace(ask("chat, greedy", (5, 6, 7, 8), 100, stop=[9]), marks=marks))
    other = Case(ask("never finishes", (1, 2), 3))
    written: dict[str, tuple[int, ...]] = {"chat, greedy, turn 1": (20, 21), "chat, greedy, turn 2": (22,)}
    turns = list(conversations([first, other], written, anew=True))
    assert [[case.ask.id for case in turn] for turn in turns] == [
        ["chat, greedy, turn 1", "never finishes, turn 1"],
        ["chat, greedy, turn 2"],
        ["chat, greedy, turn 3"],
    ]
    third = turns[2][0].ask
    assert third.tokens == (5, 6, 7, 8, 20, 21, 9, 5, 6, 7, 8, 22, 9, 5, 6, 7, 8)
    assert third.marks == Marks(2, 16) and third.anew and third.max_tokens == 64


def test_who_would_outgrow_the_window_does_not_come_back() -> None:
    long, short = Case(ask("long", range(40), 10)), Case(ask("short", range(4), 10))
    assert returning([long] * 3 + [short], window=64, least=1) == [short]


def test_of_few_as_many_come_back_as_there_are_slots() -> None:
    few = [Case(ask(f"{n}", range(4), 10)) for n in range(5)]
    assert returning(few, window=64, least=4) == few[:4]
    assert returning(few[:2], window=64, least=4) == few[:2]
    assert returning(few, window=64, least=2) == few[::3]


def test_an_outcome_says_how_many_were_asked_and_how_many_at_once(tmp_path: Path) -> None:
    report = report_of(ToyModel(row_bucket=16), tmp_path, slots=(4,), of=lambda: cases()[:3])
    assert (report.requests, report.returning) == (3, 3)
    assert {(each.requests, each.together > 1) for each in report.outcomes if each.mode.slots == 4} == {
        (3, True),
        (9, True),
    }
    assert all(each.is_tried for each in report.outcomes)
    alone = report_of(ToyModel(row_bucket=16), tmp_path, slots=(4,), of=lambda: cases()[:1])
    assert [each.is_tried for each in alone.outcomes] == [each.mode.slots == 1 for each in alone.outcomes]


def test_a_disk_that_is_stuck_is_an_error_and_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "_SETTLES", -1.0)
    with pytest.raises(CannotStart, match="the disk has not read or written"):
        report_of(ToyModel(row_bucket=16), tmp_path, slots=(1,), of=lambda: long_cases()[:1])
