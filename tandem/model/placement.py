"""Where a model's tensors lie, and who multiplies them.

On a CPU weights are made what torch multiplies best. On a CUDA device they stay as they are stored, and passes of a
few rows run on the kernels of `tandem.model.kernels`.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from tandem.errors import CannotStart


@dataclass(frozen=True, slots=True)
class Placement:
    device: torch.device
    kernels: bool  # few rows go through our own kernels, which read quantized weights as they are stored
    graphs: bool = False  # and are captured once, then replayed


HOST: Final = Placement(torch.device("cpu"), kernels=False)


def place(device: str, graphs: bool = True) -> Placement:
    """`cpu` or `cuda`, with `graphs` where it can.

    Raises `CannotStart` where the device, or what drives it, is not there.
    """
    if device == "cpu":
        return HOST
    if not torch.cuda.is_available():
        raise CannotStart(
            f"the plan runs the engine on `{device}`, and this machine has no CUDA device that torch "
            f"{torch.__version__} can use",
            "set `engine.device: cpu`; or install the NVIDIA driver and a torch that is built for CUDA",
        )
    if find_spec("triton") is None:
        raise CannotStart(
            "the engine's CUDA kernels need triton, which is not installed", "pip install 'tandem-appliance[cuda]'"
        )
    if not _can_build():
        raise CannotStart(
            "triton builds its launchers on this machine, and finds no C compiler or no headers of this Python",
            "install them: apt install gcc python3-dev",
        )
    return Placement(torch.device(device, 0), kernels=True, graphs=graphs)


def _can_build() -> bool:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return compiler is not None and (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A small host tensor on `device`, without waiting for what the device is doing."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # a copy from pageable memory would wait for the stream
    return tensor.to(device, non_blocking=True)
