"""What Ollama's clients ask before they chat: `/api/version`, `/api/tags`, `/api/ps`, `/api/show`.

There is one model, it is loaded when the appliance is, and no request changes that.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from tandem.gateway.engine_client import EngineState
from tandem.gateway.ollama_request import LATEST
from tandem.gateway.service import Service
from tandem.text.reasoning import find_reasoning

SPEAKS: Final = "0.13.5"  # the release whose words are spoken: editors refuse those that are older than they need
_NEVER: Final = "9999-12-31T23:59:59Z"


class OllamaVersion(Struct, frozen=True):
    version: str


class ModelDetails(Struct, frozen=True, kw_only=True):
    format: str
    family: str
    families: list[str]
    quantization_level: str
    parameter_size: str = ""
    parent_model: str = ""


class OllamaModel(Struct, frozen=True, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int  # bytes of its files
    digest: str  # sha256 of a file; of a directory, none
    details: ModelDetails


class LoadedModel(OllamaModel, frozen=True, kw_only=True):
    size_vram: int
    context_length: int
    expires_at: str = _NEVER


class OllamaTags(Struct, frozen=True):
    models: list[OllamaModel]


class OllamaLoaded(Struct, frozen=True):
    models: list[LoadedModel]


class ShowRequest(Struct, frozen=True, kw_only=True):
    model: str | None = None
    name: str | None = None  # what `model` was called before
    verbose: Any = None
    system: Any = None
    template: Any = None
    options: Any = None


class OllamaShown(Struct, frozen=True, kw_only=True):
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    template: str
    modified_at: str
    modelfile: str = ""
    parameters: str = ""
    license: str = ""


def tags_of(service: Service) -> OllamaTags:
    return OllamaTags([OllamaModel(**_facts(service))])


def loaded_of(service: Service) -> OllamaLoaded:
    if service.engine.status.state is not EngineState.READY:
        return OllamaLoaded([])
    facts, health = _facts(service), service.engine.health
    resident = health.resident_bytes if health is not None and service.plan.engine.device == "cuda" else 0
    return OllamaLoaded([LoadedModel(size_vram=resident, context_length=service.plan.gateway.window, **facts)])


def shown(wanted: ShowRequest, service: Service) -> OllamaShown:
    """Raises `ApiError` 404 for another model."""
    name = wanted.model if wanted.model is not None else wanted.name
    service.check_model(name.removesuffix(LATEST) if name is not None else None)
    plan, tokenizer = service.plan, service.prompts.tokenizer
    family = plan.engine.family
    return OllamaShown(
        details=_details(service),
        model_info={
            "general.architecture": family,
            "general.basename": plan.gateway.model,
            f"{family}.context_length": plan.gateway.window,
            f"{family}.vocab_size": tokenizer.num_tokens,
        },
        capabilities=["completion", "tools", *(["thinking"] if find_reasoning(tokenizer) is not None else [])],
        template=tokenizer.vocabulary.chat_template,
        modified_at=_started(service),
    )


def _facts(service: Service) -> dict[str, Any]:
    plan = service.plan
    return {
        "name": plan.gateway.model,
        "model": plan.gateway.model,
        "modified_at": _started(service),
        "size": _size(Path(plan.engine.weights)),
        "digest": plan.engine.weights_sha256 or "",
        "details": _details(service),
    }


def _details(service: Service) -> ModelDetails:
    engine = service.plan.engine
    return ModelDetails(
        format="gguf" if engine.weights.endswith(".gguf") else "safetensors",
        family=engine.family,
        families=[engine.family],
        quantization_level=engine.compute,
    )


def _size(weights: Path) -> int:
    files = weights.iterdir() if weights.is_dir() else [weights]
    return sum(file.stat().st_size for file in files if file.is_file())


def _started(service: Service) -> str:
    return datetime.fromtimestamp(int(service.started_at), UTC).isoformat().replace("+00:00", "Z")
