"""`python -m bench.growth`: how cost grows, as curves: data in one file, and a plot of it beside.

Steps over rows and context, first tokens over prompts and over others that are answered, memory over rows and slots,
the gateway over streams, the queue over who waits, the turn over slots. Parts that are measured again replace what the
file knows of them; each carries the facts of the machine it was measured on.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from bench.appliance import DidNotStart
from bench.client import RequestFailed
from bench.growth import gateway, memory, queue, step, ttft, turn
from bench.growth.curves import Curve, Part, Record, decode, encode
from bench.growth.plot import draw
from bench.machine import PROJECT, facts
from bench.turns import progress
from tandem.config import load
from tandem.contract.plan import Plan
from tandem.memory.reading import read_box
from tandem.planner.compile import compile_plan

Settings = Sequence[str]
Measure = Callable[[Settings, bool], tuple[Curve, ...]]

PARTS: dict[str, Measure] = {
    "step": lambda settings, is_quick: step.measure(_plan(settings).engine, is_quick=is_quick),
    "ttft": lambda settings, is_quick: ttft.measure(settings, is_quick=is_quick),
    "memory": lambda settings, is_quick: memory.measure(settings, is_quick=is_quick),
    "gateway": lambda settings, is_quick: gateway.measure(settings, is_quick=is_quick),
    "queue": lambda settings, is_quick: queue.measure(_plan(settings), is_quick=is_quick),
    "turn": lambda settings, is_quick: turn.measure(_plan(settings), is_quick=is_quick),
}


def _plan(settings: Settings) -> Plan:
    """The project's own appliance. Nothing is written to its state folder, which is gone already."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return compile_plan(load(PROJECT / "appliance.yaml", (*settings, f"state={folder}")), read_box())


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few places of each curve: does it work, not how fast")
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="this part; may be given several times")
    parser.add_argument("--plot-only", action="store_true", help="draw what the file holds; measure nothing")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `tandem up`")
    parser.add_argument(
        "--out",
        type=Path,
        default=PROJECT / "bench" / "results" / "growth.json",
        help="a .json file; parts it has and that are not measured stay, and the plot goes beside it",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    out: Path = options.out
    record = decode(out.read_bytes()) if out.exists() else Record()
    if not options.plot_only:
        machine = facts()  # before the file it writes makes the tree another one
        try:
            for name in options.only or PARTS:
                load_before, began = os.getloadavg()[0], time.monotonic()
                curves = PARTS[name](options.set, options.quick)
                part = Part({**machine, "load_before": load_before}, options.quick, time.monotonic() - began, curves)
                written = encode(record.with_parts({name: part}, tuple(PARTS)))
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_bytes(written)
                record = decode(written)  # the plot is of what is kept
                progress(f"{name}: {part.seconds:.0f} s")
        except (DidNotStart, RequestFailed, httpx.HTTPError) as error:
            sys.stderr.write(f"bench: {error}\n")
            return 1
        except KeyboardInterrupt:
            return 130
    plot = out.with_suffix(".svg")
    plot.write_text(draw(record), encoding="utf-8")
    print(f"{table(record)}\n\nwritten to {out} and {plot}")
    return 0


def table(record: Record) -> str:
    """Every line, its places and medians."""
    lines: list[str] = []
    for curve in record.curves:
        lines.append(f"\n{curve.title} ({curve.y.label}, over {curve.x.label})")
        for each in curve.lines:
            places = "  ".join(f"{point.x:g}: {point.median:.3g}" for point in each.points)
            lines.append(f"  {each.name:36} {places}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
