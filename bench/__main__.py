"""`python -m bench`: one, two and four clients through HTTP, greedy, every answer held against its alone text.

Two appliances run, one with side slots and one with a single slot; only one of them is asked at a time. First every
prompt is asked alone, which gives the texts to compare with. Then the levels take turns, every other repetition
backwards, so that a machine that drifts does so for all of them alike. Last, one client asks both appliances in turns:
what side slots cost who does not need them. Nobody drafts: `bench.drafting` measures that.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import httpx

from bench.appliance import Appliance, DidNotStart, started
from bench.client import Answer, RequestFailed, ask
from bench.machine import facts
from bench.prompts import TOPICS, prompt
from bench.record import parser_of, write_record
from bench.report import Sample, ratio, summarize, table
from bench.turns import LEVELS, WARM_UP, in_turns, progress

SLOTS = max(LEVELS)


@dataclass(frozen=True, slots=True)
class Work:
    """One request with the text it writes when nobody else is served."""

    prompt: str
    alone: str


@dataclass(frozen=True, slots=True)
class Measured:
    """In order of time. The last two were taken in turns."""

    levels: dict[int, list[Sample]]  # by clients at once, on the appliance with side slots
    many: list[Sample]  # one client, side slots built
    single: list[Sample]  # one client, one slot


async def measure(many: Appliance, single: Appliance, repetitions: int, max_tokens: int) -> Measured:
    """Raises `RequestFailed`."""
    found = Measured({clients: [] for clients in LEVELS}, [], [])
    async with httpx.AsyncClient(timeout=httpx.Timeout(120)) as client:
        work = await ask_alone(client, many, sum(LEVELS) * repetitions, max_tokens)
        unused = iter(work)
        for repetition in range(repetitions):
            progress(f"levels: repetition {repetition + 1} of {repetitions}")
            for clients in in_turns(LEVELS, repetition):
                together = tuple(islice(unused, clients))
                found.levels[clients].append(await measure_one(client, many, together, max_tokens))
        for number in range(2 * repetitions):
            progress(f"side slots or none: turn {number + 1} of {2 * repetitions}")
            for appliance, samples in in_turns(((many, found.many), (single, found.single)), number):
                samples.append(await measure_one(client, appliance, (work[number],), max_tokens))
    return found


async def ask_alone(client: httpx.AsyncClient, appliance: Appliance, count: int, max_tokens: int) -> list[Work]:
    """`count` prompts whose answers fill `max_tokens`: equal lengths keep the slots busy to the end."""
    work: list[Work] = []
    for topic in TOPICS:
        if len(work) == count:
            return work
        progress(f"alone texts: {len(work)} of {count}")
        answer = await ask(client, appliance.url, appliance.model, prompt(topic), max_tokens)
        if answer.finish == "length":
            work.append(Work(prompt(topic), answer.text))
    if len(work) < count:
        raise RequestFailed(f"only {len(work)} of {len(TOPICS)} prompts got {max_tokens} tokens; {count} are needed")
    return work


async def measure_one(
    client: httpx.AsyncClient, appliance: Appliance, works: Sequence[Work], max_tokens: int
) -> Sample:
    """One request for each of `works`, all at once."""
    await ask(client, appliance.url, appliance.model, "Count to ten.", WARM_UP)  # the other appliance may have run last
    before = appliance.rounds_by_size()
    answers: Sequence[Answer] = await asyncio.gather(
        *(ask(client, appliance.url, appliance.model, work.prompt, max_tokens) for work in works)
    )
    after = appliance.rounds_by_size()
    return Sample(
        clients=len(answers),
        slots=appliance.slots,
        seconds=max(answer.last for answer in answers) - min(answer.sent for answer in answers),
        tokens=sum(answer.tokens for answer in answers),
        first_tokens=tuple(answer.first_token_seconds for answer in answers),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        different=tuple(
            index for index, (answer, work) in enumerate(zip(answers, works, strict=True)) if answer.text != work.alone
        ),
        rounds_by_size={
            size: rounds - before.get(size, 0) for size, rounds in after.items() if rounds > before.get(size, 0)
        },
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of("bench", __doc__)
    parser.add_argument("--quick", action="store_true", help="2 repetitions of 32 tokens: does it work, not how fast")
    parser.add_argument(
        "--repetitions", type=int, help="default: 6; even, so that every order was taken as often as its reverse"
    )
    parser.add_argument("--max-tokens", type=int, help="default: 128")
    options = parser.parse_args(arguments)
    options.repetitions = options.repetitions or (2 if options.quick else 6)
    options.max_tokens = options.max_tokens or (32 if options.quick else 128)
    if options.repetitions * sum(LEVELS) > len(TOPICS):
        parser.error(f"--repetitions: at most {len(TOPICS) // sum(LEVELS)}, there are no more prompts")
    return options


def main() -> int:
    options = parse()
    machine = facts()
    settings = ("draft=off", *options.set)  # prompts come back here, and a drafter would know their answers
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder,
            started(SLOTS, Path(folder, "many"), settings) as many,
            started(1, Path(folder, "single"), settings) as single,
        ):
            found = asyncio.run(measure(many, single, options.repetitions, options.max_tokens))
    except (DidNotStart, RequestFailed, httpx.HTTPError) as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    levels = [summarize(found.single), *(summarize(samples) for samples in found.levels.values())]
    ratios = {clients: ratio(samples, found.levels[1]) for clients, samples in found.levels.items()}
    cost = ratio(found.many, found.single)
    text = table(levels, ratios, cost)
    print(f"\n{text}\n\n{machine['cpu']}, {machine['cpus']} CPUs; {options.max_tokens} tokens an answer")
    record = {
        "machine": machine,
        "settings": list(settings),
        "max_tokens": options.max_tokens,
        "levels": [asdict(level) for level in levels],
        "ratio_to_one_client": ratios,
        "side_slots_cost": cost,
        "levels_runs": [asdict(sample) for samples in found.levels.values() for sample in samples],
        "in_turns": [asdict(sample) for pair in zip(found.single, found.many, strict=True) for sample in pair],
    }
    path = write_record(options.out, "clients", record)
    path.with_suffix(".txt").write_text(text + "\n")
    print(f"written to {path}")
    return 0 if all(level.rate is not None for level in levels) else 1


if __name__ == "__main__":
    raise SystemExit(main())
