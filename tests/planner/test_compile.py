from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from boxes import EXAMPLE, LAPTOP, SPARK, documents, plan

from tandem.contract.plan import Basis, decode_plan, encode_plan
from tandem.planner.compile import compile_plan, plan_paths
from tandem.units import GIB


def test_the_default_plan() -> None:
    made = plan(box=LAPTOP)
    assert [program.name for program in made.programs] == ["director", "gateway", "engine"]
    assert [slot.window for slot in made.engine.slots] == [8192] * 4
    assert (made.engine.compute, made.engine.threads, made.engine.bytes_a_token) == ("int4", 8, 23_040)
    assert made.gateway.model == "smollm2-135m"
    assert made.live.limits.max_body == 8 << 20
    assert made.live.sampling.temperature == 0.2
    assert made.live.ledger_days == 90
    assert made.placements == ()


def test_a_plan_survives_its_file() -> None:
    made = plan(appliance=EXAMPLE)
    assert decode_plan(encode_plan(made)) == made


def test_the_appliance_s_word_beats_the_profile_s() -> None:
    made = plan(
        "engine.compute=float32",
        "engine.threads=3",
        "engine.chunk=64",
        "slots.count=2",
        "slots.side_window=1000",
        "sampling.temperature=0",
        "memory.floor=2 GiB",
        box=LAPTOP,
    )
    engine = made.engine
    assert (engine.compute, engine.threads, engine.chunk, engine.bytes_a_token) == ("float32", 3, 64, 46_080)
    assert [slot.window for slot in engine.slots] == [8192, 1000]
    assert made.gateway.side_window == 1000
    assert (made.live.sampling.temperature, made.live.sampling.top_p) == (0, 0.9)
    assert made.live.floors.floor == 2 * GIB


def test_programs_are_told_where_the_plan_is() -> None:
    made = plan(box=LAPTOP)
    for program in made.programs:
        assert program.command == ("/usr/bin/python3", "-m", "tandem", program.kind, "--run", made.paths.run)
    assert made.programs[0].socket is None
    assert [program.socket for program in made.programs[1:]] == [
        f"{made.paths.run}/gateway.sock",
        f"{made.paths.run}/engine.sock",
    ]
    assert ("OMP_NUM_THREADS", "8") in made.programs[2].environment


def test_the_director_may_stop_last() -> None:
    director, gateway, engine = plan(box=LAPTOP).programs
    assert director.stop_timeout > engine.stop_timeout > gateway.stop_timeout > 30


def test_a_short_state_keeps_its_run_directory_and_a_deep_one_gets_a_short() -> None:
    assert plan_paths(Path("/srv/tandem"), 1000).run == "/srv/tandem/run"
    deep = Path("/home/someone/" + "projects/" * 12 + "tandem")
    paths = plan_paths(deep, 1000)
    assert paths.run.startswith("/tmp/tandem-1000-")
    assert plan_paths(deep, 1000) == paths
    assert plan_paths(deep / "other", 1000).run != paths.run
    assert plan_paths(deep, 1001).run != paths.run


@pytest.mark.parametrize("state", ["/srv/my box/.tandem", "/srv/what?/.tandem", "/srv/[a]/.tandem"])
def test_a_state_that_supervisord_would_misread_has_its_run_directory_elsewhere(state: str) -> None:
    paths = plan_paths(Path(state), 1000)
    assert paths.run.startswith("/tmp/tandem-1000-")
    assert paths.state == state


@pytest.mark.parametrize("length", range(40, 110))
def test_every_socket_has_a_name_the_kernel_takes(length: int) -> None:
    run = plan_paths(Path("/" + "s" * length), 4_294_967_295).run
    for name in ("supervisord.sock.4194304", "shadow-reader.sock", "director.sock"):
        assert len(f"{run}/{name}".encode()) <= 107


def test_the_id_is_of_the_documents_not_of_the_moment() -> None:
    read = documents()
    busy = dataclasses.replace(read)
    assert (
        compile_plan(read, LAPTOP).id
        == compile_plan(busy, msgspec.structs.replace(LAPTOP, memory_available=8 * GIB)).id
    )
    assert plan(box=LAPTOP).id != plan("limits.max_queue=3", box=LAPTOP).id


def test_the_memory_starts_at_the_total_and_ends_at_the_floor() -> None:
    made = plan(appliance=EXAMPLE)
    labels = [item.label for item in made.memory]
    assert labels[0] == "kernel and other programs"
    assert labels[-3:] == ["decider-0", "narrator", "floor"]  # the refused roles take nothing
    left = made.box.memory_total - sum(item.bytes for item in made.memory)
    assert left / GIB == pytest.approx(5.72, abs=0.005)  # 113.04 - 0.17 - 84.65 - 7.5 - 15
    assert {item.basis for item in made.memory} >= {Basis.MEASURED, Basis.ARITHMETIC, Basis.ESTIMATE}


def test_roles_are_processes_that_come_after_the_engine() -> None:
    made = plan(appliance=EXAMPLE)
    names = ["decider-0", "narrator", "decider-1", "shadow-reader"]
    assert [role.name for role in made.roles] == names
    assert [program.name for program in made.programs] == ["director", "gateway", "engine", *names]
    second = made.programs[5]
    assert (second.kind, second.command[1:]) == (
        "decider",
        ("-m", "tandem", "role", "decider-1", "--run", made.paths.run),
    )
    assert second.socket == f"{made.paths.run}/decider-1.sock"
    assert second.stop_timeout == 2, "memory is wanted now"
    assert ("OMP_NUM_THREADS", str(made.roles[2].threads)) in second.environment
    assert Path(made.roles[2].weights) == EXAMPLE.parent / "models/laya-english"


def test_an_open_door_is_said() -> None:
    assert any("without keys" in warning for warning in plan("listen.host=0.0.0.0", box=LAPTOP).warnings)
    assert not any("without keys" in warning for warning in plan(box=LAPTOP).warnings)


def test_missing_weights_are_said_and_where_they_belong() -> None:
    read = documents()
    absent = dataclasses.replace(read, weights=dataclasses.replace(read.weights, present=False))
    assert "the weights are not here yet: run `tandem pull`" in compile_plan(absent, LAPTOP).warnings
    owned = dataclasses.replace(absent.weights, fetchable=False)
    warnings = compile_plan(dataclasses.replace(absent, weights=owned), LAPTOP).warnings
    assert any(str(owned.path) in warning for warning in warnings)


def test_planning_needs_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from tandem.config import load\n"
        "from tandem.planner.compile import compile_plan; from tandem.contract.plan import Box\n"
        f"d = load(Path({str(EXAMPLE)!r}), (), {{}}); b = d.residency.box\n"
        "compile_plan(d, Box('x', b.total, b.available, b.cpus, True))\n"
        "assert not {'torch', 'transformers', 'litestar', 'httpx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_spark_s_static_plan() -> None:
    made = plan(*SPARK)
    assert made.engine.bytes_a_token == 106_752
    side = next(item for item in made.memory if item.label == "side slot 1")
    assert f"{side.bytes / GIB:.1f}" == "8.0"
    with_graphs = next(item for item in plan(*SPARK, "slots.graphs=on").memory if item.label == "side slot 1")
    assert f"{with_graphs.bytes / GIB:.1f}" == "14.0"
