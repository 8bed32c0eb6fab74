"""Made-up traffic with the figures of a box that was watched for seven days: an agent whose prompts are 103,000 tokens
at the median and who asks for 65,536 more, and a chat whose prompts are 19,000 and who asks for 32,768. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp
from random import Random
from statistics import NormalDist
from typing import Final

from tandem.engine.replay import Arrival

LONGEST: Final = 220_000  # tokens of a prompt: clients fold their history before a window of 262,144 is full
DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    middle: int  # tokens of the median prompt
    spread: float  # of the logarithm
    max_tokens: int
    writes: int  # tokens at the median
    head: int  # system prompt and tools
    turns: int  # of a conversation
    pause: float  # seconds between two turns, at the median
    titles: bool


CONDUCTOR: Final = 8_192 + 64  # rows of a chat's answer that the conductor kept for itself
# The chat's spread is the one at which a window of 65,536 has room for 57 % of its prompts and all that is asked for
# behind them, as it was measured; the agent's is narrow, as its sessions are long.
AGENT: Final = Client("opencode", 103_000, 0.22, 65_536, 300, 7_400, 25, 8.0, titles=False)
CHAT: Final = Client("open-webui", 19_000, 1.44, 32_768 + CONDUCTOR, 600, 6_700, 5, 60.0, titles=True)


def lengths(client: Client, count: int) -> list[int]:
    """Quantiles of the client's prompts: the same ones every time, shortest first."""
    at = NormalDist().inv_cdf
    return [min(LONGEST, round(client.middle * exp(client.spread * at((n + 0.5) / count)))) for n in range(count)]


def two_clients(requests: int = 1_000, seed: int = 0) -> list[Arrival]:
    """So many requests of each, over two days; titles come on top. Each conversation's prompts grow, each one beginning
    with the one before."""
    random = Random(seed)
    found = [arrival for client in (AGENT, CHAT) for arrival in _of_client(client, requests, random)]
    return sorted(found, key=lambda arrival: (arrival.at, arrival.id))


def _of_client(client: Client, requests: int, random: Random) -> Iterator[Arrival]:
    conversations = max(1, requests // client.turns)
    drawn = lengths(client, conversations * client.turns)
    for number in range(conversations):
        grown = drawn[number::conversations]  # a slice of all lengths, shortest first
        at = random.uniform(0.0, 2 * DAY)
        pieces, so_far = list[tuple[str, int]](), 0
        head = min(client.head, grown[0] // 2)
        for turn, length in enumerate(grown):
            if turn == 0:
                pieces += [(f"{client.name} head {head}", head), (f"{client.name} {number}.0", grown[0] - head)]
            elif length > so_far:
                pieces.append((f"{client.name} {number}.{turn}", length - so_far))
            so_far = length
            writes = max(1, round(client.writes * exp(random.gauss(0.0, 0.6))))
            id, prompt = f"{client.name}-{number}.{turn}", tuple(pieces)
            head_end = head + min(200, grown[0] - head)
            yield Arrival(id, round(at, 1), prompt, client.max_tokens, head_end, client.name, writes)
            if client.titles and turn == 0:
                title = ((f"title of {id}", 450),)
                yield Arrival(f"{id}-title", round(at + 20.0, 1), title, 1_000, 450, client.name, 12, task=True)
            at += client.pause * exp(random.gauss(0.0, 0.8)) + writes / 20
