"""The bench of peers reads the kernel's and pip's words right, shares memory out, and asks everybody the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.peers.__main__ import groups_of, parse
from bench.peers.environments import NotMeasured, downloaded, last_line, run
from bench.peers.footprint import Footprint, fields, split, split_native
from bench.peers.llama import builds
from bench.peers.model import Model
from bench.peers.quiet import read
from bench.peers.servers import Recipe, Server
from bench.peers.work import Patience, measure, most_repetitions, works
from bench.prompts import TOPICS, long_prompt

MIB = 1024**2


def test_processors_of_others_are_what_is_left_of_the_busy_ticks() -> None:
    before = read("cpu  100 0 50 900 10 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1", at=10.0)
    later = read("cpu  300 20 80 1000 10 5 5 40 0 0\n", at=12.0)
    assert later.processors(before) == pytest.approx(1.5)  # 300 ticks of a hundredth, stolen ones too, in 2 s
    assert later.processors(before, ours=2.0) == pytest.approx(0.5)
    assert later.processors(before, ours=9.0) == 0.0


def test_what_pip_says_it_downloads_is_counted() -> None:
    said = (
        "Downloading torch-2.whl (181.0 MB)\nCollecting x\n  Downloading y-1.whl.metadata (2.5 kB)\n"
        "Using cached z (9 MB)\n"
    )
    assert downloaded(said) == 181_002_500


def test_a_failure_is_quoted_from_its_error_and_not_from_a_notice() -> None:
    assert last_line("ERROR: no version\n\n[notice] a new pip\n") == "ERROR: no version"
    assert last_line("building\nlinking\n") == "linking"
    assert last_line("") == "it said nothing"


def test_a_step_that_fails_or_takes_too_long_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="error: no compiler"):
        run(["sh", "-c", "echo error: no compiler; exit 3"], tmp_path / "a.log", 20)
    with pytest.raises(NotMeasured, match="longer than 0 s"):
        run(["sleep", "60"], tmp_path / "b.log", 0)
    with pytest.raises(NotMeasured, match=r"download more than 0\.0 GB"):
        run(["sh", "-c", "echo 'Downloading x.whl (2.0 MB)'; sleep 60"], tmp_path / "c.log", 20, most_bytes=10**6)


def test_the_kernels_figures_are_bytes() -> None:
    assert fields("7f00-8f00 ---p 0 00:00 0 [rollup]\nRss:     120 kB\nName:\tpython\n") == {"Rss": 120 * 1024}


def test_the_parts_of_both_engines_sum_to_their_peaks() -> None:
    ours = Footprint(peak=500, resident=450, anonymous=400, file=50, all_processes=600)
    probed = {"python": 10, "libraries": 200, "weights": 320, "peak": 330}
    parts = split(ours, probed, {"rows": 60, "caches": 20})
    assert sum(parts.values()) == 500
    assert (parts["torch and other libraries"], parts["workspace, heap"]) == (190, 50)
    model = Model(Path("x.gguf"), "int4", window=10, slots=2, threads=2, bytes_a_token=5)
    assert sum(split_native(ours, model).values()) == 500


def test_as_many_run_beside_tandem_as_memory_holds() -> None:
    peers = [Recipe(name, (), "", needs=3) for name in ("a", "b", "c")]
    assert groups_of(peers, ours=2, room=14) == [peers]
    assert groups_of(peers, ours=2, room=10) == [peers[:2], peers[2:]]
    assert groups_of(peers, ours=2, room=1) == [[peer] for peer in peers]
    assert groups_of([], ours=2, room=10) == [[]]  # tandem alone


def test_two_builds_where_the_processor_has_tiles() -> None:
    assert [build.flags for build in builds(frozenset({"avx512f"}), Path("t.h"))] == [""]
    assert len(builds(frozenset({"avx512f", "amx_int8"}), Path("t.h"))) == 2


def test_peers_are_chosen_by_name() -> None:
    assert parse(["--only", "llama"]).peers == ["llama"]
    assert parse(["--without", "vllm"]).peers == ["llama", "transformers"]
    with pytest.raises(SystemExit):
        parse(["--repetitions", str(most_repetitions() + 1)])


def test_long_prompts_are_long_and_differ_from_their_first_word_on() -> None:
    made = [long_prompt(topic) for topic in TOPICS]
    assert len({prompt[:12] for prompt in made}) == len(TOPICS)
    assert all(700 < len(prompt.split()) < 1000 for prompt in made)
    assert made[0] == long_prompt(TOPICS[0])


def test_everybody_is_asked_the_same_and_nobody_is_always_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str, str, tuple[str, ...]]] = []

    async def note(client: object, server: Server, work: object, prompts: list[str], repetition: int) -> None:
        asked.append((repetition, str(work), server.name, tuple(prompts)))

    monkeypatch.setattr("bench.peers.work.run", note)
    monkeypatch.setattr("bench.peers.work.Patience.wait", _at_once)
    servers = [
        Server("a", "", "m", 0),
        Server("b", "", "m", 0),
        Server("c", "", "m", 0, kinds=frozenset({"edit"})),
    ]
    asyncio.run(measure(servers, works(quick=True), 2, Patience(0), lambda name, why: None))
    alone = [(*each[:2], each[3]) for each in asked if each[2] == "a"]
    assert alone == [(*each[:2], each[3]) for each in asked if each[2] == "b"]
    assert {each[1] for each in asked if each[2] == "c"} == {"edit, 1 at once"}
    assert [each[2] for each in asked[:2]] == ["a", "b"]
    assert [each[2] for each in asked if each[0] == 1][-2:] == ["b", "a"]
    prompts = [prompt for each in alone for prompt in each[2]]
    assert len(set(prompts)) == len(prompts)


async def _at_once(patience: Patience) -> None:
    return None
