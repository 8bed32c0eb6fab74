"""`python -m bench.conversations`: chats that go on, with nothing read twice, and the same with everything read again.

Two chats and the growing prompts of an agent take turns on three slots; after every second turn a title is asked for,
as chat programs do. One appliance serves it as it comes, then again with `cache_prompt: false`, so that nothing is
found again; every text of the one is held against the other's. Then the appliance is restarted, and each conversation
goes on from the disk.

Shared are the rows of a prompt that some earlier prompt and its answer began with: what a perfect memory would know.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import httpx

from bench.appliance import Appliance, DidNotStart, started
from bench.client import Answer, RequestFailed, ask_messages
from bench.machine import facts
from bench.prompts import TOPICS
from bench.record import parser_of, write_record
from bench.turns import progress

SLOTS: Final = 3
LEAST: Final = 0.97  # of what is shared, to be found again
TITLE: Final = "Write a title of at most five words for this conversation."
AGENT: Final = "You are an agent that works through files one after the other. Say in one line what to do next."

Message = dict[str, str]


@dataclass(slots=True)
class Conversation:
    name: str
    messages: list[Message]
    turns: Iterator[str]

    def next_turn(self) -> list[Message]:
        self.messages.append({"role": "user", "content": next(self.turns)})
        return list(self.messages)

    def answered(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. Token counts; seconds."""

    name: str
    prompt: int
    shared: int  # of the prompt, what an earlier one began with
    cached: int  # of the prompt, what was not read again
    first_token: float
    text: str = field(repr=False)


def script(turns: int) -> list[tuple[str, list[str]]]:
    """Who speaks when: (conversation, its user turns). Texts of some hundred tokens, each its own."""
    return [(name, [_said(name, number) for number in range(turns)]) for name in ("chat one", "chat two", "agent")]


def _said(name: str, number: int) -> str:
    start = 7 * number + {"chat one": 0, "chat two": 3, "agent": 5}[name]
    some = [TOPICS[(start + step) % len(TOPICS)] for step in range(12)]
    if name == "agent":
        lines = (
            f"{line + 1:4}  note {start + line}: {topic} was looked at, nothing is left to do there"
            for line, topic in enumerate(some)
        )
        return f"Contents of file {number}:\n" + "\n".join(lines) + "\nWhat next?"
    listed = f"{', '.join(some[:-1])} and {some[-1]}"
    return f"Compare {listed} in the year {1900 + start}: which of them would you keep, and why?"


class Memory:
    """What a server that forgets nothing would know, as the text of prompts."""

    def __init__(self) -> None:
        self._known: list[str] = []

    def shared(self, prompt: str) -> float:
        """The share of the prompt's characters that something known begins with."""
        return max((_common(prompt, known) for known in self._known), default=0) / max(1, len(prompt))

    def learn(self, prompt: str, answer: str) -> None:
        self._known.append(prompt + answer)


def _common(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


async def serve(appliance: Appliance, turns: int, max_tokens: int, caches: bool) -> list[Turn]:
    """The whole script, one request after the other. Raises `RequestFailed`."""
    conversations = [
        Conversation(name, [{"role": "system", "content": AGENT}] if name == "agent" else [], iter(said))
        for name, said in script(turns)
    ]
    memory, done = Memory(), list[Turn]()
    async with httpx.AsyncClient(timeout=httpx.Timeout(120)) as client:
        for number in range(turns):
            for conversation in conversations:
                progress(f"{'caches' if caches else 'no caches'}: {len(done) + 1} requests")
                messages = conversation.next_turn()
                turn, answer = await _ask(client, appliance, conversation.name, messages, max_tokens, memory, caches)
                conversation.answered(answer.text)
                done.append(turn)
            if number % 2:
                chat = conversations[number // 2 % 2]
                title = [*chat.messages[:4], {"role": "user", "content": TITLE}]
                done.append((await _ask(client, appliance, "title", title, 12, memory, caches))[0])
    return done


async def _ask(
    client: httpx.AsyncClient,
    appliance: Appliance,
    name: str,
    messages: list[Message],
    max_tokens: int,
    memory: Memory,
    caches: bool,
) -> tuple[Turn, Answer]:
    rendered = await client.post(f"{appliance.url}/apply-template", json={"messages": messages})
    prompt: str = rendered.raise_for_status().json()["prompt"]
    share = memory.shared(prompt)
    answer = await ask_messages(client, appliance.url, appliance.model, messages, max_tokens, cache_prompt=caches)
    memory.learn(prompt, answer.text)
    shared = min(int(share * answer.prompt_tokens), answer.prompt_tokens - 1)
    return Turn(
        name, answer.prompt_tokens, shared, answer.cached_tokens, answer.first_token_seconds, answer.text
    ), answer


def summary(on: list[Turn], off: list[Turn]) -> dict[str, dict[str, float]]:
    """By who asked: shared and cached rows, medians of the first token's time, and their ratio pair by pair."""
    rows = {}
    for name in (*dict.fromkeys(turn.name for turn in on), "all"):
        pairs = [(a, b) for a, b in zip(on, off, strict=True) if name in (a.name, "all")]
        shared, cached = sum(a.shared for a, _ in pairs), sum(min(a.cached, a.shared) for a, _ in pairs)
        rows[name] = {
            "requests": len(pairs),
            "prompt": sum(a.prompt for a, _ in pairs),
            "shared": shared,
            "cached": cached,
            "found": cached / max(1, shared),
            "first_token_on": median(a.first_token for a, _ in pairs),
            "first_token_off": median(b.first_token for _, b in pairs),
            "first_token_ratio": median(b.first_token / a.first_token for a, b in pairs),
            "different": sum(a.text != b.text for a, b in pairs),
        }
    return rows


def table(rows: dict[str, dict[str, float]]) -> str:
    head = ("who", "requests", "prompt", "shared", "found", "of it", "TTFT ms", "without", "ratio")
    cells = [head] + [
        (
            name,
            f"{row['requests']:.0f}",
            f"{row['prompt']:,.0f}",
            f"{row['shared']:,.0f}",
            f"{row['cached']:,.0f}",
            f"{row['found']:.3f}",
            f"{1000 * row['first_token_on']:.0f}",
            f"{1000 * row['first_token_off']:.0f}",
            f"{row['first_token_ratio']:.2f}",
        )
        for name, row in rows.items()
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


async def after_restart(appliance: Appliance, before: list[Turn], turns: int, max_tokens: int) -> list[Turn]:
    """The last prompt of each conversation once more, of an appliance that has nothing but its disk."""
    answers = {name: [turn.text for turn in before if turn.name == name] for name in ("chat one", "chat two", "agent")}
    done = []
    async with httpx.AsyncClient(timeout=httpx.Timeout(120)) as client:
        for name, said in script(turns):
            messages: list[Message] = [{"role": "system", "content": AGENT}] if name == "agent" else []
            for text, answer in zip(said, answers[name], strict=True):
                messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
            last = await ask_messages(client, appliance.url, appliance.model, messages[:-1], max_tokens)
            done.append(
                Turn(
                    name,
                    last.prompt_tokens,
                    last.prompt_tokens - 1,
                    last.cached_tokens,
                    last.first_token_seconds,
                    last.text,
                )
            )
    return done


def main() -> int:
    parser = parser_of("bench.conversations", __doc__)
    parser.add_argument("--turns", type=int, default=12, help="of each conversation")
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    machine, settings = facts(), tuple(options.set)
    try:
        with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
            state = Path(folder, "state")
            with started(SLOTS, state, settings) as appliance:
                on = asyncio.run(serve(appliance, options.turns, options.max_tokens, caches=True))
                off = asyncio.run(serve(appliance, options.turns, options.max_tokens, caches=False))
                parallel = appliance.health().get("parallel", {})
            with started(SLOTS, state, settings) as appliance:
                again = asyncio.run(after_restart(appliance, on, options.turns, options.max_tokens))
    except (DidNotStart, RequestFailed, httpx.HTTPError) as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    rows = summary(on, off)
    print(f"\n{table(rows)}\n\nafter a restart:")
    for turn in again:
        print(
            f"  {turn.name}: {turn.cached:,} of {turn.prompt:,} tokens not read again, {1000 * turn.first_token:.0f} ms"
        )
    print(f"\n{machine['cpu']}, {machine['cpus']} CPUs; {SLOTS} slots, at most {options.max_tokens} tokens an answer")
    runs = {
        name: [{**asdict(turn), "text": None} for turn in some]
        for name, some in (("on", on), ("off", off), ("restart", again))
    }
    record = {"machine": machine, "rows": rows, "parallel": parallel, "runs": runs}
    print(f"written to {write_record(options.out, 'conversations', record)}")
    wrong = [name for name, row in rows.items() if row["different"]]
    for name in wrong:
        print(f"! {name}: {rows[name]['different']:.0f} texts differ")
    return 1 if wrong or rows["all"]["found"] < LEAST else 0


if __name__ == "__main__":
    raise SystemExit(main())
