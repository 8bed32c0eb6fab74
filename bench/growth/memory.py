"""What the engine's process holds, by the length of its conversations and by its slots: beside `bench.kv_memory`,
which holds the same figures against what they should be."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.growth.curves import Axis, Curve, Line, line
from bench.kv_memory import SLOTS, Moment, answered, at_rest, engine_of, moment, plan_of, prompt_of
from bench.turns import progress
from tandem.contract.channel import connect
from tandem.units import MIB

LENGTHS: Final = (64, 1_024, 4_096, 8_000)  # rows of each conversation
LENGTH: Final = 4_096  # while slots grow
KINDS: Final = {"reserved": "reserved", "committed": "committed", "resident": "RSS since the start"}


def measure(settings: Sequence[str], *, is_quick: bool) -> tuple[Curve, ...]:
    """Raises `DidNotStart`."""
    lengths, length, slots = (LENGTHS[:2], LENGTHS[1], (1, 2)) if is_quick else (LENGTHS, LENGTH, (1, 2, SLOTS))
    progress(f"memory: {SLOTS} conversations, {len(lengths)} lengths")
    by_length: dict[float, Moment] = dict(zip(lengths, _grown(settings, SLOTS, lengths), strict=True))
    by_slots: dict[float, Moment] = {}
    for many in slots:
        progress(f"memory: {many} slots")
        by_slots[many] = _grown(settings, many, (length,))[0]
    mib = Axis("MiB")
    return (
        Curve(f"Memory of {SLOTS} conversations", Axis("rows of each"), mib, _lines(by_length)),
        Curve(f"Memory of conversations of {length:,} rows", Axis("slots, all of them taken"), mib, _lines(by_slots)),
    )


def _grown(settings: Sequence[str], slots: int, lengths: Sequence[int]) -> list[Moment]:
    """While every slot is answered, for each of the lengths; what the process held before is taken off."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        plan = plan_of(Path(folder), True, settings, slots)
        with engine_of(plan) as socket:
            return asyncio.run(_live_through(socket, slots, lengths))


async def _live_through(socket: Path, slots: int, lengths: Sequence[int]) -> list[Moment]:
    channel = await connect(socket)
    try:
        first = moment("at start", await at_rest(socket))
        found: list[Moment] = []
        for number, length in enumerate(lengths):
            prompts = [prompt_of(slots * number + slot, length) for slot in range(slots)]
            now = moment(f"{length}", await answered(channel, socket, prompts), is_at_rest=False)
            found.append(Moment(now.when, now.reserved, now.committed, now.resident - first.resident, False))
        return found
    finally:
        channel.close()


def _lines(found: dict[float, Moment]) -> tuple[Line, ...]:
    return tuple(
        line(name, {x: [getattr(each, field)] for x, each in found.items()}, 1 / MIB) for field, name in KINDS.items()
    )
