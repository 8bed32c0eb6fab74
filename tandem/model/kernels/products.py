"""Products with packed weights: rows [16, in] x weight [out, in], read as it is stored.

A program owns `OUTPUTS` outputs and a fixed stretch of the inputs and goes through it in steps of `INPUTS`. Where one
stretch a program would leave most of a device idle, the inputs are split in as many parts as the matrix' shape says,
and the parts are added in order. Small floats are exact in bfloat16, also times an NVFP4 or MXFP8 scale, so the
products are those of the dequantized weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from tandem.model.bucket import pad_rows
from tandem.model.kernels.running import DOT, ROWS, launch
from tandem.model.weights.packed import Element, Packed, Scale

OUTPUTS: Final = 32
INPUTS: Final = {Element.BF16: 128, Element.E4M3: 128, Element.E2M1: 256}
"""Of a step: 4 to 8 KiB of weights, of which a few steps are under way at a time."""
_PROGRAMS: Final = 512  # a large device is busy with so many
_SLICE: Final = 8192  # outputs that are widened at a time for a product of many rows


class PackedProduct:
    """Implements `quant.Matrix`."""

    def __init__(self, weight: Packed) -> None:
        self.weight = weight
        self._splits = splits(weight)

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape

    def __call__(self, rows: Tensor) -> Tensor:
        count = rows.shape[0]
        if count <= ROWS:
            filled = rows if count == ROWS else pad_rows(rows, ROWS)
            return multiply(filled.bfloat16().contiguous(), self.weight, self._splits)[:count]
        product = rows.new_empty(count, self.shape[0], dtype=torch.bfloat16)
        for first in range(0, self.shape[0], _SLICE):
            some = slice(first, min(first + _SLICE, self.shape[0]))
            product[:, some] = functional.linear(rows.bfloat16(), widen(self.weight, some))
        return product

    def lookup(self, tokens: Tensor) -> Tensor:
        """float32 [rows, in]"""
        return self.weight.lookup(tokens)


class Side:
    """Products of the same rows, their outputs side by side: parts of one matrix that are stored in different ways."""

    def __init__(self, products: Sequence[PackedProduct]) -> None:
        self._products = products

    @property
    def shape(self) -> tuple[int, int]:
        return sum(each.shape[0] for each in self._products), self._products[0].shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        return torch.cat([each(rows) for each in self._products], dim=1)

    def lookup(self, tokens: Tensor) -> Tensor:
        raise AssertionError("a table is stored in one way")


def splits(weight: Packed) -> int:
    """Into how many parts the inputs are cut: a power of two, by the matrix' shape and kind alone."""
    out, width = weight.shape
    tiles, steps, parts = -(-out // OUTPUTS), -(-width // INPUTS[weight.element]), 1
    while tiles * parts < _PROGRAMS and steps >= 8 * parts:
        parts *= 2
    return parts


def multiply(rows: Tensor, weight: Packed, parts: int) -> Tensor:
    """bfloat16 [16, in] -> bfloat16 [16, out]"""
    out, width = weight.shape
    product = torch.empty(ROWS, out, dtype=torch.bfloat16, device=rows.device)
    partial = torch.empty(parts, ROWS, out, dtype=torch.float32, device=rows.device) if parts > 1 else product
    launch(
        _multiply,
        (triton.cdiv(out, OUTPUTS), parts),
        rows,
        weight.values,
        given(weight.scales),
        given(weight.factor),
        partial,
        out,
        width,
        **constants(weight),
        SPLITS=parts,
        ROWS=ROWS,
        DOT=DOT,
        num_warps=4,
        num_stages=4,
    )
    if parts > 1:
        block = 256
        launch(
            _add_parts,
            (ROWS, triton.cdiv(out, block)),
            partial,
            given(weight.factor),
            product,
            out,
            SPLITS=parts,
            ROWS=ROWS,
            FACTOR=weight.factor is not None,
            BLOCK=block,
        )
    return product


def widen(weight: Packed, outputs: slice) -> Tensor:
    """bfloat16 [some outputs, in]. `outputs` starts at a multiple of a scale's rows."""
    if weight.element is Element.BF16:
        return weight.values[outputs]
    out, width = outputs.stop - outputs.start, weight.shape[1]
    wide = torch.empty(out, width, dtype=torch.bfloat16, device=weight.values.device)
    scales = weight.scales
    if scales is not None:
        scales = scales[outputs.start // weight.rows_a_scale :]
    factor = None if weight.factor is None else weight.factor[outputs]
    launch(
        _widen,
        (triton.cdiv(out, OUTPUTS), triton.cdiv(width, INPUTS[weight.element])),
        weight.values[outputs],
        given(scales),
        given(factor),
        wide,
        out,
        width,
        **constants(weight),
        FACTOR=weight.factor is not None,
    )
    return wide


def given(tensor: Tensor | None) -> Tensor | int:
    return 0 if tensor is None else tensor  # a kernel that has no use for it does not look


def constants(weight: Packed) -> dict[str, int]:
    return {
        "ELEMENT": int(weight.element),
        "SCALE": int(weight.scale),
        "SCALE_ROWS": weight.rows_a_scale,
        "SCALE_INPUTS": weight.inputs_a_scale or INPUTS[weight.element],
        "OUTPUTS": OUTPUTS,
        "INPUTS": INPUTS[weight.element],
    }


_E4M3: tl.constexpr = tl.constexpr(int(Element.E4M3))
_E2M1: tl.constexpr = tl.constexpr(int(Element.E2M1))
_FLOAT_SCALE: tl.constexpr = tl.constexpr(int(Scale.FLOAT32))
_POWER_SCALE: tl.constexpr = tl.constexpr(int(Scale.E8M0))
_SMALL_SCALE: tl.constexpr = tl.constexpr(int(Scale.E4M3))


@triton.jit
def small_float(codes):
    """e2m1 in the low four bits -> float16: its exponent and mantissa are those of a float16 2^14 times smaller."""
    bits = ((codes & 7) << 9) | ((codes & 8) << 12)
    return (bits.to(tl.int16).to(tl.float16, bitcast=True) * 16384.0).to(tl.float16)


@triton.jit
def scale_tile(
    scales,
    output,
    start,
    a_row,
    inside,
    SCALE: tl.constexpr,
    SCALE_INPUTS: tl.constexpr,
    TILE: tl.constexpr,
    REPEAT: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Scales of `TILE` inputs from `start` on, each repeated `REPEAT` times: float32 [OUTPUTS, TILE's values]."""
    count: tl.constexpr = TILE // SCALE_INPUTS
    place = start // SCALE_INPUTS + tl.arange(0, count)
    mask = inside[:, None] & (place < a_row)[None, :]
    raw = tl.load(scales + output[:, None] * a_row + place[None, :], mask=mask, other=0)
    if SCALE == _POWER_SCALE:
        scale = (raw.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    else:
        scale = raw.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    spread = tl.broadcast_to(scale[:, :, None], [OUTPUTS, count, REPEAT])
    return tl.reshape(spread, [OUTPUTS, count * REPEAT])


@triton.jit
def _multiply(
    rows,
    values,
    scales,
    factor,
    answer,
    out,
    width,
    ELEMENT: tl.constexpr,
    SCALE: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    DOT: tl.constexpr,
):
    output = tl.program_id(0).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    total = dot_stretch(
        rows + row[:, None] * width,
        values,
        scales,
        output,
        output < out,
        width,
        tl.program_id(1),
        ELEMENT,
        SCALE,
        SCALE_ROWS,
        SCALE_INPUTS,
        OUTPUTS,
        INPUTS,
        SPLITS,
        ROWS,
        DOT,
    )
    inside = (output < out)[None, :]
    place = row[:, None] * out + output[None, :]
    if SPLITS == 1:
        if ELEMENT == _E2M1 or (ELEMENT == _E4M3 and SCALE == 0):
            total = total * tl.load(factor + output, mask=output < out, other=0.0)[None, :]
        tl.store(answer + place, total.to(tl.bfloat16), mask=inside)
    else:
        tl.store(answer + tl.program_id(1).to(tl.int64) * ROWS * out + place, total, mask=inside)


@triton.jit
def dot_stretch(
    rows,
    values,
    scales,
    output,
    inside,
    width,
    part,
    ELEMENT: tl.constexpr,
    SCALE: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    DOT: tl.constexpr,
):
    """float32 [ROWS, OUTPUTS]: the share of one stretch of the inputs. `rows` are pointers [ROWS, 1]."""
    steps = tl.cdiv(width, INPUTS)
    stretch = tl.cdiv(steps, SPLITS)
    first = part * stretch
    total = tl.zeros([ROWS, OUTPUTS], dtype=tl.float32)
    a_row = tl.cdiv(width, SCALE_INPUTS)
    for step in range(first, tl.minimum(first + stretch, steps)):
        start = step * INPUTS
        if ELEMENT == _E2M1:
            half = tl.arange(0, INPUTS // 2)
            byte = start // 2 + half
            known = inside[:, None] & (byte < width // 2)[None, :]
            both = tl.load(values + output[:, None] * (width // 2) + byte[None, :], mask=known, other=0).to(tl.int32)
            scale = scale_tile(
                scales, output, start, a_row, inside, SCALE, SCALE_INPUTS, INPUTS, SCALE_INPUTS // 2, OUTPUTS
            )
            early = (small_float(both & 15).to(tl.float32) * scale).to(tl.bfloat16).to(DOT)
            late = (small_float(both >> 4).to(tl.float32) * scale).to(tl.bfloat16).to(DOT)
            place = start + tl.arange(0, INPUTS)
            given = tl.load(rows + place[None, :], mask=(place < width)[None, :], other=0.0)
            left, right = tl.split(tl.reshape(given, [ROWS, INPUTS // 2, 2]))  # of even and of odd inputs
            total = tl.dot(left.to(DOT), tl.trans(early), total, input_precision="ieee")
            total = tl.dot(right.to(DOT), tl.trans(late), total, input_precision="ieee")
        else:
            place = start + tl.arange(0, INPUTS)
            known = inside[:, None] & (place < width)[None, :]
            raw = tl.load(values + output[:, None] * width + place[None, :], mask=known, other=0)
            given = tl.load(rows + place[None, :], mask=(place < width)[None, :], other=0.0).to(DOT)
            if ELEMENT == _E4M3:
                number = raw.to(tl.float8e4nv, bitcast=True).to(tl.bfloat16)
            else:
                number = raw
            if SCALE == _POWER_SCALE:
                scale = scale_tile(
                    scales, output, start, a_row, inside, SCALE, SCALE_INPUTS, INPUTS, SCALE_INPUTS, OUTPUTS
                )
                number = (number.to(tl.float32) * scale).to(tl.bfloat16)
            if SCALE == _FLOAT_SCALE:
                product = tl.dot(given, tl.trans(number.to(DOT)), input_precision="ieee")
                scale = tl.load(scales + output // SCALE_ROWS * a_row + step, mask=inside, other=0.0)
                total += product * scale[None, :]
            else:
                total = tl.dot(given, tl.trans(number.to(DOT)), total, input_precision="ieee")
    return total


@triton.jit
def _add_parts(
    partial, factor, answer, out, SPLITS: tl.constexpr, ROWS: tl.constexpr, FACTOR: tl.constexpr, BLOCK: tl.constexpr
):
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = output < out
    place = tl.program_id(0) * out + output
    total = tl.load(partial + place, mask=inside, other=0.0)
    for part in range(1, SPLITS):
        total += tl.load(partial + part * ROWS * out + place, mask=inside, other=0.0)
    if FACTOR:
        total = total * tl.load(factor + output, mask=inside, other=0.0)
    tl.store(answer + place, total.to(tl.bfloat16), mask=inside)


@triton.jit
def _widen(
    values,
    scales,
    factor,
    wide,
    out,
    width,
    ELEMENT: tl.constexpr,
    SCALE: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    SCALE_INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    FACTOR: tl.constexpr,
):
    output = tl.program_id(0).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = output < out
    start = tl.program_id(1) * INPUTS
    a_row = tl.cdiv(width, SCALE_INPUTS)
    place = start + tl.arange(0, INPUTS)
    known = inside[:, None] & (place < width)[None, :]
    if ELEMENT == _E2M1:
        byte = start // 2 + tl.arange(0, INPUTS // 2)
        held = inside[:, None] & (byte < width // 2)[None, :]
        both = tl.load(values + output[:, None] * (width // 2) + byte[None, :], mask=held, other=0).to(tl.int32)
        number = tl.interleave(small_float(both & 15), small_float(both >> 4)).to(tl.float32)
    else:
        raw = tl.load(values + output[:, None] * width + place[None, :], mask=known, other=0)
        number = raw.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    if SCALE == _FLOAT_SCALE:
        scale = tl.load(scales + output // SCALE_ROWS * a_row + tl.program_id(1), mask=inside, other=0.0)
        number = number * scale[:, None]
    elif SCALE != 0:
        number = number * scale_tile(
            scales, output, start, a_row, inside, SCALE, SCALE_INPUTS, INPUTS, SCALE_INPUTS, OUTPUTS
        )
    if FACTOR:
        number = number * tl.load(factor + output, mask=inside, other=0.0)[:, None]
    tl.store(wide + output[:, None] * width + place[None, :], number.to(tl.bfloat16), mask=known)
