"""Weight matrices as the products that use them: dense, 8 bits a weight, 4 bits a weight.

Every form maps rows [rows, in] to rows [rows, out] in the activations' dtype. The weight-only kernels
(`_weight_int8pack_mm`, `_weight_int4pack_mm_for_cpu`) sum each row on its own, so a row's bits do not depend on its
neighbours; above `WEIGHT_ONLY_ROWS` rows a bfloat16 product over widened weights is faster and takes over.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tandem.model.bucket import least_rows, pad_rows
from tandem.model.weights.gguf import StoredTensor
from tandem.model.weights.grouped import Grouped

WEIGHT_ONLY_ROWS: Final = 32  # above it widening the weights once costs less than the row-wise kernels (measured)
_GROUP: Final = 32  # inputs that share one scale in the 4-bit form
_SLICE: Final = 1024  # outputs quantized at a time: what is needed beside the weights stays small
_INT4_OUT_MULTIPLE: Final = 16  # what torch's 4-bit layout asks of the outputs
_INT8_IN_MULTIPLE: Final = 16  # the 8-bit kernel reads inputs 16 at a time and past the end otherwise


class Compute(StrEnum):
    """How weights are held and multiplied."""

    FLOAT32 = "float32"  # the reference
    BFLOAT16 = "bfloat16"
    INT8 = "int8"  # 8 bits a weight, one scale an output
    INT4 = "int4"  # what the file keeps in 4 bits stays so; everything wider is int8

    @property
    def dtype(self) -> torch.dtype:
        """Of activations between products, and of KV rows. The residual stream is float32 in every mode."""
        return torch.float32 if self is Compute.FLOAT32 else torch.bfloat16


class Projection(Protocol):
    """A weight matrix ready to multiply."""

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        ...

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]"""
        ...


class Matrix(Projection, Protocol):
    """A projection whose rows can also be looked up: an embedding that shares its weights with the head."""

    def lookup(self, tokens: Tensor) -> Tensor:
        """int64 [rows] -> rows of the matrix, float32 [rows, in]"""
        ...


class Dense:
    """Weights in the activations' own dtype. Few rows are padded so that their sums keep one order (see `bucket`)."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight  # [out, in]
        self._least_rows = least_rows(lambda rows: functional.linear(rows, weight), weight)

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        count = rows.shape[0]
        if count < self._least_rows:
            return functional.linear(pad_rows(rows, self._least_rows), self.weight)[:count]
        return functional.linear(rows, self.weight)

    def lookup(self, tokens: Tensor) -> Tensor:
        """Rows of the matrix in float32: an embedding that shares its weights with the head."""
        return self.weight.index_select(0, tokens).float()


class Int8:
    """`weight = quantized * scale`, symmetric, one bfloat16 scale an output."""

    def __init__(self, weight: Tensor) -> None:
        """`weight` is float32 [out, in]; `in` must suit `fits`."""
        largest = torch.linalg.vector_norm(weight, ord=torch.inf, dim=1)
        scale = (largest / 127).clamp_min_(torch.finfo(torch.bfloat16).tiny).bfloat16()
        self.quantized = torch.empty(weight.shape, dtype=torch.int8)
        for first in range(0, weight.shape[0], _SLICE):
            part = slice(first, first + _SLICE)
            # Against the scale as stored, so that its own rounding is not added to the weights' error.
            self.quantized[part] = (weight[part] / scale[part, None].float()).round_().clamp_(-127, 127)
        self.scale = scale

    @staticmethod
    def fits(shape: tuple[int, int]) -> bool:
        return shape[1] % _INT8_IN_MULTIPLE == 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.quantized.shape[0], self.quantized.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.shape[0] <= WEIGHT_ONLY_ROWS:
            return torch._weight_int8pack_mm(rows, self.quantized, self.scale)
        product: Tensor = functional.linear(rows, self.quantized.bfloat16())  # int8 is exact in bfloat16
        return torch.mul(product, self.scale, out=product)

    def lookup(self, tokens: Tensor) -> Tensor:
        """Rows of the matrix in float32."""
        scale: Tensor = self.scale.index_select(0, tokens)[:, None].float()
        return self.quantized.index_select(0, tokens) * scale


class Int4:
    """The file's own 4-bit blocks for few rows, an 8-bit copy for many. 1.6 bytes a weight in all."""

    def __init__(self, blocks: Grouped) -> None:
        # torch's kernel reads `(nibble - 8) * scale + zero`, scale and zero interleaved as [in / 32, out, 2].
        factors = torch.stack((blocks.scale, blocks.minimum + 8 * blocks.scale), dim=-1)
        self.factors = factors.transpose(0, 1).contiguous().bfloat16()
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(blocks.numbers.int(), 1)
        scale, minimum = (part.repeat_interleave(_GROUP, dim=1) for part in (blocks.scale, blocks.minimum))
        self.wide = Int8(blocks.numbers * scale + minimum)

    @staticmethod
    def fits(shape: tuple[int, int]) -> bool:
        return shape[0] % _INT4_OUT_MULTIPLE == 0 and shape[1] % _GROUP == 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.wide.shape

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.shape[0] > WEIGHT_ONLY_ROWS:
            return self.wide(rows)
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, _GROUP, self.factors)
        return product


def projection(parts: Sequence[StoredTensor], compute: Compute, order: Tensor | None = None) -> Dense | Int8 | Int4:
    """One matrix of several stored ones, stacked along their outputs: one product in place of many.

    `order` rearranges the outputs of the whole. A matrix whose size a kernel cannot take is held one form wider.
    """
    shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
    if compute is Compute.INT4 and Int4.fits(shape) and all(part.is_four_bit for part in parts):
        blocks = [part.grouped() for part in parts]
        numbers, scale, minimum = (
            _ordered(torch.cat([getattr(block, name) for block in blocks]), order)
            for name in ("numbers", "scale", "minimum")
        )
        return Int4(Grouped(numbers, scale, minimum, bits=4))
    return table(parts, compute, order)


def table(parts: Sequence[StoredTensor], compute: Compute, order: Tensor | None = None) -> Dense | Int8:
    """As `projection`, for a matrix whose rows are also looked up (an embedding)."""
    shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
    weight = _ordered(torch.cat([part.float32() for part in parts]) if len(parts) > 1 else parts[0].float32(), order)
    if compute in (Compute.INT8, Compute.INT4) and Int8.fits(shape):
        return Int8(weight)
    return Dense(weight.to(compute.dtype))


def _ordered(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows if order is None else rows[order]
