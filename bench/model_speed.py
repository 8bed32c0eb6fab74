"""`python -m bench.model_speed WEIGHTS`: milliseconds of one forward, without engine and HTTP.

Decode steps at several row counts and contexts, every sequence with the same context, then prefill chunks. Median and
lowest tenth: on a shared machine the distance between the two says how much the median is worth.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from bench.machine import facts
from tandem.model import Block, Model, SequenceState, Wants, load
from tandem.model.weights.quant import Compute

CONTEXTS = (64, 256, 1500)
ROWS = (1, 2, 4, 8)
CHUNK = 256


def read_state(model: Model, rows: int) -> SequenceState:
    """A state whose first `rows` rows hold zeros: attention takes as long over them as over any other."""
    state = model.new_state(model.config.window)
    for tensor in (*state.keys, *state.values):
        tensor[:rows].zero_()
    return state


def milliseconds(work: Callable[[], object], repetitions: int) -> str:
    work()
    taken = []
    for _ in range(repetitions):
        before = time.perf_counter()
        work()
        taken.append((time.perf_counter() - before) * 1e3)
    taken.sort()
    return f"{taken[len(taken) // 2]:8.1f} ({taken[len(taken) // 10]:.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.model_speed", description=__doc__.partition("\n")[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("--compute", nargs="+", type=Compute, default=list(Compute))
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()

    print(" ".join(f"{name}={value}" for name, value in facts().items()))
    print("milliseconds: median (lowest tenth)")
    for compute in options.compute:
        model = load(options.weights, compute, options.threads)
        print(f"\n{compute}, row bucket {model.row_bucket}")
        print("context " + "".join(f"{rows:>12} rows " for rows in ROWS) + f"{CHUNK:>12} rows read")
        for context in CONTEXTS:
            blocks = [Block(torch.tensor([rows]), context, read_state(model, context)) for rows in range(max(ROWS))]
            chunk = Block(torch.arange(CHUNK), context, read_state(model, context), Wants.LAST)
            decode = [milliseconds(partial(model.forward, blocks[:rows]), options.repetitions) for rows in ROWS]
            read = milliseconds(partial(model.forward, [chunk]), max(3, options.repetitions // 6))
            print(f"{context:7} " + "".join(f"{cell:>17} " for cell in (*decode, read)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
