"""Does it fit? When not: the sum, the key that is responsible, and changes that would fit, tried by the same sum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tandem.config import Documents
from tandem.config.documents import EngineOnBox, Profile
from tandem.contract.plan import Box
from tandem.errors import DoesNotFit, Place, Problem
from tandem.planner.arithmetic import largest_reservation
from tandem.planner.serving import Serving
from tandem.planner.waterfall import EngineMemory, engine_memory
from tandem.residency.placement import gib


@dataclass(frozen=True, slots=True)
class Need:
    """What serving takes at its worst, and what this box can give it. Bytes."""

    memory: EngineMemory
    reservation: int  # rows one full window may still commit (with the pool; else they are part of the engine)
    available: int
    floor: int

    @property
    def total(self) -> int:
        return self.memory.peak + self.reservation

    @property
    def fits(self) -> bool:
        return self.total + self.floor <= self.available


def check_fit(documents: Documents, box: Box, serving: Serving, floor: int, held: int) -> EngineMemory:
    """The engine's memory when it fits. Raises `DoesNotFit`, and `DoesNotFit` too when a declared peak is too low."""
    seen = documents.residency.engines.get(documents.profile_name)
    available = box.memory_available + held
    need = need_of(documents.profile, serving, seen, available, floor)
    problems = []
    if need.memory.shortfall:
        problems.append(_low_peak(documents, need.memory.shortfall))
    if not need.fits:
        problems.append(_does_not_fit(documents, box, serving, need, seen))
    if problems:
        raise DoesNotFit(tuple(problems), tuple(str(file) for file in documents.files))
    return need.memory


def need_of(profile: Profile, serving: Serving, seen: EngineOnBox | None, available: int, floor: int) -> Need:
    memory = engine_memory(profile, serving, seen)
    reservation = 0
    if serving.kv_pool:
        reservation = largest_reservation(serving.window, serving.margin_rows, serving.bytes_a_token, 0)
    return Need(memory, reservation, available, floor)


def _does_not_fit(
    documents: Documents, box: Box, serving: Serving, need: Need, seen: EngineOnBox | None
) -> Problem:
    slots = f"{serving.count} slot{'s' if serving.count > 1 else ''}"
    every_window = serving.window + (serving.count - 1) * serving.side_window
    if serving.count > 1 and serving.side_window == serving.window and not serving.kv_pool:
        rows = gib(every_window * serving.bytes_a_token)
        message = f"{slots} of {serving.window:,} tokens need {rows} GiB of KV before the first request"
    else:
        message = f"{slots} of `{documents.profile_name}` need {gib(need.total)} GiB"
    message += f"; {box.name} has {gib(need.available)} available and {gib(need.floor)} of it stays free"
    parts = [f"{item.label} {gib(item.bytes)}" for item in need.memory.items]
    if need.reservation:
        parts.append(f"one full window when written {gib(need.reservation)}")
    total = need.total + need.floor
    return Problem(
        "does-not-fit",
        message,
        _responsible(documents),
        (f"{' + '.join(parts)} + floor {gib(need.floor)} = {gib(total)} GiB, {gib(total - need.available)} too much",),
        _fix(documents, serving, need, seen),
    )


def _responsible(documents: Documents) -> Place | None:
    """The caret's place: the slots when the appliance declares them, else the profile."""
    layers = documents.layers
    for path in (("slots", "count"), ("slots", "side_window"), ("memory", "floor"), ("profile",)):
        if (place := layers.place(path)) is not None:
            return place
    return None


def _fix(documents: Documents, serving: Serving, need: Need, seen: EngineOnBox | None) -> str:
    for words, change in _changes(serving):
        tried = need_of(documents.profile, change, seen, need.available, need.floor)
        if tried.fits:
            left = gib(tried.available - tried.total)
            return f"{words} needs {gib(tried.total)} and leaves {left} GiB"
    short = need_of(documents.profile, replace(serving, count=1), seen, need.available, need.floor)
    missing = gib(short.total + short.floor - short.available)
    return f"even one slot lacks {missing} GiB here: close other programs, lower `memory.floor`, or name a smaller profile"


def _changes(serving: Serving) -> Iterator[tuple[str, Serving]]:
    """What a person would try, from the least painful on."""
    if serving.graphs:
        yield "`slots.graphs: off`", replace(serving, graphs=False)
    if not serving.kv_pool:
        yield "`memory.kv_pool: on`, which pays for rows when they are written,", replace(serving, kv_pool=True)
    narrow = serving.side_window
    while serving.count > 1 and (narrow := narrow // 2) >= max(4096, serving.chunk):
        window = replace(serving, side_window=narrow)
        yield f"`slots.side_window: {narrow}`", window
        if serving.graphs:
            yield f"`slots.side_window: {narrow}` with `slots.graphs: off`", replace(window, graphs=False)
    for count in range(serving.count - 1, 0, -1):
        yield f"`slots.count: {count}`", replace(serving, count=count)
        if serving.graphs:
            yield f"`slots.count: {count}` with `slots.graphs: off`", replace(serving, count=count, graphs=False)


def _low_peak(documents: Documents, shortfall: int) -> Problem:
    return Problem(
        "declared-peak",
        f"the declared peak of `{documents.profile_name}` is {gib(shortfall)} GiB less than its parts need",
        documents.place("residency") or documents.place("profile"),
        (f"it is declared in the residency document `{documents.residency_name}`, under `engines`",),
        "raise `peak`, or leave the entry out and the parts are counted",
    )
