from __future__ import annotations

import pytest
from boxes import SPARK, box_of, documents
from hypothesis import given
from hypothesis import strategies as st

from tandem.contract.plan import CachesPlan
from tandem.planner.caching import plan_caches
from tandem.planner.serving import resolve
from tandem.planner.waterfall import EngineMemory, engine_memory
from tandem.units import GIB, MIB


def memory(*flags: str) -> EngineMemory:
    read = documents(*flags)
    return engine_memory(read.profile, resolve(read, box_of(read)), read.residency.engines.get(read.profile_name))


@given(
    st.sampled_from(["smollm2-135m", "qwen3.8-27b", "flash-next"]),
    st.sampled_from(["laptop", "dgx-spark"]),
    st.integers(1, 16),
    st.integers(1, 8192),
    st.booleans(),
    st.booleans(),
)
def test_the_parts_add_up_to_the_peak(
    profile: str, residency: str, count: int, side: int, graphs: bool, pool: bool
) -> None:
    found = memory(
        f"profile={profile}",
        f"residency={residency}",
        f"slots.count={count}",
        f"slots.side_window={side}",
        f"slots.graphs={'on' if graphs else 'off'}",
        f"memory.kv_pool={'on' if pool else 'off'}",
    )
    assert sum(item.bytes for item in found.items) == found.peak
    assert found.loaded <= found.peak
    assert all(item.bytes >= 0 for item in found.items)


def test_side_slots_are_added_to_what_the_box_declares() -> None:
    alone, two = memory(*SPARK, "slots.count=1"), memory(*SPARK, "slots.count=2", "slots.side_constant=1.134 GiB")
    assert alone.peak == 77 * GIB
    assert two.peak / GIB == pytest.approx(84.65, abs=0.005)
    assert two.loaded / GIB == pytest.approx(76.40, abs=0.005)


def test_the_pool_takes_the_window_out_of_the_peak_and_the_caches_keep_their_room() -> None:
    static, pool = memory(*SPARK, "slots.count=1"), memory(*SPARK, "slots.count=1", "memory.kv_pool=on")
    assert (static.peak - pool.peak) / GIB == pytest.approx(26.0625)

    def caches(found: EngineMemory) -> int:
        return next(item.bytes for item in found.items if item.label == "caches")

    assert caches(static) == caches(pool)


def test_the_appliance_s_figure_is_for_side_slots_only() -> None:
    usual, measured = memory("slots.count=2"), memory("slots.count=2", "slots.side_constant=1 GiB")
    constant = documents().profile.slot.plain.size
    assert measured.peak - usual.peak == GIB - constant


def test_a_box_that_declares_nothing_gets_the_parts_and_what_the_appliance_says_of_caches() -> None:
    usual, told, none = (memory(*said) for said in ((), ("caches.memory=1 GiB",), ("caches.memory=0 B",)))
    assert (usual.caches, told.caches, none.caches) == (256 * MIB, GIB, 0)
    assert usual.loaded == usual.peak == none.peak + 256 * MIB
    assert "caches" not in [item.label for item in none.items]


def test_a_declared_peak_says_what_caches_have() -> None:
    read = documents(*SPARK)
    found = memory(*SPARK)
    assert found.caches == next(item.bytes for item in found.items if item.label == "caches")
    assert plan_caches(read, found.caches, 2).memory == found.caches
    less = documents(*SPARK, "caches.memory=1 GiB", "caches.disk=off")
    assert plan_caches(less, found.caches, 2) == CachesPlan(GIB, GIB // 8, None)


def test_a_declared_peak_below_the_parts_is_seen() -> None:
    read = documents(*SPARK)
    seen = read.residency.engines["qwen3.8-27b"]
    low = seen.model_copy(update={"peak": seen.peak.model_copy(update={"size": 20 * GIB})})
    found = engine_memory(read.profile, resolve(read, box_of(read)), low)
    assert found.shortfall > 0
    assert engine_memory(read.profile, resolve(read, box_of(read)), seen).shortfall == 0
