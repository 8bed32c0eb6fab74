"""`python -m bench.startup`: from `make up` to the first token of a chat, step by step, with everything installed.

Each start is what a person types, in a state folder of the bench's own; the first one, which packs the weights, is told
apart from the others. Steps come from what the processes themselves log, the ends from a client that asks `/readyz` and
then chats. Processor seconds say what a busy machine hides: on a quiet one they are most of the time there is.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from bench.appliance import LONGEST_START, LONGEST_STOP, DidNotStart, free_port, tail
from bench.machine import PROJECT, facts
from bench.record import RESULTS, write_record
from bench.turns import progress

WANTED: Final = 5.0  # seconds to the first token
LOOK_AGAIN: Final = 0.02  # seconds between questions to a gateway that is not there yet
PROMPT: Final = "Say hello."
STEPS: Final = (
    ("supervisord runs", "supervisord.log", "supervisord started"),
    ("director starts", "supervisord.log", "spawned: 'director'"),
    ("gateway and engine start", "supervisord.log", "spawned: 'engine'"),
    ("gateway is ready", "gateway.log", "ready after"),
    ("engine is ready", "engine.log", "ready after"),
)
"""What a step ends with: a line of a log."""

READY: Final = "/readyz says so"
FIRST: Final = "first token of a chat"
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]\d{3}")
_STAGES: Final = re.compile(r"ready after [\d.]+ s \((?P<stages>[^)]*)\)")


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds. `ends` count from the command to the end of each step, `stages` are the engine's own account."""

    ends: dict[str, float]
    stages: dict[str, float]
    processor: dict[str, float]  # by process, user and system, up to the first token


def main(words: Sequence[str]) -> int:
    arguments = _arguments(words)
    with tempfile.TemporaryDirectory(prefix="tandem-startup-") as folder:
        starts = []
        for number in range(arguments.runs + 1):
            progress(f"start {number} of {arguments.runs}" if number else "first start: weights are packed")
            try:
                starts.append(start(Path(folder)))
            except DidNotStart as failure:
                sys.stderr.write(f"{failure}\n")
                return 1
    first, *later = starts
    print(f"\n{report(first, later)}\n")
    record = {
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "machine": facts(),
        "first": asdict(first),
        "later": [asdict(each) for each in later],
        "median": asdict(middle(later)),
    }
    print(f"written to {write_record(arguments.out, 'startup', record)}")
    return 0


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    assert __doc__
    parser = argparse.ArgumentParser("python -m bench.startup", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="starts after the first one (default: 5)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a .json file, or a folder for one")
    return parser.parse_args(words)


# --- one start --------------------------------------------------------------------------------------------------


def start(state: Path) -> Start:
    """`make up`, a chat, `tandem down`. Raises `DidNotStart`."""
    port = free_port()
    flags = ["--set", f"state={state}", "--set", f"listen.port={port}", "--set", "listen.host=127.0.0.1"]
    began, clock, before = time.time(), time.monotonic(), _processor_of_children()
    with _running(["make", "up", f"ARGS={' '.join(flags)}"], flags, state / "said.log") as command:
        _wait_ready(command, port, state / "said.log")
        ready = time.monotonic() - clock
        model = _model(port)
        asked = time.monotonic()
        _chat(port, model)
        first = ready + time.monotonic() - asked
        processor = _processor_by_process(state / "run")
        if command.wait(LONGEST_START):
            raise DidNotStart(f"make up ended with {command.returncode}:\n{tail(state / 'said.log')}")
        processor["make, tandem up"] = _processor_of_children() - before
        logs = {name: _last_start(state / "logs" / name, began) for name in {file for _, file, _ in STEPS}}
    return Start({**ends(logs, began), READY: ready, FIRST: first}, stages(logs["engine.log"]), processor)


@contextmanager
def _running(words: list[str], flags: list[str], said: Path) -> Iterator[subprocess.Popen[bytes]]:
    with said.open("wb") as output:
        command = subprocess.Popen(
            words, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield command
    finally:
        if command.poll() is None:
            command.send_signal(signal.SIGINT)
        down = [sys.executable, "-m", "tandem", "down", *flags]
        subprocess.run(down, cwd=PROJECT, stdout=subprocess.DEVNULL, timeout=LONGEST_STOP, check=False)
        command.wait(LONGEST_STOP)


def _wait_ready(command: subprocess.Popen[bytes], port: int, said: Path) -> None:
    until = time.monotonic() + LONGEST_START
    while time.monotonic() < until and not command.poll():
        with suppress(OSError, http.client.HTTPException):
            if _get(port, "/readyz").status == http.client.OK:
                return
        time.sleep(LOOK_AGAIN)
    raise DidNotStart(f"not ready:\n{tail(said)}")


def _model(port: int) -> str:
    return str(json.loads(_get(port, "/v1/models").read())["data"][0]["id"])


def _chat(port: int, model: str) -> None:
    """Returns when the first piece of text is there. Raises `DidNotStart`."""
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST_START)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            choices = json.loads(line.removeprefix(b"data: ")).get("choices")
            if choices and choices[0]["delta"].get("content"):
                connection.close()
                return
    raise DidNotStart("the chat ended without a word")


def _get(port: int, path: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path)
    return connection.getresponse()


def _processor_of_children() -> float:
    """Of all that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _processor_by_process(run: Path) -> dict[str, float]:
    """supervisord and its programs, by name."""
    supervisord = psutil.Process(int((run / "supervisord.pid").read_text()))
    named = {"supervisord": supervisord, **{each.cmdline()[3]: each for each in supervisord.children()}}
    return {name: sum(process.cpu_times()[:2]) for name, process in named.items()}


def _last_start(log: Path, began: float) -> list[str]:
    """Its lines since `began`."""
    return [line for line in log.read_text().splitlines() if (at := _at(line)) is not None and at >= began - 0.001]


# --- words in, numbers out --------------------------------------------------------------------------------------


def ends(logs: dict[str, list[str]], began: float) -> dict[str, float]:
    """Seconds from `began` to the line that ends each step. Raises `DidNotStart` for a line that is not there."""
    found = {}
    for step, file, words in STEPS:
        at = next((_at(line) for line in logs[file] if words in line), None)
        if at is None:
            raise DidNotStart(f"{file} does not say `{words}`")
        found[step] = at - began
    return found


def stages(engine: Sequence[str]) -> dict[str, float]:
    """`... ready after 2.3 s (runtime 1.4, weights 0.6): ...` as numbers."""
    match = next(match for line in engine if (match := _STAGES.search(line)))
    parts = (part.rpartition(" ") for part in match["stages"].split(", "))
    return {stage: float(seconds) for stage, _, seconds in parts}


def middle(starts: Sequence[Start]) -> Start:
    """The median of each number."""

    def each(parts: Sequence[dict[str, float]]) -> dict[str, float]:
        return {name: median(part[name] for part in parts) for name in parts[0]}

    return Start(
        each([one.ends for one in starts]),
        each([one.stages for one in starts]),
        each([one.processor for one in starts]),
    )


def report(first: Start, later: Sequence[Start]) -> str:
    """The table, and whether it was fast enough."""
    typical = middle(later)
    lines = [f"{'seconds after `make up`':<34}{'median':>8}{'first start':>14}"]
    lines += [f"{step:<34}{at:>8.2f}{first.ends[step]:>14.2f}" for step, at in typical.ends.items()]
    lines += ["", f"{'the engine on its own':<34}{'median':>8}{'first start':>14}"]
    lines += [f"{stage:<34}{took:>8.1f}{first.stages[stage]:>14.1f}" for stage, took in typical.stages.items()]
    lines += ["", f"{'processor seconds':<34}{'median':>8}{'first start':>14}"]
    lines += [f"{name:<34}{used:>8.2f}{first.processor[name]:>14.2f}" for name, used in typical.processor.items()]
    slowest = max(start.ends[FIRST] for start in later)
    is_fast = typical.ends[FIRST] < WANTED
    lines += [
        "",
        f"first token after {typical.ends[FIRST]:.2f} s (slowest of {len(later)}: {slowest:.2f}): "
        f"{'under' if is_fast else 'not under'} {WANTED:.0f} s",
    ]
    return "\n".join(lines)


def _at(line: str) -> float | None:
    match = _TIME.match(line)
    return None if match is None else datetime.fromisoformat(match[0].replace(",", ".")).timestamp()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
