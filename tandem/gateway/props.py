"""`/props` and `/slots`, which tools for llama.cpp ask for. Never a token of anybody's, never a text."""

from __future__ import annotations

from importlib.metadata import version

from msgspec import Struct

from tandem.gateway.errors import RETRY_SOON, ApiError
from tandem.gateway.service import Service


class DefaultParams(Struct, frozen=True):
    """What a request gets that names nothing."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repeat_penalty: float
    n_predict: int


class DefaultSettings(Struct, frozen=True):
    n_ctx: int
    params: DefaultParams


class Modalities(Struct, frozen=True):
    vision: bool = False
    audio: bool = False


class Props(Struct, frozen=True, kw_only=True):
    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str  # its name; where it lies is nobody's business
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    modalities: Modalities = Modalities()


class SlotShown(Struct, frozen=True):
    id: int
    n_ctx: int
    is_processing: bool
    state: str
    n_past: int  # rows that are held
    request: str | None  # its id


def props_of(service: Service) -> Props:
    plan, sampling, limits = service.plan, service.live.sampling, service.live.limits
    vocabulary = service.prompts.tokenizer.vocabulary
    params = DefaultParams(
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.min_p,
        sampling.repetition_penalty,
        limits.default_max_tokens,
    )
    return Props(
        default_generation_settings=DefaultSettings(plan.gateway.window, params),
        total_slots=len(plan.engine.slots),
        model_alias=plan.gateway.model,
        model_path=plan.gateway.model,
        chat_template=vocabulary.chat_template,
        bos_token=vocabulary.text_of(vocabulary.bos),
        eos_token=vocabulary.text_of(vocabulary.eos),
        build_info=f"tandem {version('tandem-appliance')}",
    )


async def slots_of(service: Service) -> list[SlotShown]:
    """Raises `ApiError` 503 while there is no engine."""
    status = await service.engine.refresh(max_age=0.5, timeout=0.5)
    health = service.engine.health
    if health is None:
        raise ApiError(503, "loading", status.sentence, retry_after=RETRY_SOON, source="engine")
    return [
        SlotShown(slot.index, slot.window, slot.request is not None, slot.state, slot.rows, slot.request)
        for slot in health.slots
    ]
