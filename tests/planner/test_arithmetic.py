"""The figures of the design, row by row."""

from __future__ import annotations

import pytest
from boxes import documents

from tandem.config.documents import Kv
from tandem.planner.arithmetic import (
    PAGE,
    committed,
    declared_peak,
    element_bytes,
    kv_bytes_a_token,
    largest_reservation,
    slot_bytes,
)
from tandem.units import GIB


def kv(profile: str) -> Kv:
    return documents(f"profile={profile}").profile.kv


@pytest.mark.parametrize(
    ("profile", "bytes_a_token"), [("qwen3.8-27b", 106_752), ("flash-next", 29_952), ("smollm2-135m", 23_040)]
)
def test_kv_bytes_a_token(profile: str, bytes_a_token: int) -> None:
    assert kv_bytes_a_token(kv(profile)) == bytes_a_token


def test_the_parts_of_a_token() -> None:
    parts = kv("qwen3.8-27b")
    attention = parts.model_copy(update={"drafters": (), "rotary": 0})
    assert kv_bytes_a_token(attention) == 65_536
    assert parts.drafters == (20_480, 20_480)
    assert parts.rotary == 256


def test_a_flash_next_window() -> None:
    assert 262_144 * kv_bytes_a_token(kv("flash-next")) / GIB == 7.3125


def test_float32_doubles_the_rows() -> None:
    parts = kv("smollm2-135m")
    assert element_bytes(parts, "float32") == 4
    assert [element_bytes(parts, compute) for compute in ("bfloat16", "int8", "int4")] == [2, 2, 2]
    assert kv_bytes_a_token(parts, element_bytes(parts, "float32")) == 46_080
    assert element_bytes(parts.model_copy(update={"element": 1}), "float32") == 1


@pytest.mark.parametrize(
    ("window", "constant", "said"),
    [(65_536, 7.5, "14.0"), (65_536, 1.5, "8.0"), (8_192, 7.5, "8.3"), (262_144, 0, "26.1")],
)
def test_what_a_side_slot_takes(window: int, constant: float, said: str) -> None:
    size = slot_bytes(window, 106_752, round(constant * GIB), pool=False)
    assert f"{size / GIB:.1f}" == said


def test_four_full_windows_without_the_pool() -> None:
    assert 4 * slot_bytes(262_144, 106_752, 0, pool=False) / GIB == 104.25


def test_three_short_side_slots_are_about_25() -> None:
    assert 3 * slot_bytes(8_192, 106_752, round(7.5 * GIB), pool=False) / GIB == pytest.approx(25, abs=0.1)


def test_with_the_pool_a_slot_takes_its_constant() -> None:
    assert slot_bytes(262_144, 106_752, 3, pool=True) == 3


def test_the_peak_is_what_is_configured_and_what_is_fixed() -> None:
    assert declared_peak(77 * GIB, [round(7.65 * GIB)], 0, pool=False) / GIB == pytest.approx(84.65)


def test_with_the_pool_slot_0_s_window_is_in_no_peak() -> None:
    window = slot_bytes(262_144, 106_752, 0, pool=False)
    assert window / GIB == pytest.approx(26, abs=0.1)
    assert declared_peak(77 * GIB, [], window, pool=True) == 77 * GIB - window


def test_rows_are_committed_in_whole_pages() -> None:
    assert committed(0, 106_752) == 0
    assert committed(1, 106_752) == PAGE == 2 << 20
    assert committed(19, 106_752) == PAGE
    assert committed(20, 106_752) == 2 * PAGE


def test_the_largest_request_fills_the_window_and_the_margin() -> None:
    assert largest_reservation(1000, 256, PAGE, 7) == 7 + 1256 * PAGE
