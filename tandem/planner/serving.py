"""How the model will be served: the appliance's word, else the profile's, else the box's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tandem.config import Documents
from tandem.config.documents import SamplingSection, SlotFigures
from tandem.contract.plan import Basis, Box, MemoryItem, SamplingDefaults, SlotPlan
from tandem.planner.arithmetic import element_bytes, kv_bytes_a_token
from tandem.planner.caching import caches_memory
from tandem.planner.drafting import drafting_memory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Serving:
    """Every choice that costs memory, made. `replace(serving, count=2)` is how the planner looks for a fix."""

    compute: str
    device: str
    threads: int
    chunk: int
    window: int
    count: int
    side_window: int
    graphs: bool
    kv_pool: bool
    margin_rows: int
    element: int  # bytes of one element of K or V
    bytes_a_token: int
    figures: SlotFigures
    measured: int | None  # the appliance's own figure for a side slot, which beats the profile's
    drafting: tuple[MemoryItem, ...]  # what guessing takes
    caches: int  # bytes of copies, where nothing else says how far the engine may grow

    @property
    def constant(self) -> MemoryItem:
        """What slot 0 takes beside its rows."""
        figure = self.figures.graphs if self.graphs else self.figures.plain
        return MemoryItem("constant", figure.size, figure.basis, figure.why)

    @property
    def side_constant(self) -> MemoryItem:
        """What a side slot takes beside its rows."""
        if self.measured is None:
            return self.constant
        return MemoryItem("constant", self.measured, Basis.CONFIGURED, "slots.side_constant")

    @property
    def slots(self) -> tuple[SlotPlan, ...]:
        side = [SlotPlan(index, self.side_window, self.side_constant.bytes) for index in range(1, self.count)]
        return (SlotPlan(0, self.window, self.constant.bytes), *side)


def resolve(documents: Documents, box: Box) -> Serving:
    appliance, profile = documents.appliance, documents.profile
    serving, slots = profile.serving, appliance.slots
    compute = chosen(appliance.engine.compute, serving.compute)
    element = element_bytes(profile.kv, compute)
    return Serving(
        compute=compute,
        device=chosen(appliance.engine.device, serving.device),
        threads=chosen(appliance.engine.threads, box.cpus),
        chunk=chosen(appliance.engine.chunk, serving.chunk),
        window=profile.window,
        count=chosen(slots.count, serving.slots),
        side_window=min(chosen(slots.side_window, serving.side_window), profile.window),
        graphs=chosen(slots.graphs, serving.graphs),
        kv_pool=chosen(appliance.memory.kv_pool, serving.kv_pool),
        margin_rows=appliance.memory.kv_margin_rows,
        element=element,
        bytes_a_token=kv_bytes_a_token(profile.kv, element),
        figures=profile.slot,
        measured=slots.side_constant,
        drafting=drafting_memory(documents),
        caches=caches_memory(documents),
    )


def sampling(appliance: SamplingSection, profile: SamplingSection) -> SamplingDefaults:
    neutral = SamplingDefaults()
    said = {
        name: chosen(getattr(appliance, name), getattr(profile, name))
        for name in SamplingSection.model_fields
        if getattr(appliance, name) is not None or getattr(profile, name) is not None
    }
    return SamplingDefaults(**{name: said.get(name, getattr(neutral, name)) for name in SamplingSection.model_fields})


def chosen(first: T | None, otherwise: T) -> T:
    return otherwise if first is None else first
