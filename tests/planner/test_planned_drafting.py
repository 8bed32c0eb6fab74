"""Who guesses, as the documents say it: the appliance over the profile over the neutral values."""

from __future__ import annotations

from pathlib import Path

import pytest
from boxes import APPLIANCE, LAPTOP, SPARK, documents, plan

from tandem.contract.plan import DraftPlan, LookupPlan
from tandem.errors import DocumentError
from tandem.planner.diff import diff
from tandem.units import MIB

STATE = APPLIANCE.parent / ".tandem"


def drafting(*flags: str) -> DraftPlan | None:
    return plan(*flags, box=LAPTOP).engine.draft


def test_the_default_profile_looks_up_what_was_written() -> None:
    assert drafting() == DraftPlan(
        nodes=15,
        lookup=LookupPlan("outputs", readonly=False, size=64 * MIB, path=str(STATE / "draft/lookup")),
        mtp=True,
        model=None,
        prices=str(STATE / "draft/prices-smollm2-135m.json"),
    )


def test_off_is_off_and_takes_nothing() -> None:
    without = plan("draft=off", box=LAPTOP)
    assert without.engine.draft is None
    assert "lookup store" in {item.label for item in plan(box=LAPTOP).memory}
    assert "lookup store" not in {item.label for item in without.memory}
    assert without.engine.declared_peak == plan(box=LAPTOP).engine.declared_peak - 64 * MIB


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (["draft.nodes=7"], "nodes", 7),
        (["draft.lookup=off"], "lookup", None),
        (["draft.lookup.enabled=off"], "lookup", None),
        (["draft.mtp=off"], "mtp", False),
        (["draft.enabled=on"], "nodes", 15),
    ],
)
def test_a_key_of_the_appliance_wins(flags: list[str], field: str, value: object) -> None:
    found = drafting(*flags)
    assert found is not None and getattr(found, field) == value


def test_a_store_of_one_request_takes_no_memory_and_a_larger_one_more() -> None:
    def stored(*flags: str) -> list[int]:
        return [item.bytes for item in plan(*flags, box=LAPTOP).memory if item.label == "lookup store"]

    assert stored("draft.lookup.scope=request") == []
    assert stored("draft.lookup.size=1 GiB") == [1024 * MIB]


def test_a_section_may_be_off_below_a_profile_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "appliance.yaml").write_text("draft: {lookup: off, nodes: 3}\n")
    found = plan(appliance=tmp_path / "appliance.yaml", box=LAPTOP).engine.draft
    assert found is not None and (found.nodes, found.lookup) == (3, None)


def test_a_model_that_guesses_is_planned_with_its_memory(tmp_path: Path) -> None:
    flags = [
        "draft.model.weights=path:small.gguf",
        "draft.model.in_memory=100 MiB",
    ]
    planned = plan(*flags, box=LAPTOP)
    assert planned.engine.draft is not None and planned.engine.draft.model is not None
    assert planned.engine.draft.model.weights == str(APPLIANCE.parent / "small.gguf")
    assert planned.engine.draft.model.compute == "int4"
    assert [item.bytes for item in planned.memory if item.label == "draft model"] == [100 * MIB]
    off = plan(*flags, "draft.model.enabled=off", box=LAPTOP).engine.draft
    assert off is not None and off.model is None


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["draft.model.weights=path:small.gguf"], "missing-key", "how much memory the model that guesses takes"),
        (["draft.model=on"], "missing-key", "no weights are named"),
        (["draft.lookup.corpus=nowhere.txt"], "not-found", "no text to look up"),
        (["draft.nodes=0"], "out-of-range", "at least 1"),
        (["draft.lookup.scope=everything"], "not-allowed", "not one of the words"),
        (["draft.lookup.size=1 KiB"], "out-of-range", "at least"),
        (["draft=7"], "wrong-type", "expected `on`, `off` or a section"),
    ],
)
def test_what_is_wrong_is_said(flags: list[str], code: str, says: str) -> None:
    with pytest.raises(DocumentError) as raised:
        documents(*flags)
    (problem,) = raised.value.problems
    assert problem.code == code and says in problem.message


def test_nothing_is_asked_of_what_is_off() -> None:
    assert drafting("draft.enabled=off", "draft.lookup.corpus=nowhere.txt", "draft.model=on") is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["draft=off"], "engine.draft: on -> off"),
        (["draft.lookup=off"], "engine.draft.lookup: on -> off"),
        (["draft.lookup.size=1 GiB"], "engine.draft.lookup.size: 64.00 MiB -> 1.00 GiB"),
        (["engine.end_loops=on"], "engine.end_loops: off -> on"),
    ],
)
def test_an_edit_restarts_the_engine_and_says_what_changes(flags: list[str], said: str) -> None:
    change = diff(plan(box=LAPTOP), plan(*flags, box=LAPTOP))
    assert (change.kind, change.restarts) == ("engine", ("engine",))
    assert said in change.sentences


def test_every_profile_guesses_with_what_its_weights_carry() -> None:
    found = plan(*SPARK).engine.draft
    assert found is not None and found.mtp
