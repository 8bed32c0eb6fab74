"""From a checkpoint directory to a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from tandem.model.families import dense, flashnext, llama, qwen3, qwen35
from tandem.model.families.architecture import Architecture, read_architecture, with_mtp
from tandem.model.families.fields import Fields
from tandem.model.families.header import FAMILIES
from tandem.model.families.names import Names
from tandem.model.interface import Model
from tandem.model.native import store
from tandem.model.native.blocks import Blocks, round_to_eight, round_to_sixteen, stacked
from tandem.model.native.store import Wrap
from tandem.model.placement import HOST, Placement
from tandem.model.rope import Rope
from tandem.model.weights import checkpoint
from tandem.model.weights.checkpoint import Checkpoint, Source
from tandem.model.weights.quant import Compute
from tandem.model.weights.safetensors import CONFIG

log = logging.getLogger("tandem.engine")

_BUILDERS: Final = {"llama": llama.build, "qwen3": qwen3.build, "qwen35": qwen35.build, "flashnext": flashnext.build}

NAMES: Final = Names(
    embedding="model.embed_tokens",
    head="lm_head",
    last_norm="model.norm",
    layer="model.layers.{}.",
    attention_norm="input_layernorm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    query_norm="self_attn.q_norm",
    key_norm="self_attn.k_norm",
    attention_output="self_attn.o_proj",
    feed_forward_norm="post_attention_layernorm",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down="mlp.down_proj",
)

PICTURES: Final = "model.visual."
MTP: Final = "mtp."
"""Names of tensors that may be there: what sees pictures is never read, the head that guesses ahead when wanted."""


def open_checkpoint(
    directory: Path,
    compute: Compute,
    progress: Callable[[float], None] = lambda share: None,
    placement: Placement = HOST,
    mtp: bool = False,
    state: Path | None = None,
) -> Model:
    """With `mtp` the head that guesses ahead comes along, where the checkpoint has one. `state`: see `loading`.

    Raises `WrongWeights` before anything is read, unless it is a value itself that is wrong.
    """
    opened = Checkpoint.open(directory)
    fields = Fields(directory / CONFIG, opened.config)
    architecture = read_architecture(fields)
    if mtp and any(name.startswith(MTP) for name in opened.entries):
        architecture = with_mtp(architecture, fields)
    unread = (PICTURES,) if architecture.mtp else (PICTURES, MTP)
    config, turned = architecture.model, architecture.attention.rope_dim
    rope = Rope(turned, config.rope_base, config.window, device=placement.device)
    why = why_in_torch(architecture, compute, placement)
    if why is None:
        read = partial(
            dense.read, config, names=NAMES, tied=architecture.tied, normed=FAMILIES[architecture.family].normed
        )

        def pack(wrap: Wrap) -> dense.Parts:
            return checkpoint.load(
                opened, lambda source: read(wrap(StoredWeights(source, compute))), unread, progress, placement
            )

        return dense.build(config, store.read(state, directory, compute, pack, read), rope, turn_halves=True)
    log.info("passes run in torch: %s", why)
    build = _BUILDERS[architecture.family]
    model = checkpoint.load(
        opened, lambda source: build(source, architecture, compute, rope), unread, progress, placement
    )
    _ = model.row_bucket  # measured now, not in the first request
    return model


def why_in_torch(architecture: Architecture, compute: Compute, placement: Placement) -> str | None:
    """As `dense.why_in_torch`, of a directory's model."""
    if placement.device != HOST.device or placement.kernels:
        return "what lies on a device is multiplied there"
    if architecture.family not in FAMILIES:
        return f"the native step knows {' and '.join(FAMILIES)}, and this is {architecture.family}"
    if architecture.attention.rope_dim != architecture.attention.head_dim:
        return "only part of a head is turned"
    return dense.why_in_torch(architecture.model, compute)


class StoredWeights:
    """Implements `dense.Weights`: bfloat16, or 8 bits a group of 32."""

    def __init__(self, source: Source, compute: Compute) -> None:
        self._source = source
        self._is_wide = compute is Compute.BFLOAT16

    def matrix(self, width: int, parts: Sequence[tuple[str, int]]) -> Blocks:
        return stacked([self._packed(f"{name}.weight", outputs, width) for name, outputs in parts])

    def norm(self, name: str, width: int) -> Tensor:
        return self._source.take(f"{name}.weight", width, dtype=torch.float32)

    def _packed(self, name: str, outputs: int, width: int) -> Blocks:
        if self._is_wide:
            return round_to_sixteen(self._source.take(name, outputs, width, dtype=torch.bfloat16))
        return round_to_eight(self._source.take(name, outputs, width, dtype=torch.float32))
