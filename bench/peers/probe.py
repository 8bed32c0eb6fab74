"""`python -m bench.peers.probe WEIGHTS COMPUTE THREADS`: what this process holds at three moments of an engine's start.

JSON, in bytes. Nothing is imported at the top that the first moment must not count.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from resource import RUSAGE_SELF, getpagesize, getrusage


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


def main(weights: str, compute: str, threads: str) -> None:
    found = {"python": resident()}
    import tandem.engine.device
    import tandem.engine.worker  # noqa: F401
    from tandem.model import load

    found["libraries"] = resident()
    model = load(Path(weights), compute, int(threads))
    found["weights"] = resident()
    found["peak"] = getrusage(RUSAGE_SELF).ru_maxrss * 1024
    del model
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
