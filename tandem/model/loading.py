"""From weights on disk to a model that can run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from tandem.errors import CannotStart
from tandem.model.families import llama
from tandem.model.families.directory import open_checkpoint
from tandem.model.interface import Model
from tandem.model.placement import place
from tandem.model.weights.gguf import GgufFile
from tandem.model.weights.quant import Compute

_GGUF_FAMILIES: Final = {"llama": llama.read}


def load(
    path: Path,
    compute: str,
    threads: int,
    progress: Callable[[float], None] = lambda share: None,
    device: str = "cpu",
    mtp: bool = False,
) -> Model:
    """Read `path` and make it ready to run with `compute` (a `Compute` value) on `device`, on `threads` threads.

    `path` is a GGUF file or a checkpoint directory (`config.json` and safetensors). With `mtp` its head that guesses
    ahead is loaded as well, where it has one (`Model.mtp`); every state then has room for it.

    Sets torch's thread count for the process: row bits are measured, and promised, for that count. `progress`
    hears the loaded share, 0 to 1. Raises `CannotStart` with one sentence for a file that is missing, truncated,
    of another architecture, or whose tensors are not what the architecture needs, and for a device that is not there.
    """
    torch.set_num_threads(threads)
    placement = place(device)
    if path.is_dir():
        return open_checkpoint(path, Compute(compute), progress, placement, mtp)
    if placement.kernels:
        raise CannotStart(
            f"a model in a GGUF file runs on the CPU only, and the plan says `{device}` for {path}",
            "set `engine.device: cpu`, or serve the model from a directory of safetensors",
        )
    with GgufFile(path) as file:
        if file.architecture not in _GGUF_FAMILIES:
            raise CannotStart(
                f"{path} holds a model of architecture `{file.architecture}`; known are {', '.join(_GGUF_FAMILIES)}"
            )
        model = _GGUF_FAMILIES[file.architecture](file, Compute(compute), progress)
    _ = model.row_bucket  # measured now, not in the first request
    _trim_heap()
    progress(1.0)
    return model


def _trim_heap() -> None:
    """Loading leaves tens of MiB of holes between the weights; glibc hands them back, but only when asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
