"""Does it fit? When not: the sum, the key that is responsible, and changes that would fit, tried by the same sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tandem.config import Documents
from tandem.config.documents import EngineOnBox, Profile
from tandem.config.source import KeyPath
from tandem.contract.plan import Box
from tandem.errors import DocumentError, DoesNotFit, Place, Problem
from tandem.planner.arithmetic import largest_reservation
from tandem.planner.serving import Serving
from tandem.planner.waterfall import BESIDE, EngineMemory, engine_memory
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
        return BESIDE.bytes + self.memory.peak + self.reservation

    @property
    def fits(self) -> bool:
        return self.total + self.floor <= self.available


_DIRECTORY: Final = ("bfloat16", "float32", "int8")
_PACKED: Final = ("bfloat16", "fp8", "mxfp8", "nvfp4")
COMPUTES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "cpu": {
        **dict.fromkeys(("llama", "qwen3"), (*_DIRECTORY, "int4")),
        **dict.fromkeys(("qwen35", "flashnext"), _DIRECTORY),
    },
    "cuda": dict.fromkeys(("llama", "qwen3", "qwen35", "flashnext"), _PACKED),
}
"""Number formats this version's engine computes in, by device and family. int4 is a GGUF file's own blocks. A CUDA
device multiplies weights as a checkpoint stores them; the word says how."""


def not_yet(documents: Documents, serving: Serving) -> tuple[Problem, ...]:
    """What this version's engine cannot do yet of what is declared."""
    family, device = documents.profile.family, serving.device
    asked = (
        ("compute", f"computes the `{family}` family on `{device}` in", serving.compute, COMPUTES[device][family]),
    )
    return tuple(
        Problem(
            "not-yet",
            f"no engine of this version {does} `{value}`",
            documents.place("engine", key) or documents.place("profile"),
            (f"it {does} {', '.join(f'`{each}`' for each in known)}",),
            f"write one as `engine.{key}`, or name another profile; `tandem plan --box` prints a plan for this one",
        )
        for key, does, value, known in asked
        if value not in known
    )


def check_served(documents: Documents, box: Box, serving: Serving) -> None:
    """Raises `DocumentError` for what cannot run here. A plan for another box may still be printed."""
    if not box.declared and (problems := not_yet(documents, serving)):
        raise DocumentError(problems, tuple(str(file) for file in documents.files))


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


def _does_not_fit(documents: Documents, box: Box, serving: Serving, need: Need, seen: EngineOnBox | None) -> Problem:
    slots = f"{serving.count} slot{'s' if serving.count > 1 else ''}"
    rows = sum(slot.window for slot in serving.slots) * serving.bytes_a_token
    if not serving.kv_pool and rows + documents.residency.floor > need.available:
        windows = " + ".join(f"{slot.window:,}" for slot in serving.slots)
        if serving.side_window == serving.window:
            windows = f"{serving.window:,}"
        message = f"{slots} of {windows} tokens need {gib(rows)} GiB of KV before the first request"
    else:
        message = f"{slots} of `{documents.profile_name}` need {gib(need.total)} GiB"
    message += f"; {box.name} has {gib(need.available)} available and {gib(need.floor)} of it stays free"
    sides = [item.bytes for item in need.memory.items if item.label.startswith("side slot")]
    parts = [f"{item.label} {gib(item.bytes)}" for item in need.memory.items if not item.label.startswith("side slot")]
    parts.insert(0, f"{BESIDE.label} {gib(BESIDE.bytes)}")
    if sides:
        parts.append(f"{len(sides)} side slot{'s' if len(sides) > 1 else ''} {gib(sum(sides))}")
    if need.reservation:
        parts.append(f"one full window when written {gib(need.reservation)}")
    total = need.total + need.floor
    arithmetic = (
        f"{' + '.join(parts)} + floor {gib(need.floor)} = {gib(total)} GiB, {gib(total - need.available)} too much"
    )
    usual = replace(need, floor=documents.residency.floor)
    if usual.fits:
        place, fix = (
            documents.place("memory", "floor"),
            f"`memory.floor: {gib(usual.floor)} GiB`, as `{documents.residency_name}` has it, would do",
        )
    else:
        place, fix = _fix(documents, serving, need, seen)
    return Problem("does-not-fit", message, place, (arithmetic,), fix)


def _written(documents: Documents, *keys: KeyPath) -> Place | None:
    """Where the first of these keys stands that somebody wrote."""
    return next(filter(None, map(documents.layers.place, keys)), None)


def _fix(documents: Documents, serving: Serving, need: Need, seen: EngineOnBox | None) -> tuple[Place | None, str]:
    """The first two changes that fit, by the same sum that found the document too big, and the place to point at:
    what the first of them changes, else the slots, else the profile, whichever somebody wrote."""

    def tried(change: Serving) -> Need:
        return need_of(documents.profile, change, seen, need.available, need.floor)

    fixes: list[tuple[KeyPath, str]] = []
    for key, changes in _changes(serving):
        words, fit = next(((words, tried(to)) for words, to in changes if tried(to).fits), ("", need))
        if words:
            left = gib(fit.available - fit.total)
            fixes.append((key, f"{words} needs {gib(fit.total)} GiB and leaves {left} available"))
    if fixes:
        other = [key for key, _ in fixes[:1] if key[0] != "slots"]
        place = _written(documents, *other, ("slots", "count"), ("slots", "side_window"), ("profile",))
        return place, "; or ".join(words for _, words in fixes[:2])
    least = tried(replace(serving, count=1, caches=0))
    missing = gib(least.total + least.floor - least.available)
    floor = f"the {gib(least.floor)} GiB that stay free (`memory.floor`)"
    return _written(documents, ("profile",)), (
        f"even one slot lacks {missing} GiB here: close other programs, lower {floor}, "
        f"or name a smaller profile than `{documents.profile_name}`"
    )


def _changes(serving: Serving) -> list[tuple[KeyPath, list[tuple[str, Serving]]]]:
    """What a person would try, key by key, each from the least painful on."""
    plain = replace(serving, graphs=False)
    pool = replace(serving, kv_pool=True)
    off = " with `graphs: off`" if serving.graphs else ""
    widths = [serving.side_window >> shift for shift in range(1, 12)] if serving.count > 1 else []
    return [
        (("caches", "memory"), [("`caches.memory: 0 B`", replace(serving, caches=0))] if serving.caches else []),
        (("slots", "graphs"), [("`slots.graphs: off`", plain)] if serving.graphs else []),
        (
            ("memory", "kv_pool"),
            [("`memory.kv_pool: on` (rows are paid for when written)", pool)] if not serving.kv_pool else [],
        ),
        (
            ("slots", "side_window"),
            [
                (f"`slots.side_window: {width}`{off}", replace(plain, side_window=width))
                for width in widths
                if width >= max(4096, serving.chunk)
            ],
        ),
        (
            ("slots", "count"),
            [(f"`slots.count: {n}`{off}", replace(plain, count=n)) for n in range(serving.count - 1, 0, -1)],
        ),
    ]


def _low_peak(documents: Documents, shortfall: int) -> Problem:
    return Problem(
        "declared-peak",
        f"the declared peak of `{documents.profile_name}` is {gib(shortfall)} GiB less than its parts need",
        documents.place("residency") or documents.place("profile"),
        (f"it is declared in the residency document `{documents.residency_name}`, under `engines`",),
        "raise `peak`, or leave the entry out and the parts are counted",
    )
