"""What the table of the peers says, and whom it says is ahead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from bench.peers.footprint import Footprint
from bench.peers.verdict import PLAIN, SHIPPED, Line, lines, memory_lines, parts_table, remarks, table
from bench.peers.work import Sample
from tandem.units import MIB

ONE = Sample(
    server=PLAIN,
    kind="prose",
    clients=1,
    repetition=0,
    total=2.0,
    writing=1.27,
    tokens=128,
    wanted=128,
    first_tokens=(0.1,),
    prompt_tokens=52,
    cached_tokens=0,
    others=0.0,
)
PEER = replace(ONE, server="peer", total=4.0, first_tokens=(0.05,))


def line(name: str, samples: Iterable[Sample]) -> Line:
    return next(each for each in lines([list(samples)]) if each.name == name)


def test_a_ratio_is_ours_over_theirs_and_marks_who_is_ahead() -> None:
    rate, first = line("1 at once, prose", [ONE, PEER]), line("first text, short prompt", [ONE, PEER])
    assert (rate.values, rate.ratios) == ({PLAIN: 64.0, "peer": 32.0}, {"peer": 2.0})
    assert first.ratios == {"peer": 2.0}
    assert (rate.is_behind("peer"), first.is_behind("peer")) == (False, True)


def test_a_ratio_compares_runs_of_the_same_repetition() -> None:
    # The machine slows down to a half for the second repetition, which the peer alone lived to see twice.
    slow = [replace(sample, repetition=number, total=2 * sample.total) for sample in (ONE, PEER) for number in (1,)]
    lonely = replace(PEER, repetition=2, total=40.0)
    assert line("1 at once, prose", [ONE, PEER, *slow, lonely]).ratios == {"peer": 2.0}


def test_servers_of_different_groups_are_held_against_their_own_neighbours() -> None:
    slow = [replace(ONE, total=20.0), replace(PEER, server="other", total=10.0)]
    rate = next(each for each in lines([[ONE, PEER], slow]) if each.name == "1 at once, prose")
    assert rate.ratios == {"peer": 2.0, "other": 0.5}


def test_an_answer_that_ended_early_does_not_count_and_is_told() -> None:
    short = replace(PEER, tokens=40)
    assert "peer" not in line("1 at once, prose", [ONE, short]).values
    assert "1 of 2 runs do not count: an answer ended before its last token (peer)" in remarks([ONE, short], 0.1)


def test_the_edited_file_holds_guesses_against_the_peers() -> None:
    edits = [replace(sample, kind="edit") for sample in (ONE, PEER)]
    guessing = replace(edits[0], server=SHIPPED, total=1.0)
    found = line("a file edited, guesses on", [*edits, guessing])
    assert found.ratios == {"peer": 4.0}
    assert found.values[PLAIN] == 64.0


def test_from_the_first_text_on_the_first_tokens_do_not_count() -> None:
    edits = [replace(ONE, kind="edit", server=name) for name in (SHIPPED, "peer")]
    assert line("the same from its first text on", edits).values["peer"] == pytest.approx(100.0)


def test_others_and_prompts_of_another_length_are_told() -> None:
    busy = replace(PEER, others=0.7, prompt_tokens=51)
    said = remarks([ONE, busy], 0.15)
    assert "1 of 2 runs had others beside them, 0.70 processors at most" in said
    assert "prose: prompts are not equally many tokens: peer 51, tandem, no guesses 52" in said
    assert remarks([ONE, PEER], 0.15) == ["found in caches, of what the prompts hold: peer 0%, tandem, no guesses 0%"]


def test_the_table_marks_what_a_peer_does_better() -> None:
    names = (PLAIN, SHIPPED, "peer", "absent")
    text = table([line("1 at once, prose", [ONE, PEER]), line("first text, short prompt", [ONE, PEER])], names)
    rows = [row.split("  ") for row in text.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[1] == ["1 at once, prose", "tok/s", "64.0", "-", "32.0 (2.00)", "-"]
    assert cells[2] == ["first text, short prompt", "ms", "100", "-", "! 50.0 (2.00)", "-"]


def test_memory_is_compared_at_its_highest() -> None:
    ours, theirs = (Footprint(peak, peak // 2, 0, 0, peak) for peak in (300 * MIB, 200 * MIB))
    most = memory_lines({PLAIN: ours, "peer": theirs})[0]
    assert most.values == {PLAIN: 300.0, "peer": 200.0}
    assert most.ratios == {"peer": 1.5} and most.is_behind("peer")


def test_the_parts_of_a_peak_sum_to_it() -> None:
    said = parts_table({PLAIN: {"Python": 10 * MIB, "rows": 30 * MIB}}).splitlines()
    assert said[0] == "tandem, no guesses: 40.0 MiB at most, of which"
    assert said[2].split() == ["rows", "30.0", "MiB"]
