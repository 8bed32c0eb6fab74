"""How kernels run: compiled on a device, or step by step in Triton's interpreter, which needs none."""

from __future__ import annotations

from typing import Any, Final

import triton
import triton.language as tl

INTERPRETED: Final = bool(triton.knobs.runtime.interpret)

DOT: Final = tl.float32 if INTERPRETED else tl.bfloat16
"""What matrix units are given. Numbers are bfloat16's either way; the interpreter multiplies only what numpy knows."""

ROWS: Final = 16
"""Rows every pass over the kernels has: the smallest tile of a matrix unit. Fewer are filled up."""


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """The one place where kernels start."""
    kernel[grid](*arguments, **constants)
