"""`python -m bench.drafting`: the same work with drafting on and off, through HTTP, greedy, every text held against
the other's.

Two appliances run, alike but for `draft`; only one of them is asked at a time, and they take turns. The work is of two
kinds: a file written again with a change, which guesses from the request itself can follow, and prose about a new
topic each time, which they cannot. No prompt is asked twice of the appliance that drafts, for it would know the answer.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx

from bench.appliance import NEWS, Appliance, DidNotStart, started
from bench.client import Answer, RequestFailed, ask
from bench.edits import edit
from bench.machine import facts
from bench.prompts import TOPICS, prompt
from bench.record import parser_of, write_record
from bench.turns import LEVELS, WARM_UP, in_turns, progress

SLOTS: Final = max(LEVELS)
KINDS: Final[dict[str, Callable[[str], str]]] = {"edit": edit, "prose": prompt}


@dataclass(frozen=True, slots=True)
class Run:
    """`clients` requests of one kind, sent at once. Times are seconds."""

    kind: str
    clients: int
    drafting: bool
    tokens: int  # written, all clients together
    total: float  # from the first request sent to the last answer complete
    writing: float  # from the first piece of text to the last, of the client that wrote longest
    rounds: int
    slots: int  # that took part, over all rounds
    rows: int  # of the joint passes, guesses included
    texts: tuple[str, ...]

    @property
    def writing_rate(self) -> float:
        return (self.tokens - self.clients) / self.writing  # each client's first token came before

    @property
    def total_rate(self) -> float:
        return self.tokens / self.total


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of work at one level: medians over its repetitions; ratios are taken pair by pair."""

    kind: str
    clients: int
    runs: int
    off: float
    on: float
    writing_ratio: float
    total_ratio: float
    slots_a_round: float
    rows_a_round: float
    tokens_a_slot: float  # written by a slot in one round
    different: int  # texts that drafting changed


async def measure(on: Appliance, off: Appliance, repetitions: int, max_tokens: int) -> list[tuple[Run, Run]]:
    """Pairs (off, on). Raises `RequestFailed`."""
    pairs: list[tuple[Run, Run]] = []
    topics = {kind: iter(TOPICS) for kind in KINDS}
    async with httpx.AsyncClient(timeout=httpx.Timeout(120)) as client:
        for repetition in range(repetitions):
            progress(f"drafting: repetition {repetition + 1} of {repetitions}")
            for clients in in_turns(LEVELS, repetition):
                for kind, make in KINDS.items():
                    prompts = [make(next(topics[kind])) for _ in range(clients)]
                    order = in_turns((off, on), len(pairs))
                    runs = {
                        each: await measure_one(client, each, each is on, kind, prompts, max_tokens) for each in order
                    }
                    pairs.append((runs[off], runs[on]))
    return pairs


async def measure_one(
    client: httpx.AsyncClient, appliance: Appliance, drafting: bool, kind: str, prompts: Sequence[str], max_tokens: int
) -> Run:
    await ask(client, appliance.url, appliance.model, "Count to ten.", WARM_UP)  # the other appliance may have run last
    before = await counters(appliance)
    answers: Sequence[Answer] = await asyncio.gather(
        *(ask(client, appliance.url, appliance.model, prompt, max_tokens) for prompt in prompts)
    )
    after = await counters(appliance)

    def grown(name: str, weighed: bool = False) -> int:
        return sum(
            (int(size) if weighed else 1) * (rounds - before[name].get(size, 0)) for size, rounds in after[name].items()
        )

    return Run(
        kind=kind,
        clients=len(prompts),
        drafting=drafting,
        tokens=sum(answer.tokens for answer in answers),
        total=max(answer.last for answer in answers) - min(answer.sent for answer in answers),
        writing=max(answer.last for answer in answers) - min(answer.first for answer in answers),
        rounds=grown("rounds_by_size"),
        slots=grown("rounds_by_size", weighed=True),
        rows=grown("rounds_by_rows", weighed=True),
        texts=tuple(answer.text for answer in answers),
    )


async def counters(appliance: Appliance) -> dict[str, Any]:
    """For when nothing runs: it waits until no older word of the engine is repeated."""
    await asyncio.sleep(NEWS)
    return dict(appliance.health()["engine"]["counters"])


def summarize(pairs: Sequence[tuple[Run, Run]]) -> list[Row]:
    rows = []
    for clients in LEVELS:
        for kind in KINDS:
            some = [(off, on) for off, on in pairs if off.kind == kind and off.clients == clients]
            drafted = [on for _, on in some]
            rounds, slots = sum(run.rounds for run in drafted), sum(run.slots for run in drafted)
            rows.append(
                Row(
                    kind=kind,
                    clients=clients,
                    runs=len(some),
                    off=median(off.writing_rate for off, _ in some),
                    on=median(on.writing_rate for _, on in some),
                    writing_ratio=median(on.writing_rate / off.writing_rate for off, on in some),
                    total_ratio=median(on.total_rate / off.total_rate for off, on in some),
                    slots_a_round=slots / rounds,
                    rows_a_round=sum(run.rows for run in drafted) / rounds,
                    tokens_a_slot=sum(run.tokens - run.clients for run in drafted) / slots,
                    different=sum(a != b for off, on in some for a, b in zip(off.texts, on.texts, strict=True)),
                )
            )
    return rows


def table(rows: Sequence[Row]) -> str:
    head = (
        "work",
        "clients",
        "off tok/s",
        "on tok/s",
        "on/off",
        "with reading",
        "slots/round",
        "rows/round",
        "tokens/slot",
    )
    cells = [head] + [
        (
            row.kind,
            str(row.clients),
            f"{row.off:.1f}",
            f"{row.on:.1f}",
            f"{row.writing_ratio:.2f}",
            f"{row.total_ratio:.2f}",
            f"{row.slots_a_round:.2f}",
            f"{row.rows_a_round:.2f}",
            f"{row.tokens_a_slot:.2f}",
        )
        for row in rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    lines += [f"! {row.kind}, {row.clients} clients: {row.different} texts differ" for row in rows if row.different]
    return "\n".join(lines)


def main() -> int:
    parser = parser_of("bench.drafting", __doc__)
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=224)
    options = parser.parse_args()
    most = len(TOPICS) // sum(LEVELS)
    if not 1 <= options.repetitions <= most:
        parser.error(f"--repetitions: 1 to {most}, there are no more prompts")
    machine, settings = facts(), tuple(options.set)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder,
            started(SLOTS, Path(folder, "on"), settings) as on,
            started(SLOTS, Path(folder, "off"), (*settings, "draft=off")) as off,
        ):
            pairs = asyncio.run(measure(on, off, options.repetitions, options.max_tokens))
    except (DidNotStart, RequestFailed, httpx.HTTPError) as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    rows = summarize(pairs)
    print(f"\n{table(rows)}\n\n{machine['cpu']}, {machine['cpus']} CPUs; at most {options.max_tokens} tokens an answer")
    runs = [{**asdict(run), "texts": None} for pair in pairs for run in pair]
    record = {"machine": machine, "rows": [asdict(row) for row in rows], "runs": runs}
    print(f"written to {write_record(options.out, 'drafting', record)}")
    return 1 if any(row.different for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
