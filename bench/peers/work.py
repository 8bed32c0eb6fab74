"""What every server is asked, and one run of it. The same prompts and token counts for all; greedy.

Prose: an essay on another topic each time (`bench.prompts`), one, two and four at once. Long: a diary of about 1,500
tokens, for the time to the first piece of text. Edit: a file written again with one change (`bench.edits`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import httpx

from bench.client import LONGEST, Answer, RequestFailed, ask
from bench.edits import edit
from bench.peers.quiet import Patience, now
from bench.peers.servers import Server, asked
from bench.prompts import TOPICS, long_prompt, prompt
from bench.turns import LEVELS, WARM_UP, in_turns, progress

SLOTS: Final = max(LEVELS)


@dataclass(frozen=True, slots=True)
class Work:
    """`clients` requests of one kind, sent at once, each with another topic."""

    kind: str
    clients: int
    tokens: int  # of each answer
    make: Callable[[str], str]

    def __str__(self) -> str:
        return f"{self.kind}, {self.clients} at once"


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one work on one server. Times are seconds."""

    server: str
    kind: str
    clients: int
    repetition: int
    total: float  # from the first request sent to the last answer complete
    writing: float  # from the first piece of text to the last
    tokens: int  # written, all clients together, as the server counts them
    wanted: int  # the same, when every answer is as long as was asked for
    first_tokens: tuple[float, ...]  # to the first piece of text, a client each
    prompt_tokens: int  # all clients together
    cached_tokens: int  # of them, not read again
    others: float  # processors that somebody else used meanwhile

    @property
    def invalid(self) -> str | None:
        """Why this run does not count; None when it does."""
        return None if self.tokens == self.wanted else "an answer ended before its last token"


def works(quick: bool) -> list[Work]:
    """`quick`: answers of 32 tokens."""
    tokens, edited = (32, 32) if quick else (128, 224)
    prose = [Work("prose", clients, tokens, prompt) for clients in LEVELS]
    return [*prose, Work("long", 1, 8, long_prompt), Work("edit", 1, edited, edit)]


def for_memory(quick: bool) -> Work:
    """What every slot has to hold something for, before it is told what the process takes."""
    return Work("long", SLOTS, 32 if quick else 128, long_prompt)


def most_repetitions() -> int:
    """There are no more topics: none is asked twice, for a server may know the answer."""
    return len(TOPICS) // sum(LEVELS)


async def measure(
    servers: Sequence[Server],
    plan: Sequence[Work],
    repetitions: int,
    patience: Patience,
    leave_out: Callable[[str, Exception], None],
) -> list[Sample]:
    """Every work on every server in turns, in reverse at every other repetition.

    A peer that fails is left out from then on, which `leave_out` is told. Raises `RequestFailed` for tandem.
    """
    topics: dict[str, Iterator[str]] = {work.kind: iter(TOPICS) for work in plan}
    samples: list[Sample] = []
    failed: set[str] = set()
    async with _client() as client:
        for repetition in range(repetitions):
            begun = time.monotonic()
            for work in in_turns(plan, repetition):
                prompts = [work.make(next(topics[work.kind])) for _ in range(work.clients)]
                for server in in_turns(servers, repetition):
                    if server.name in failed or not server.does(work.kind):
                        continue
                    progress(f"repetition {repetition + 1} of {repetitions}: {work}, {server.name}")
                    await patience.wait()
                    try:
                        samples.append(await run(client, server, work, prompts, repetition))
                    except RequestFailed as why:
                        if server.appliance is not None:
                            raise
                        failed.add(server.name)
                        leave_out(server.name, why)
            progress(f"repetition {repetition + 1} of {repetitions} took {time.monotonic() - begun:.0f} s")
    return samples


async def run(client: httpx.AsyncClient, server: Server, work: Work, prompts: Sequence[str], repetition: int) -> Sample:
    """Raises `RequestFailed`."""
    with asked(server):
        await ask(client, server.url, server.model, "Count to ten.", WARM_UP, **server.more)
        before, ours = now(), server.cpu_seconds() + time.process_time()
        answers: Sequence[Answer] = await asyncio.gather(
            *(ask(client, server.url, server.model, each, work.tokens, **server.more) for each in prompts)
        )
        others = now().processors(before, server.cpu_seconds() + time.process_time() - ours)
    return Sample(
        server=server.name,
        kind=work.kind,
        clients=work.clients,
        repetition=repetition,
        total=max(answer.last for answer in answers) - min(answer.sent for answer in answers),
        writing=max(answer.last for answer in answers) - min(answer.first for answer in answers),
        tokens=sum(answer.tokens for answer in answers),
        wanted=work.clients * work.tokens,
        first_tokens=tuple(answer.first_token_seconds for answer in answers),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
        others=others,
    )


async def fill(server: Server, work: Work) -> None:
    """Once, with topics from the end, which no repetition has asked. Raises `RequestFailed`."""
    async with _client() as client:
        await run(client, server, work, [work.make(topic) for topic in TOPICS[-work.clients :]], 0)


def _client() -> httpx.AsyncClient:
    """A connection a request: a server that was suspended would close those that waited meanwhile."""
    return httpx.AsyncClient(timeout=httpx.Timeout(LONGEST), limits=httpx.Limits(max_keepalive_connections=0))


def idle_processors(server: Server, seconds: float = 2.0) -> float:
    """What it takes while nobody asks it, as it stands: a peer is suspended then."""
    before = server.cpu_seconds()
    time.sleep(seconds)
    return (server.cpu_seconds() - before) / seconds
