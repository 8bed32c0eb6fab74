"""From a checkpoint directory to a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tandem.model.decoder import Decoder
from tandem.model.families import flashnext, llama, qwen3, qwen35
from tandem.model.families.architecture import read_architecture, with_mtp
from tandem.model.families.fields import Fields
from tandem.model.placement import HOST, Placement
from tandem.model.rope import Rope
from tandem.model.weights import checkpoint
from tandem.model.weights.checkpoint import Checkpoint
from tandem.model.weights.quant import Compute
from tandem.model.weights.safetensors import CONFIG

_BUILDERS: Final = {"llama": llama.build, "qwen3": qwen3.build, "qwen35": qwen35.build, "flashnext": flashnext.build}

PICTURES: Final = "model.visual."
MTP: Final = "mtp."
"""Names of tensors that may be there: what sees pictures is never read, the head that guesses ahead when wanted."""


def open_checkpoint(
    directory: Path,
    compute: Compute,
    progress: Callable[[float], None] = lambda share: None,
    placement: Placement = HOST,
    mtp: bool = False,
) -> Decoder:
    """With `mtp` the head that guesses ahead comes along, where the checkpoint has one.

    Raises `WrongWeights` before anything is read, unless it is a value itself that is wrong.
    """
    opened = Checkpoint.open(directory)
    fields = Fields(directory / CONFIG, opened.config)
    architecture = read_architecture(fields)
    if mtp and any(name.startswith(MTP) for name in opened.entries):
        architecture = with_mtp(architecture, fields)
    unread = (PICTURES,) if architecture.mtp else (PICTURES, MTP)
    build = _BUILDERS[architecture.family]
    model_config, turned = architecture.model, architecture.attention.rope_dim
    rope = Rope(turned, model_config.rope_base, model_config.window, device=placement.device)
    model = checkpoint.load(
        opened, lambda source: build(source, architecture, compute, rope), unread, progress, placement
    )
    _ = model.row_bucket  # measured now, not in the first request
    return model
