"""The plot is made of the data alone: every panel, line and label is there, and nothing leaves its panel."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.growth.curves import Axis, Curve, Part, Record, decode, line
from bench.growth.plot import COLUMNS, PANEL, Scale, draw, scale_of, told_below, words

SVG = "{http://www.w3.org/2000/svg}"
MEASURED = Path(__file__).parents[2] / "docs" / "measured" / "growth.json"


def curve(title: str, lines: int = 2, is_log: bool = True, bound: float | None = None) -> Curve:
    places = (1, 10, 100, 10_000)
    made = [line(f"line <{n}> & more", {x: [n + x * 0.5, n + x * 0.7] for x in places}) for n in range(1, lines + 1)]
    return Curve(title, Axis("streams", is_log), Axis("µs a token", is_log), tuple(made), bound)


def part(*curves: Curve, commit: str = "abc", is_quick: bool = False) -> Part:
    return Part({"cpu": "a good one", "cpus": 2, "commit": commit}, is_quick, 1.0, curves)


def drawn(*curves: Curve) -> str:
    return draw(Record({"step": part(*curves)}))


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_every_curve_has_a_panel_with_its_title_axes_and_lines() -> None:
    svg = drawn(curve("First", 1), curve("Second", 7), curve("Third", 3, is_log=False))
    said = texts(svg)
    assert [said.count(title) for title in ("First", "Second", "Third")] == [1, 1, 1]
    assert said.count("streams") == said.count("µs a token") == 3
    assert [said.count(f"line <{n}> & more") for n in (1, 3, 4, 7)] == [3, 2, 1, 1]
    assert len(re.findall(r'<path class="band', svg)) == 1 + 7 + 3


def test_a_bound_is_drawn_inside_its_panel_also_where_no_line_comes_near() -> None:
    plain, bound = curve("Cost", is_log=False), curve("Cost", is_log=False, bound=20_000.0)
    assert "bound 20k" in texts(drawn(bound)) and "bound" not in " ".join(texts(drawn(plain)))


def test_nothing_leaves_its_panel() -> None:
    curves = [curve("Log", 7), curve("Linear", 2, is_log=False), curve("Bound", 1, bound=1e6)]
    root = ElementTree.fromstring(drawn(*curves))
    assert int(root.get("width", 0)) == COLUMNS * PANEL[0]
    for panel in root.findall(f"{SVG}g"):
        for dot in panel.iter(f"{SVG}circle"):
            x, y = float(dot.get("cx", -1)), float(dot.get("cy", -1))
            assert 0 < x < PANEL[0] and 0 < y < PANEL[1]


def test_it_is_readable_on_light_and_on_dark_ground() -> None:
    svg = drawn(curve("One"))
    assert "prefers-color-scheme:dark" in svg and svg.count(".ground{fill:") == 2


def test_what_it_was_measured_on_stands_below_and_what_was_only_tried() -> None:
    on = "a good one, 2 CPUs, commit abc"
    assert told_below(Record({"step": part(curve("A")), "turn": part(curve("B"))})) == [on]
    mixed = Record({"step": part(curve("A"), commit="xyz"), "turn": part(curve("B"), is_quick=True)})
    told = ["step: a good one, 2 CPUs, commit xyz", f"turn: {on}", "only tried, a few samples: turn"]
    assert told_below(mixed) == told
    assert texts(draw(mixed))[-3:] == told


@given(
    st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=8),
    st.booleans(),
    st.sampled_from([(58.0, 466.0), (256.0, 34.0)]),
)
def test_a_scale_holds_its_values_in_order_and_its_ticks_inside(
    values: list[float], is_log: bool, ends: tuple[float, float]
) -> None:
    scale = scale_of(values, Axis("x", is_log), *ends)
    low, high = min(ends), max(ends)
    assert all(low <= scale.at(value) <= high for value in (*values, *scale.ticks))
    up = scale.end > scale.start
    for before, after in pairwise(sorted(values)):
        assert scale.at(before) <= scale.at(after) if up else scale.at(before) >= scale.at(after)
    assert 1 <= len(scale.ticks) <= 14


def test_a_scale_of_one_value_has_room_around_it() -> None:
    assert scale_of([5.0], Axis("x", True), 0.0, 100.0).at(5.0) == pytest.approx(50, abs=10)
    assert scale_of([0.0], Axis("x"), 0.0, 100.0) == Scale(0.0, 1.06, 0.0, 100.0, False)


@pytest.mark.parametrize(
    ("value", "said"), [(0.5, "0.5"), (20, "20"), (1000, "1,000"), (10_000, "10k"), (0.02, "0.02"), (1.5, "1.5")]
)
def test_ticks_are_written_as_people_write_them(value: float, said: str) -> None:
    assert words(value) == said


def test_the_plot_that_is_shown_is_the_one_of_the_figures_that_are_kept() -> None:
    assert MEASURED.with_suffix(".svg").read_text(encoding="utf-8") == draw(decode(MEASURED.read_bytes()))
