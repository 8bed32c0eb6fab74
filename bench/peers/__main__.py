"""`make bench-peers`: tandem beside llama.cpp's server, vLLM and transformers on this machine, in one run.

Each peer is installed into an environment of its own the first time. Then every server gets the same prompts and has to
write the same number of tokens, one server asked at a time, in turns. A peer that cannot be had here is left out, with
the reason.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from bench.appliance import DidNotStart, started
from bench.client import RequestFailed
from bench.machine import facts
from bench.peers import generate, llama, vllm
from bench.peers.environments import NotMeasured
from bench.peers.footprint import Footprint, engine_parts, footprint, probe, split, split_native
from bench.peers.model import Model, bf16_needs, model_of
from bench.peers.quiet import QUIET, Patience
from bench.peers.servers import Recipe, Server, running, server_of
from bench.peers.verdict import OURS, PLAIN, SHIPPED, lines, memory_lines, parts_table, remarks, table
from bench.peers.work import SLOTS, Sample, fill, for_memory, idle_processors, measure, most_repetitions, works
from bench.record import parser_of, write_record
from bench.turns import progress
from tandem.errors import TandemError
from tandem.memory.reading import read_memory

PEERS: Final[dict[str, Callable[[Model], list[Recipe]]]] = {
    "llama": llama.installed,
    "vllm": vllm.installed,
    "transformers": generate.installed,
}
SHARE: Final = 0.8  # of the available memory that servers which run at once may take


@dataclass(slots=True)
class Found:
    groups: list[list[Sample]] = field(default_factory=list)  # of servers that ran at the same time
    footprints: dict[str, Footprint] = field(default_factory=dict)
    parts: dict[str, dict[str, int]] = field(default_factory=dict)  # of those that say them: bytes of the peak
    idle: dict[str, float] = field(default_factory=dict)  # processors taken while nobody asks
    missing: dict[str, str] = field(default_factory=dict)  # peer -> why it was not measured

    def leave_out(self, name: str, why: Exception) -> None:
        self.missing[name] = str(why)
        progress(f"{name}: not measured: {why}")


def recipes_of(model: Model, names: Sequence[str], found: Found) -> list[Recipe]:
    """Installs what is not installed."""
    recipes: list[Recipe] = []
    for name in names:
        try:
            recipes += PEERS[name](model)
        except NotMeasured as why:
            found.leave_out(name, why)
    return recipes


def groups_of(recipes: Sequence[Recipe], ours: int, room: int) -> list[list[Recipe]]:
    """Who runs at the same time, each time beside tandem: as many as memory holds, one at least. Bytes."""
    groups: list[list[Recipe]] = [[]]
    for recipe in recipes:
        if groups[-1] and ours + sum(each.needs for each in (*groups[-1], recipe)) > SHARE * room:
            groups.append([])
        groups[-1].append(recipe)
    return groups


def measure_group(
    recipes: Sequence[Recipe], model: Model, options: argparse.Namespace, found: Found, patience: Patience
) -> None:
    """Raises `DidNotStart` and `RequestFailed` for tandem; a peer that fails is left out."""
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        servers: list[Server] = []
        for ours, guesses in ((PLAIN, ("draft=off",)), (SHIPPED, ())):
            appliance = stack.enter_context(started(SLOTS, folder / ours, (*options.set, *guesses)))
            servers.append(server_of(ours, appliance))
        for recipe in recipes:
            progress(f"starting {recipe.name}")
            try:
                servers.append(stack.enter_context(running(recipe, folder)))
            except NotMeasured as why:
                found.leave_out(recipe.name, why)
        found.idle |= {server.name: idle_processors(server) for server in servers}
        plan = works(options.quick)
        samples = asyncio.run(measure(servers, plan, options.repetitions, patience, found.leave_out))
        found.groups.append([sample for sample in samples if sample.server not in found.missing])
        filling = for_memory(options.quick)
        for server in servers:
            if server.name not in found.missing and server.does(filling.kind):
                progress(f"memory: {server.name}")
                try:
                    asyncio.run(fill(server, filling))
                except RequestFailed as why:
                    if server.appliance is not None:
                        raise
                    found.leave_out(f"{server.name}, memory", why)  # its other figures stand
                else:
                    found.footprints[server.name] = footprint(server)
        probed = probe(model)
        for server in servers:
            if (held := found.footprints.get(server.name)) is None:
                continue
            if server.appliance is not None:
                found.parts[server.name] = split(held, probed, engine_parts(server))
            elif server.name.startswith(llama.NAME):
                found.parts[server.name] = split_native(held, model)


def report(found: Found, recipes: Sequence[Recipe]) -> tuple[str, dict[str, Any]]:
    """What is printed, and the same as data."""
    measured = [*lines(found.groups), *memory_lines(found.footprints)]
    names = [*OURS, *(recipe.name for recipe in recipes if recipe.name not in found.missing)]
    samples = [sample for group in found.groups for sample in group]
    notes = [
        "In brackets: tandem's figure over the peer's; `!`: the peer's is better. Held against them is tandem without",
        "guesses, but with them for the file edited. Medians of runs in turns; ratios are medians of their own.",
        *(f"{name}: not measured: {why}" for name, why in found.missing.items()),
        *remarks(samples, QUIET),
    ]
    shown = {name: parts for name, parts in found.parts.items() if name in (PLAIN, llama.NAME)} or found.parts
    text = "\n".join((table(measured, names), "", *notes, "", parts_table(shown)))
    return text, {
        "settings": {recipe.name: recipe.settings for recipe in recipes},
        "not_measured": found.missing,
        "lines": [asdict(line) for line in measured],
        "remarks": remarks(samples, QUIET),
        "memory_bytes": {name: asdict(each) for name, each in found.footprints.items()},
        "memory_parts_bytes": found.parts,
        "idle_processors": found.idle,
        "runs": [[asdict(sample) for sample in group] for group in found.groups],
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of("bench.peers", __doc__)
    parser.add_argument("--only", action="append", choices=PEERS, help="this peer; may be said several times")
    parser.add_argument("--without", action="append", default=[], choices=PEERS, help="not this peer")
    parser.add_argument("--install", action="store_true", help="only install the peers")
    parser.add_argument("--quick", action="store_true", help="2 repetitions of 32 tokens: does it work, not how fast")
    parser.add_argument(
        "--repetitions", type=int, help="default: 6; even, so that every order is taken as often as its reverse"
    )
    parser.add_argument("--wait", type=float, default=300.0, help="seconds, in all, for others to finish; default: 300")
    options = parser.parse_args(arguments)
    options.peers = [name for name in options.only or PEERS if name not in options.without]
    options.repetitions = options.repetitions or (2 if options.quick else 6)
    if not 1 <= options.repetitions <= most_repetitions():
        parser.error(f"--repetitions: 1 to {most_repetitions()}, there are no more prompts")
    return options


def main() -> int:
    options = parse()
    found, machine = Found(), facts()
    try:
        model = model_of(SLOTS, options.set)
        recipes = recipes_of(model, options.peers, found)
        if options.install:
            return 1 if found.missing else 0
        ours = 2 * bf16_needs(model)
        patience = Patience(options.wait)
        installed = time.monotonic()
        for group in groups_of(recipes, ours, read_memory().available):
            measure_group(group, model, options, found, patience)
    except (DidNotStart, RequestFailed, TandemError, httpx.HTTPError) as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    text, record = report(found, recipes)
    took = time.monotonic() - installed
    print(f"\n{text}\n\n{machine['cpu']}, {machine['cpus']} CPUs; {took / 60:.0f} minutes, installing left out")
    record = {"machine": machine, "repetitions": options.repetitions, "seconds": took, **record}
    print(f"written to {write_record(options.out, 'peers', record)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
