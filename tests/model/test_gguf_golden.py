"""Every block format of GGUF against its definition, spelled out weight by weight: neither numpy nor the `gguf`
package, which the reader uses, has a part in what is expected."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from tandem.model.weights.gguf import SUPPORTED, GgufFile
from tandem.model.weights.grouped import BITS

Block = bytes
ROWS, BLOCKS = 2, 3


def half(block: Block, at: int) -> float:
    value: float = struct.unpack_from("<e", block, at)[0]
    return value


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def q4_0(block: Block) -> Iterator[float]:
    for at in range(32):
        yield half(block, 0) * ((block[2 + at % 16] >> 4 * (at // 16) & 15) - 8)


def q4_1(block: Block) -> Iterator[float]:
    for at in range(32):
        yield half(block, 0) * (block[4 + at % 16] >> 4 * (at // 16) & 15) + half(block, 2)


def fifth_bit(block: Block, first: int, at: int) -> int:
    return int.from_bytes(block[first : first + 4], "little") >> at & 1


def q5_0(block: Block) -> Iterator[float]:
    for at in range(32):
        low = block[6 + at % 16] >> 4 * (at // 16) & 15
        yield half(block, 0) * (low + 16 * fifth_bit(block, 2, at) - 16)


def q5_1(block: Block) -> Iterator[float]:
    for at in range(32):
        low = block[8 + at % 16] >> 4 * (at // 16) & 15
        yield half(block, 0) * (low + 16 * fifth_bit(block, 4, at)) + half(block, 2)


def q8_0(block: Block) -> Iterator[float]:
    for at in range(32):
        yield half(block, 0) * signed(block[2 + at])


# Blocks of 256: eight runs of 32 in all but the order in which their bits lie, or sixteen of 16 with a scale each.


def q2_k(block: Block) -> Iterator[float]:
    """16 bytes of scales (low half) and minima (high half), 64 of weights, two factors."""
    for at in range(256):
        stored = block[16 + 32 * (at // 128) + at % 32] >> 2 * (at % 128 // 32) & 3
        scale = block[at // 16]
        yield half(block, 80) * (scale & 15) * stored - half(block, 82) * (scale >> 4)


def q3_k(block: Block) -> Iterator[float]:
    """32 bytes of high bits, 64 of low pairs, 12 of six-bit scales about 32, a factor."""
    for at in range(256):
        low = block[32 + 32 * (at // 128) + at % 32] >> 2 * (at % 128 // 32) & 3
        high = block[at % 32] >> (at // 32) & 1
        run = at // 16
        scale = block[96 + run % 8] >> 4 * (run // 8) & 15 | (block[104 + run % 4] >> 2 * (run // 4) & 3) << 4
        yield half(block, 108) * (scale - 32) * (low + 4 * high - 4)


def scale_and_minimum(block: Block, run: int) -> tuple[int, int]:
    """Of the eight runs of Q4_K and Q5_K: six bits each, in 12 bytes behind the two factors."""
    packed = block[4:16]
    if run < 4:
        return packed[run] & 63, packed[run + 4] & 63
    return packed[run + 4] & 15 | packed[run - 4] >> 6 << 4, packed[run + 4] >> 4 | packed[run] >> 6 << 4


def q4_k(block: Block) -> Iterator[float]:
    for at in range(256):
        run = at // 32
        scale, minimum = scale_and_minimum(block, run)
        stored = block[16 + 32 * (run // 2) + at % 32] >> 4 * (run % 2) & 15
        yield half(block, 0) * scale * stored - half(block, 2) * minimum


def q5_k(block: Block) -> Iterator[float]:
    for at in range(256):
        run = at // 32
        scale, minimum = scale_and_minimum(block, run)
        stored = block[48 + 32 * (run // 2) + at % 32] >> 4 * (run % 2) & 15
        fifth = block[16 + at % 32] >> run & 1
        yield half(block, 0) * scale * (stored + 16 * fifth) - half(block, 2) * minimum


def q6_k(block: Block) -> Iterator[float]:
    """128 bytes of low halves, 64 of high pairs, 16 signed scales, a factor."""
    for at in range(256):
        side, run = at // 128, at % 128 // 32
        low = block[64 * side + 32 * (run % 2) + at % 32] >> 4 * (run // 2) & 15
        high = block[128 + 32 * side + at % 32] >> 2 * run & 3
        yield half(block, 208) * signed(block[192 + at // 16]) * ((low | high << 4) - 32)


GOLDEN: dict[Kind, tuple[Callable[[Block], Iterator[float]], tuple[int, ...]]] = {  # and where halves lie
    Kind.Q4_0: (q4_0, (0,)),
    Kind.Q4_1: (q4_1, (0, 2)),
    Kind.Q5_0: (q5_0, (0,)),
    Kind.Q5_1: (q5_1, (0, 2)),
    Kind.Q8_0: (q8_0, (0,)),
    Kind.Q2_K: (q2_k, (80, 82)),
    Kind.Q3_K: (q3_k, (108,)),
    Kind.Q4_K: (q4_k, (0, 2)),
    Kind.Q5_K: (q5_k, (0, 2)),
    Kind.Q6_K: (q6_k, (208,)),
}


def test_every_block_format_that_is_read_is_here() -> None:
    assert set(GOLDEN) == SUPPORTED - {Kind.F32, Kind.F16, Kind.BF16}


@pytest.mark.parametrize("kind", GOLDEN)
def test_a_weight_is_what_its_format_says(tmp_path: Path, kind: Kind) -> None:
    read, halves = GOLDEN[kind]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    drawn = random.Random(kind.value)
    blocks = []
    for _ in range(ROWS * BLOCKS):
        block = bytearray(drawn.randbytes(size))
        for at in halves:
            block[at : at + 2] = struct.pack("<e", drawn.uniform(-0.5, 0.5))
        blocks.append(bytes(block))
    path = tmp_path / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("matrix", np.frombuffer(b"".join(blocks), np.uint8).reshape(ROWS, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile(path) as file:
        weights = file.tensors["matrix"].float32()
        matrix = file.tensors["matrix"].grouped() if file.tensors["matrix"].bits else None
    expected = [weight for block in blocks for weight in read(block)]
    assert weights.flatten().tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert (matrix is not None) == (kind.name in BITS)
    if matrix is not None:
        scale, minimum = (each.repeat_interleave(32, dim=1) for each in (matrix.scale, matrix.minimum))
        assert int(matrix.numbers.max()) < 2**matrix.bits
        assert (matrix.numbers * scale + minimum).flatten().tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("kind", "mantissa", "bias"), [(Kind.F16, 10, 15), (Kind.BF16, 7, 127)])
def test_narrow_floats(tmp_path: Path, kind: Kind, mantissa: int, bias: int) -> None:
    """Bits to value from the definition; the exponent is what is left between sign and mantissa."""
    drawn = random.Random(kind.value)
    exponents = (1 << 15 - mantissa) - 1
    numbers = [drawn.randrange(1 << 16) for _ in range(64)]
    finite = [bits for bits in numbers if bits >> mantissa & exponents not in (exponents, 0)][:32]
    path = tmp_path / "one.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("matrix", np.array(finite, np.uint16).view(np.uint8).reshape(1, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile(path) as file:
        weights = file.tensors["matrix"].float32()

    def value(bits: int) -> float:
        fraction = 1 + (bits & (1 << mantissa) - 1) / (1 << mantissa)
        return (-1.0 if bits >> 15 else 1.0) * fraction * 2.0 ** ((bits >> mantissa & exponents) - bias)

    assert weights.flatten().tolist() == [value(bits) for bits in finite]
