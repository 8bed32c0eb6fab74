"""Curves as data: what becomes of samples, and what a file keeps when a part is measured again."""

from __future__ import annotations

import pytest

from bench.growth.__main__ import PARTS, parse, table
from bench.growth.curves import Axis, Curve, Line, Part, Point, Record, decode, encode, line, point
from bench.growth.queue import CASES, LEVEL, WIDE
from bench.growth.ttft import LENGTHS, text_of


def curve(title: str = "A step", *lines: Line) -> Curve:
    return Curve(title, Axis("rows", is_log=True), Axis("ms"), lines or (line("one", {1: [2.0], 4: [3.0]}),))


def part(*curves: Curve) -> Part:
    return Part({"cpu": "a good one", "cpus": 2}, False, 1.5, curves)


def test_a_point_is_the_median_between_the_outer_tenths() -> None:
    assert point(4, [*range(1, 21), 1000]) == Point(4, 11, 3, 19, 21)
    assert point(1, [7.0]) == Point(1, 7.0, 7.0, 7.0, 1)


def test_a_line_is_scaled_and_leaves_out_where_nothing_was_measured() -> None:
    assert line("one", {1: [0.25, 0.5, 0.75], 2: []}, scale=1e3).points == (Point(1, 500, 250, 750, 3),)


def test_what_is_written_is_read_again_with_four_digits() -> None:
    record = Record({"step": part(curve("A step", line("one", {1: [1 / 3]})))})
    (read,) = decode(encode(record)).curves
    assert read.lines[0].points[0].median == 0.3333
    assert (read.title, read.x, read.bound) == ("A step", Axis("rows", is_log=True), None)
    assert decode(encode(record)).parts["step"].machine == {"cpu": "a good one", "cpus": 2}


def test_a_part_that_is_measured_again_replaces_itself_alone_and_the_order_stays() -> None:
    before = Record({"step": part(curve("old")), "turn": part(curve("kept"))})
    after = before.with_parts({"step": part(curve("new")), "queue": part(curve("between"))}, ("step", "queue", "turn"))
    assert [each.title for each in after.curves] == ["new", "between", "kept"]


def test_the_table_names_every_line_and_place() -> None:
    said = table(Record({"step": part(curve("A step", line("one", {1: [2.0], 4: [0.12345]})))}))
    assert said.splitlines()[1:] == ["A step (ms, over rows)", f"  {'one':36} 1: 2  4: 0.123"]


def test_parts_are_chosen_by_name_one_or_several() -> None:
    assert parse(["--only", "step", "--only", "turn", "--quick"]).only == ["step", "turn"]
    with pytest.raises(SystemExit):
        parse(["--only", "nothing"])
    assert tuple(PARTS) == ("step", "ttft", "memory", "gateway", "queue", "turn")


def test_prompts_grow_as_they_are_called_and_no_two_begin_the_same() -> None:
    sizes = [len(text_of(length, 1)) for length in LENGTHS]
    assert sizes == [len(text_of(length, 40)) for length in LENGTHS]
    assert all(1.5 < size / length < 2.2 for size, length in zip(sizes[2:], LENGTHS[2:], strict=True))
    assert text_of(LENGTHS[0], 1)[:12] != text_of(LENGTHS[0], 2)[:12]


def test_a_state_of_the_queue_has_a_slot_for_those_that_run_at_least() -> None:
    assert all(WIDE in case.windows and len(case.windows) == len(LEVEL) for case in CASES)
    assert len({case.name for case in CASES}) == len(CASES)
