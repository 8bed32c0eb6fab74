"""`tandem role NAME` as supervisord starts it: a process of its own, asked over its socket."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from roles_appliance import make_role_plan

from tandem.conductor.verdicts import read_verdicts
from tandem.contract.channel import ask_health, connect
from tandem.contract.messages import AskDecider, Decided, Narrate, Narrated, Observe, Question, QuestionKind
from tandem.contract.plan import encode_plan
from tandem.errors import ExitStatus

pytestmark = [pytest.mark.wire, pytest.mark.slow, pytest.mark.timeout(180)]
ROUTE = Question("route", QuestionKind.CHOICE, "Which tier?", (("fast", "short"), ("deep", "long"), ("tools", "")))


@pytest.fixture
def run() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="role-") as folder:
        yield Path(folder)


@contextmanager
def role_process(run: Path, weights: Path, **role: Any) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Until it is ready; told to end afterwards."""
    plan = make_role_plan(run, weights=str(weights), **role)
    (run / "plan.json").write_bytes(encode_plan(plan))
    name = plan.roles[0].name
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"}
    command = [sys.executable, "-m", "tandem", "role", name, "--run", str(run)]
    with (run / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=environment)
    try:
        end = time.monotonic() + 120
        while not is_ready(run / f"{name}.sock"):
            assert process.poll() is None and time.monotonic() < end, (run / "log").read_text()
            time.sleep(0.05)
        yield run / f"{name}.sock", process
    finally:
        process.kill()
        process.wait()


def is_ready(socket: Path) -> bool:
    try:
        return asyncio.run(ask_health(socket, 10.0)).ready
    except OSError:
        return False


def say(socket: Path, message: Any) -> Any:
    async def talk() -> Any:
        channel = await connect(socket)
        try:
            return await channel.ask(message, 60.0)
        finally:
            channel.close()

    return asyncio.run(talk())


def test_a_laya_checkpoint_answers_what_its_weights_say(run: Path) -> None:
    pytest.importorskip("laya", reason="the extra `laya` is not installed")
    from laya_checkpoint import write
    from laya_oracle import Oracle

    folder = run / "checkpoint"
    write(folder)
    with role_process(run, folder, backend="laya") as (socket, process):
        state = {"user": "please fix parser.py"}
        said = say(socket, AskDecider("a", state, (ROUTE,), 30.0))
        assert isinstance(said, Decided) and said.model == "checkpoint"
        expected, act = Oracle(folder).answer(state, ROUTE)
        assert [p for _, p in said.answers[0].probabilities] == pytest.approx(expected, abs=1e-3)
        assert said.answers[0].act == pytest.approx(act, abs=1e-3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == ExitStatus.GOOD
    assert "please fix" not in (run / "log").read_text()


def test_the_default_model_narrates_and_reads_in_the_shadow(run: Path, weights: Path) -> None:
    with role_process(run, weights, name="narrator", kind="narrator", backend="lm") as (socket, _):
        said = say(socket, Narrate("n", "Name three rivers.", "Reading: 1 of 2 prompt tokens", "", 30.0))
        assert isinstance(said, Narrated) and said.line
    with role_process(run, weights, name="shadow-reader", kind="shadow-reader") as (socket, _):
        asyncio.run(tell(socket, Observe("r1", "SECRET WORDS", (ROUTE,))))
        end = time.monotonic() + 60
        while not (verdicts := read_verdicts(run)):
            assert time.monotonic() < end
            time.sleep(0.05)
    assert [(verdict.request, verdict.by) for verdict in verdicts] == [("r1", "shadow-reader")]
    assert "SECRET" not in "".join(path.read_text() for path in (run / "log", run / "verdicts.jsonl"))


async def tell(socket: Path, message: Any) -> None:
    channel = await connect(socket)
    channel.send(message)
    channel.close()
    await channel.wait_closed()


def test_a_model_that_is_not_there_ends_the_process_with_a_sentence(run: Path) -> None:
    with pytest.raises(AssertionError, match="no Laya checkpoint"), role_process(run, run, backend="laya"):
        pass
