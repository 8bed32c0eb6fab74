"""`python -m bench.draft_lookup [--size MIB]`: what the lookup drafter costs, in the request and at a full store.

The tokens are random with the skew of words (Zipf), half of each text copied from earlier ones, so that searches find
something and the common n-grams have long lists. Medians; nothing here touches a model.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import cast

import numpy as np
from numpy.typing import NDArray

from bench.machine import facts
from tandem.draft.archive import Archive
from tandem.draft.grams import LONGEST, GramIndex
from tandem.draft.lookup import REQUEST_SIZES, Lookup
from tandem.draft.store import LookupStore
from tandem.model.interface import SequenceState
from tandem.units import MIB, format_bytes

VOCABULARY = 49_152
DOCUMENT = 2_000  # tokens
LIMIT = 16  # guesses asked for
TURNS = 500
NO_STATE = cast(SequenceState, None)  # a lookup does not look at it


def text(random: np.random.Generator, length: int) -> NDArray[np.uint32]:
    """Half of it new, half copied from its own past, in runs of 8 to 64 tokens."""
    tokens = (random.zipf(1.2, length) % VOCABULARY).astype(np.uint32)
    at = 64
    while at + 64 < length:
        run = int(random.integers(8, 64))
        source = int(random.integers(0, at))
        copied = min(run, at - source)
        tokens[at : at + copied] = tokens[source : source + copied]
        at += 2 * run
    return tokens


def microseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def row(label: str, times: list[float]) -> None:
    print(f"{label:52} {median(times):10.1f} {quantiles(times, n=20)[-1]:10.1f} {max(times):10.1f}", flush=True)


def in_request(random: np.random.Generator, length: int) -> None:
    tokens = text(random, length + TURNS + LIMIT)
    prompt = tuple(tokens[:length].tolist())
    builds = []
    for _ in range(7):
        index = GramIndex(REQUEST_SIZES)
        builds.append(microseconds(lambda index=index: index.append(prompt)))  # type: ignore[misc]
    row(f"read a prompt of {length:,} tokens", builds)
    drafter = Lookup()
    session = drafter.begin(NO_STATE, "")
    drafter.follow(session, prompt)
    turns(drafter, session, tokens[length:], f"at {length:,} tokens")
    print(f"  memory: {index.num_bytes / length:.1f} bytes a token")


def turns(drafter: Lookup, session: object, tokens: NDArray[np.uint32], where: str) -> None:
    follows, guesses, nodes = [], [], 0
    for token in tokens[:TURNS].tolist():
        guesses.append(microseconds(lambda: drafter.propose([session], [LIMIT])))  # type: ignore[list-item]
        nodes += session.guessed.nodes  # type: ignore[attr-defined]
        follows.append(microseconds(lambda token=token: drafter.follow(session, (token,))))  # type: ignore
    row(f"  a guess of at most {LIMIT}, {where}", guesses)
    row(f"  a follow of one token, {where}", follows)
    print(f"  guesses a turn: {nodes / TURNS:.1f}")


def in_store(random: np.random.Generator, size: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        archive = Archive(Path(directory, "lookup"), size, bytes(32))
        whole = text(random, archive.most_words)
        adds = []
        for start in range(0, len(whole) - 2 * DOCUMENT, DOCUMENT):
            document = whole[start : start + DOCUMENT]
            if archive.num_words + DOCUMENT + LONGEST > archive.most_words:
                break
            adds.append(microseconds(lambda document=document: archive.add("", document)))  # type: ignore[misc]
        print(f"store of {format_bytes(size)}: {archive.num_words:,} words, {len(adds):,} documents")
        row("  keep one document (off the round)", adds)
        archive.close()

        archive = Archive(Path(directory, "lookup"), size, bytes(32))
        start_time = microseconds(lambda: archive.view(""))
        index = archive.index_bytes
        print(f"  read at start: {start_time / 1e3:.0f} ms (off the round); memory {format_bytes(index)}")
        store = LookupStore(archive)
        shelf = store.shelf("")
        while shelf.view.end == LONGEST:
            time.sleep(0.01)
        drafter = Lookup(store=store)
        session = drafter.begin(NO_STATE, "")
        drafter.follow(session, text(random, 1_000).tolist())
        known = whole[int(random.integers(0, len(whole) // 2)) :]
        turns(drafter, session, known, "beside a full store, text it holds")
        fresh = drafter.begin(NO_STATE, "")
        drafter.follow(fresh, text(random, 1_000).tolist())
        turns(drafter, fresh, text(random, TURNS), "beside a full store, new text")
        store.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.draft_lookup", description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=64, help="of the store, MiB")
    options = parser.parse_args()
    print(" ".join(f"{name}={value}" for name, value in facts().items()))
    print(f"{'microseconds':52} {'median':>10} {'95 %':>10} {'worst':>10}")
    random = np.random.default_rng(7)
    for length in (1_000, 10_000, 100_000):
        in_request(random, length)
    in_store(random, options.size * MIB)
    return 0


if __name__ == "__main__":
    sys.exit(main())
