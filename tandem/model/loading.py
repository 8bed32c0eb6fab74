"""From weights on disk to a model that can run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from tandem.errors import CannotStart
from tandem.model.families.directory import open_checkpoint
from tandem.model.families.file import open_file
from tandem.model.heap import give_back, pages_of_their_own
from tandem.model.interface import Model
from tandem.model.placement import place
from tandem.model.weights.blockscaled import Format, recognise
from tandem.model.weights.gguf import GgufFile
from tandem.model.weights.quant import Compute
from tandem.model.weights.safetensors import read_directory

_PACKED: Final = {
    "fp8": {Format.FP8_BLOCKS, Format.FP8_ROWS},
    "mxfp8": {Format.MXFP8},
    "nvfp4": {Format.NVFP4_MODELOPT, Format.NVFP4_COMPRESSED},
}
"""By what a plan calls it."""


def load(
    path: Path,
    compute: str,
    threads: int,
    progress: Callable[[float], None] = lambda share: None,
    device: str = "cpu",
    mtp: bool = False,
    graphs: bool = True,
    state: Path | None = None,
) -> Model:
    """Read `path` and make it ready to run with `compute` (a `Compute` value) on `device`, on `threads` threads.

    `path` is a GGUF file or a checkpoint directory (`config.json` and safetensors). With `mtp` its head that guesses
    ahead is loaded as well, where it has one (`Model.mtp`); every state then has room for it. With `graphs` rounds are
    captured and replayed where the device can. With `state`, a folder, weights that are packed for the native step are
    packed once: what they become is kept there for later loads.

    Sets torch's thread count for the process: row bits are measured, and promised, for that count. `progress`
    hears the loaded share, 0 to 1. Raises `CannotStart` with one sentence for a file that is missing, truncated,
    of another architecture, or whose tensors are not what the architecture needs, and for a device that is not there.
    """
    torch.set_num_threads(threads)
    placement = place(device, graphs)
    if path.is_dir():
        held = _as_stored(path, compute) if placement.kernels else Compute(compute)
        with pages_of_their_own():
            return open_checkpoint(path, held, progress, placement, mtp, state)
    if placement.kernels:
        raise CannotStart(
            f"a model in a GGUF file runs on the CPU only, and the plan says `{device}` for {path}",
            "set `engine.device: cpu`, or serve the model from a directory of safetensors",
        )
    with GgufFile(path) as file:
        model = open_file(file, Compute(compute), progress, state)
    _ = model.row_bucket  # measured now, not in the first request
    give_back()
    progress(1.0)
    return model


def _as_stored(directory: Path, compute: str) -> Compute:
    """What a device computes in: bfloat16, over weights in the format that `compute` names.

    Raises `CannotStart` when no weight of the checkpoint is stored in it.
    """
    if compute in _PACKED:
        entries = read_directory(directory)
        stored = (recognise(name.removesuffix("_packed"), entries) for name in entries)
        formats = {each.format for each in stored if each is not None}
        if not formats & _PACKED[compute]:
            raise CannotStart(
                f"the plan computes in `{compute}`, and no weight in {directory} is stored so",
                f"write `engine.compute: {next((c for c, f in _PACKED.items() if f & formats), 'bfloat16')}`",
            )
    return Compute.BFLOAT16
