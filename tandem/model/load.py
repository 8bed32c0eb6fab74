"""From a weights file to a model that can run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tandem.model.interface import Model


def load(path: Path, compute: str, threads: int, progress: Callable[[float], None] = lambda share: None) -> Model:
    """Read `path` (GGUF) and make it ready to run with `compute` (float32 | bfloat16 | int8) on `threads` threads.

    Sets torch's thread count for the process: row bits are measured, and promised, for that count. `progress`
    hears the loaded share, 0 to 1. Raises `CannotStart` with one sentence for a file that is missing, truncated,
    of another architecture, or whose tensors are not what the architecture needs.
    """
    raise NotImplementedError
