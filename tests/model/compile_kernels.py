"""Every kernel as it is launched for the real shapes, compiled for one device generation: `compile_kernels.py 121`.

A process of its own, because kernels are either interpreted or compiled in one. Needs no device: Triton brings the
assembler. Prints a line a kernel; ends badly when one does not compile or asks for more shared memory than there is.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from packing import stored
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from tandem.model.config import AttentionConfig, DeltaConfig, ExpertsConfig
from tandem.model.kernels import attention, delta, experts, products
from tandem.model.kernels.running import INTERPRETED, ROWS
from tandem.model.rounds import RoundTables
from tandem.model.weights.blockscaled import Format
from tandem.model.weights.packed import Packed, plain

POINTERS = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int64: "*i64", torch.uint8: "*u8"}
SHARED = 99 << 10  # bytes a program may have on a GB10; more elsewhere


class Compiling:
    """Stands where kernels are launched."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)
        self._done: set[object] = set()

    def __call__(self, kernel: Any, grid: object, *arguments: Any, **constants: Any) -> None:
        options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
        names = [parameter.name for parameter in kernel.params]
        kinds = {name: self._kind(value) for name, value in zip(names, arguments, strict=False)}
        kinds |= dict.fromkeys(constants, "constexpr")
        key = (kernel.__name__, *map(str, (kinds, constants)))
        if key in self._done:
            return
        self._done.add(key)
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, value in enumerate(arguments)
            if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0)
        }
        known = {(names.index(name),): value for name, value in constants.items()}
        made = compile_kernel(ASTSource(kernel, kinds, known, aligned), target=self._target, options=options)
        print(f"{kernel.__name__}: {made.metadata.shared} bytes shared, {len(made.asm['cubin'])} bytes of code")
        assert made.metadata.shared <= SHARED, "more shared memory than a GB10 has"

    @staticmethod
    def _kind(value: object) -> str:
        if isinstance(value, torch.Tensor):
            return POINTERS[value.dtype]
        return "fp32" if isinstance(value, float) else "i32"


def rows(*shape: int) -> torch.Tensor:
    return torch.zeros(ROWS, *shape)


def main(capability: int) -> None:
    assert not INTERPRETED, "set TRITON_INTERPRET=0"
    compiling = Compiling(capability)
    for module in (attention, delta, experts, products):
        module.launch = compiling  # type: ignore[attr-defined]

    def matrix(format: Format | None, out: int, width: int) -> Packed:
        return stored(format, out, width).packed if format else plain(torch.zeros(out, width, dtype=torch.bfloat16))

    for format in (None, *Format):
        for out, width in ((16_384, 256), (640, 5_120)):
            weight = matrix(format, out, width)
            products.PackedProduct(weight)(rows(width))
            products.widen(weight, slice(0, 128))
        together = experts.PackedExperts(
            matrix(format, 4 * 512, 512), matrix(format, 4 * 512, 256), ExpertsConfig(4, 3, 256, 64)
        )
        together(rows(512), torch.zeros(ROWS, 3, dtype=torch.int64))
    tables = RoundTables(torch.zeros(RoundTables.size((1, 2)), dtype=torch.int64), (1, 2))
    for heads, kv_heads, dim in ((24, 4, 256), (16, 2, 128)):
        config = AttentionConfig(heads, kv_heads, dim, 64, gated=True)
        attention.attend_rows(config, 0, rows(heads, dim), torch.zeros(2, 1, kv_heads, ROWS, dim), tables)
    config = DeltaConfig(key_heads=16, value_heads=48, key_dim=128, value_dim=128, taps=4)
    delta.convolve(rows(config.conv_width).bfloat16(), torch.zeros(config.conv_width, 4), 1, tables)
    brought = delta.RoundRows(rows(16, 128), rows(16, 128), rows(48, 128), rows(48), rows(48))
    delta.recur(config, brought, 1, tables)


if __name__ == "__main__":
    main(int(sys.argv[1]))
