from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest
from boxes import EXAMPLE, LAPTOP, SPARK, box_of, documents, plan
from hypothesis import given
from hypothesis import strategies as st

from tandem.config.documents import Profile
from tandem.errors import DocumentError, DoesNotFit, ExitStatus, Problem
from tandem.planner.checks import COMPUTES, check_fit, need_of
from tandem.planner.serving import resolve
from tandem.planner.waterfall import BESIDE
from tandem.units import GIB


def refusal(*flags: str, available: int | None = None) -> Problem:
    box = box_of(documents(*flags))
    if available is not None:
        box = type(box)(box.name, box.memory_total, available, box.cpus, declared=True)
    with pytest.raises(DoesNotFit) as caught:
        plan(*flags, box=box)
    assert caught.value.exit_status is ExitStatus.DOES_NOT_FIT
    assert len(caught.value.files) >= 3
    (problem,) = caught.value.problems
    return problem


def test_four_full_windows_do_not_fit_a_spark() -> None:
    problem = refusal(*SPARK, "slots.count=4", "slots.side_window=262144")
    assert problem.code == "does-not-fit"
    assert problem.message.startswith("4 slots of 262,144 tokens need 104.25 GiB of KV before the first request")
    assert problem.place is not None
    assert problem.place.path == "slots.count"


@pytest.mark.parametrize(
    "flags",
    [
        (*SPARK, "slots.count=4", "slots.side_window=262144"),
        (*SPARK, "slots.count=4", "slots.side_window=262144", "slots.graphs=on"),
        (*SPARK, "slots.count=4", "slots.graphs=on"),
        (*SPARK, "slots.count=16"),
        ("profile=flash-next", "residency=dgx-spark", "slots.count=16", "memory.kv_pool=off"),
    ],
)
def test_the_fixes_it_offers_do_fit(flags: tuple[str, ...]) -> None:
    """The help is taken at its word: each alternative, written as it stands, makes the plan."""
    help = refusal(*flags).help
    assert help is not None
    for fix in help.split("; or "):
        changes = [change.removeprefix("slots.").removeprefix("memory.") for change in re.findall(r"`([^`]+)`", fix)]
        homes = {"kv_pool": "memory", "floor": "memory"}
        said = [(key, value.strip()) for key, value in (change.split(":") for change in changes)]
        plan(*flags, *(f"{homes.get(key, 'slots')}.{key}={value}" for key, value in said))


def test_the_sum_in_the_note_is_right() -> None:
    (note,) = refusal(*SPARK, "slots.count=4", "slots.side_window=262144").notes
    parts, _, rest = note.partition(" = ")
    total = sum(float(part.rsplit(" ", 1)[1]) for part in parts.split(" + "))
    assert total == pytest.approx(float(rest.split(" ")[0]), abs=0.05)


def test_a_floor_that_is_too_high_is_the_key_to_point_at() -> None:
    problem = refusal("memory.floor=9.5 GiB")
    assert problem.place is not None
    assert problem.place.path == "memory.floor"
    assert problem.help == "`memory.floor: 1 GiB`, as `laptop` has it, would do"


def test_it_points_at_what_somebody_wrote_and_the_fix_would_change() -> None:
    problem = refusal("caches.memory=90 GiB", "slots.side_window=4096")
    assert problem.place is not None
    assert problem.place.path == "caches.memory"
    assert problem.help is not None and problem.help.startswith("`caches.memory: 0 B` needs")


def test_slots_that_would_not_help_are_not_pointed_at() -> None:
    problem = refusal("slots.side_window=4096", available=GIB)
    assert problem.place is None or problem.place.path == "profile"


def test_a_box_too_small_for_one_slot_is_told_by_how_much() -> None:
    problem = refusal(available=GIB)
    assert problem.help is not None
    assert problem.help.startswith("even one slot lacks 0.95 GiB here")
    assert "lower the 1 GiB that stay free (`memory.floor`)" in problem.help


def test_what_our_own_processes_hold_counts_as_available() -> None:
    """A reload plans while the engine it would replace holds its memory."""
    busy = type(LAPTOP)("laptop", 16 * GIB, GIB, 8, declared=False)
    with pytest.raises(DoesNotFit):
        plan(box=busy)
    plan(box=busy, held=4 * GIB)


def test_with_the_pool_one_full_window_must_still_fit() -> None:
    read = documents("profile=flash-next", "residency=dgx-spark")
    need = need_of(read.profile, resolve(read, box_of(read)), read.residency.engines["flash-next"], 0, 0)
    assert need.reservation / GIB == pytest.approx(7.3125, abs=0.02)
    assert need.total == BESIDE.bytes + need.memory.peak + need.reservation


@given(st.integers(0, 40 * GIB), st.integers(0, 20 * GIB), st.integers(1, 16), st.booleans())
def test_it_fits_exactly_when_the_sum_does(available: int, floor: int, count: int, pool: bool) -> None:
    read = documents(f"slots.count={count}", f"memory.kv_pool={'on' if pool else 'off'}")
    box = type(LAPTOP)("laptop", 64 * GIB, available, 8, declared=False)
    serving = resolve(read, box)
    need = need_of(read.profile, serving, None, available, floor)
    if need.total + floor <= available:
        assert check_fit(read, box, serving, floor, 0) == need.memory
    else:
        with pytest.raises(DoesNotFit):
            check_fit(read, box, serving, floor, 0)


def test_a_declared_peak_below_its_parts_is_the_residency_document_s_fault() -> None:
    read = documents(*SPARK)
    seen = read.residency.engines["qwen3.8-27b"]
    low = seen.model_copy(update={"peak": seen.peak.model_copy(update={"size": 20 * GIB})})
    residency = read.residency.model_copy(update={"engines": {"qwen3.8-27b": low}})
    with pytest.raises(DoesNotFit) as caught:
        check_fit(replace(read, residency=residency), box_of(read), resolve(read, box_of(read)), GIB, 0)
    (problem,) = caught.value.problems
    assert problem.code == "declared-peak"
    assert problem.place is not None
    assert problem.place.path == "residency"


def test_a_format_that_its_device_does_not_multiply_is_refused_on_a_live_machine() -> None:
    """The blocks of a GGUF file are multiplied on a CPU only."""
    with pytest.raises(DocumentError) as caught:
        plan("engine.device=cuda", box=LAPTOP)
    (problem,) = caught.value.problems
    assert problem.code == "not-yet"
    assert problem.message == "no engine of this version computes the `llama` family on `cuda` in `int4`"
    assert "`bfloat16`, `fp8`, `mxfp8`, `nvfp4`" in problem.notes[0]


def test_a_format_without_code_is_refused_here_and_planned_elsewhere() -> None:
    box = type(LAPTOP)("this machine", 200 * GIB, 150 * GIB, 20, declared=False)
    with pytest.raises(DocumentError) as caught:
        plan(*SPARK, "engine.device=cpu", box=box)
    (problem,) = caught.value.problems
    assert problem.message == "no engine of this version computes the `qwen35` family on `cpu` in `nvfp4`"
    assert problem.notes == ("it computes the `qwen35` family on `cpu` in `bfloat16`, `float32`, `int8`",)
    assert any(problem.message in warning for warning in plan(*SPARK, "engine.device=cpu").warnings)


def test_the_27b_profile_is_served_on_the_device_it_is_written_for() -> None:
    box = type(LAPTOP)("this machine", 200 * GIB, 150 * GIB, 20, declared=False)
    assert not any("not served" in warning for warning in plan(*SPARK, box=box).warnings)


def test_what_is_served_is_what_the_model_code_has() -> None:
    from tandem.model.families.directory import _BUILDERS
    from tandem.model.families.header import FAMILIES
    from tandem.model.loading import _PACKED
    from tandem.model.weights.quant import Compute

    families = Profile.model_fields["family"].annotation
    assert all(set(served) == set(get_args(families)) == set(_BUILDERS) for served in COMPUTES.values())
    for family in _BUILDERS:
        assert set(COMPUTES["cpu"][family]) == set(Compute) - (set() if family in FAMILIES else {Compute.INT4})
    assert all(set(served) == {Compute.BFLOAT16, *_PACKED} for served in COMPUTES["cuda"].values())


def test_the_example_s_refusals_to_the_hundredth() -> None:
    found = {placement.role: placement for placement in plan(appliance=EXAMPLE).placements}
    assert [role for role, placement in found.items() if placement.admitted] == ["decider-0", "narrator"]
    assert found["decider-1"].sentence == (
        "not loaded: kept free for requests: 28.97 available, 8.25 still to grow, 3 claimed, 17.72 would be left, "
        "15 is the floor and 4 its margin"
    )
    assert found["shadow-reader"].sentence == (
        "not loaded: kept free for requests: 28.97 available, 8.25 still to grow, 6.5 claimed, 14.22 would be left, "
        "15 is the floor"
    )
