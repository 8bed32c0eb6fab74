"""`python -m bench.kv_pool`: what rows take with the KV pool and without, and what the pool costs in speed.

First an engine's process with the pool, then one without it: `bench.kv_memory`. Then the speed, in this process. Three
states of one model do the same work in turns, pass by pass: rows in ordinary tensors, rows in the pool, and ordinary
tensors again, whose distance from the first is the noise of this machine. Commits stand inside the timed passes, as in
the engine; before each prompt the pool has given every page back, while ordinary rows keep theirs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median, quantiles

import torch

from bench.kv_memory import measure_memory, memory_table, page_a_tensor, plan_of, strays
from bench.machine import facts
from bench.record import write_record
from tandem.contract.plan import EnginePlan
from tandem.memory.host_pages import HostPages
from tandem.memory.kvpool import KVPool, SlotRows
from tandem.model import Block, Model, SequenceState, Wants, load
from tandem.units import MIB


@dataclass(slots=True)
class Side:
    """One of the states, and the seconds of its passes."""

    name: str
    state: SequenceState
    memory: SlotRows | None = None
    chunks: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)  # one a round; most find their rows committed
    taking: list[tuple[float, int]] = field(default_factory=list)  # seconds and bytes of every one that took pages
    taking_rounds: int = 0  # rounds among them
    give_backs: list[tuple[float, int]] = field(default_factory=list)

    def run(self, model: Model, tokens: torch.Tensor, start: int, times: list[float]) -> None:
        began = time.perf_counter()
        if self.memory:
            taken = self.memory.commit(start + len(tokens))
            seconds = time.perf_counter() - began
            if times is self.rounds:
                self.commits.append(seconds)
            if taken:
                self.taking.append((seconds, taken))
                self.taking_rounds += times is self.rounds
        model.forward([Block(tokens, start, self.state, Wants.LAST)])
        times.append(time.perf_counter() - began)

    def end(self) -> None:
        if self.memory:
            began = time.perf_counter()
            freed = self.memory.give_back(0)
            self.give_backs.append((time.perf_counter() - began, freed))


def measure(model: Model, plan: EnginePlan, prompt: int, answer: int, repetitions: int) -> list[Side]:
    """Prompts of `prompt` rows and answers of `answer`, all sides in step. The first repetition only warms up."""
    window, chunk = plan.slots[0].window, plan.chunk
    memory = KVPool(HostPages(), plan.kv_margin_rows).slot()
    sides = [
        Side("off", model.new_state(window)),
        Side("on", model.new_state(window, memory.allocate), memory),
        Side("off again", model.new_state(window)),
    ]
    tokens = torch.randint(model.config.vocab, (prompt + answer,), generator=torch.Generator().manual_seed(1))
    for repetition in range(repetitions + 1):
        progress(f"repetition {repetition} of {repetitions}")
        for start in range(0, prompt, chunk):
            for side in in_turn(sides, repetition + start // chunk):
                side.run(model, tokens[start : min(start + chunk, prompt)], start, side.chunks)
        for start in range(prompt, prompt + answer):
            for side in in_turn(sides, start):
                side.run(model, tokens[start : start + 1], start, side.rounds)
        for side in sides:
            side.end()
            if repetition == 0:
                for times in (side.chunks, side.rounds, side.commits, side.taking, side.give_backs):
                    times.clear()
                side.taking_rounds = 0
    return sides


def in_turn(sides: Sequence[Side], turn: int) -> list[Side]:
    """Who is first changes, so that nobody always follows the same one."""
    first = turn % len(sides)
    return [*sides[first:], *sides[:first]]


def progress(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\x1b[K{line}\r")
        sys.stderr.flush()


def describe(sides: Sequence[Side], rows_a_pass: dict[str, float]) -> dict[str, dict[str, float]]:
    """Speeds in rows a second from the median pass, ratios from medians of the sides' passes of the same moment."""
    off, on, again = sides
    found: dict[str, dict[str, float]] = {}
    for phase, rows in rows_a_pass.items():
        times: dict[str, list[float]] = {side.name: getattr(side, phase) for side in sides}
        found[phase] = {f"{name}, rows a second": rows / median(each) for name, each in times.items()} | {
            "on to off": median(a / b for a, b in zip(times[off.name], times[on.name], strict=True)),
            "off to off": median(a / b for a, b in zip(times[off.name], times[again.name], strict=True)),
        }
    seconds, sizes = zip(*on.taking, strict=True)
    backs, freed = zip(*on.give_backs, strict=True)
    percentiles = quantiles(on.commits, n=100)
    found["commits"] = {
        "rounds": len(on.rounds),
        "rounds that took pages": on.taking_rounds,
        "us a round, median": percentiles[49] * 1e6,
        "us a round, p99": percentiles[98] * 1e6,
        "ms a commit that took pages": fmean(seconds) * 1e3,
        "us a MiB taken": sum(seconds) / sum(sizes) * MIB * 1e6,
        "us a MiB given back": sum(backs) / sum(freed) * MIB * 1e6,
    }
    return found


def speed_table(found: dict[str, dict[str, float]]) -> str:
    names = {"chunks": "prompt", "rounds": "answer", "commits": "commits"}
    lines = []
    for phase, figures in found.items():
        words = (f"{name} {value:,.0f}" if value >= 100 else f"{name} {value:.3g}" for name, value in figures.items())
        lines.append(f"{names[phase]:8} {'; '.join(words)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kv_pool", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `tandem up`")
    parser.add_argument("--prompt", type=int, default=1536)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--only", choices=("memory", "speed"))
    parser.add_argument("--out", type=Path, help="the record, as JSON")
    options = parser.parse_args()
    record: dict[str, object] = {"machine": facts(), "settings": {k: str(v) for k, v in vars(options).items()}}
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of(Path(folder), True, options.set)
    astray: list[str] = []
    if options.only != "speed":
        on, off = (measure_memory(pool, options.set) for pool in (True, False))
        astray = strays(on, page_a_tensor(plan))
        record["memory"] = {"on": [asdict(each) for each in on], "off": [asdict(each) for each in off]}
        print(memory_table(on, off))
        print(
            f"at rest, RSS is not what is committed: {', '.join(astray)}"
            if astray
            else "at rest, RSS is what is committed"
        )
    if options.only != "memory":
        engine = plan.engine
        model = load(Path(engine.weights), engine.compute, engine.threads)
        sides = measure(model, engine, options.prompt, options.answer, options.repetitions)
        record["speed"] = found = describe(sides, {"chunks": min(engine.chunk, options.prompt), "rounds": 1})
        print(speed_table(found))
    if options.out:
        write_record(options.out, "kv-pool", record)
    return 1 if astray else 0


if __name__ == "__main__":
    raise SystemExit(main())
