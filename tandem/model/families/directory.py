"""From a checkpoint directory to a model: which family reads it, and what it may leave unread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.model.decoder import Decoder
from tandem.model.families import flashnext, qwen3, qwen35
from tandem.model.families.fields import Fields
from tandem.model.weights import checkpoint
from tandem.model.weights.checkpoint import Checkpoint, Source
from tandem.model.weights.quant import Compute
from tandem.model.weights.safetensors import CONFIG, WrongWeights


@dataclass(frozen=True, slots=True)
class Family:
    prepare: Callable[[Fields, Compute], Callable[[Source], Decoder]]
    """What the configuration says, turned into the one function that asks for weights."""

    unread: tuple[str, ...] = ()
    """Names that checkpoints carry for parts this family does not run start with these."""


QWEN35: Final = Family(qwen35.prepare, qwen35.UNREAD)
FLASHNEXT: Final = Family(flashnext.prepare, flashnext.UNREAD)

FAMILIES: Final = {
    "qwen3": Family(qwen3.prepare),
    "qwen3_5": QWEN35,
    "qwen3_5_text": QWEN35,
    "qwen3_5_moe": QWEN35,
    "qwen3_5_moe_text": QWEN35,
    "qwen4_exp": FLASHNEXT,
    "qwen4_exp_text": FLASHNEXT,
}
"""By the `model_type` of config.json."""


def open_checkpoint(
    directory: Path, compute: Compute, progress: Callable[[float], None] = lambda share: None
) -> Decoder:
    """Raises `WrongWeights` before anything is read, unless it is a value itself that is wrong."""
    opened = Checkpoint.open(directory)
    fields = Fields(directory / CONFIG, opened.config)
    kind = fields.word("model_type")
    if kind not in FAMILIES:
        raise WrongWeights(
            f"{fields.file} describes a model of type `{kind}`; known are {', '.join(FAMILIES)}",
            "choose a model of one of these types",
        )
    family = FAMILIES[kind]
    model = checkpoint.load(opened, family.prepare(fields, compute), family.unread, progress)
    _ = model.row_bucket  # measured now, not in the first request
    return model
