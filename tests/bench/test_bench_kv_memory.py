"""When a process counts as holding what its rows take, and how that is told."""

from __future__ import annotations

from bench.kv_memory import Moment, memory_table, strays
from tandem.units import MIB


def moments(*grown: tuple[int, int, bool]) -> list[Moment]:
    """(committed, RSS growth, at rest) in MiB, after a start."""
    rows = [(0, 0, True), *grown]
    return [
        Moment(f"{number}", 720 * MIB, committed * MIB, (400 + rss) * MIB, rest)
        for number, (committed, rss, rest) in enumerate(rows)
    ]


def test_within_one_percent_and_a_page_a_tensor_is_what_is_committed() -> None:
    assert strays(moments((500, 509, True), (500, 491, True)), page=4 * MIB) == []
    assert strays(moments((500, 510, True), (0, 5, True)), page=4 * MIB) == ["1", "2"]


def test_passes_in_progress_hold_more_and_do_not_count() -> None:
    assert strays(moments((500, 700, False)), page=0) == []


def test_the_table_tells_growth_since_the_start() -> None:
    table = memory_table(moments((100, 103, True)), moments((0, 90, True)))
    assert table.splitlines()[-1].split() == ["1", "720.0", "100.0", "+103.0", "+3.0", "+90.0"]
