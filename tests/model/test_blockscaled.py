"""Quantized formats against golden values spelled out element by element, bit patterns included."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tandem.model.weights.checkpoint import Checkpoint, load
from tandem.model.weights.safetensors import WrongWeights


def minifloat(byte: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    """The value of a small float, from its definition."""
    mantissa = byte & ((1 << mantissa_bits) - 1)
    exponent = byte >> mantissa_bits & ((1 << exponent_bits) - 1)
    sign = -1.0 if byte >> (mantissa_bits + exponent_bits) else 1.0
    if exponent == 0:
        return sign * mantissa / (1 << mantissa_bits) * 2.0 ** (1 - bias)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


def e4m3(byte: int) -> float:
    return minifloat(byte, 4, 3, 7)


def e2m1(nibble: int) -> float:
    return minifloat(nibble, 2, 1, 1)


def random_bytes(*shape: int, seed: int = 0) -> Tensor:
    """Every finite e4m3 pattern may occur; 0x7f and 0xff are its NaN."""
    drawn = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return torch.where(drawn & 0x7F == 0x7F, drawn - 1, drawn)


def read(directory: Path, tensors: dict[str, Tensor], *shape: int, config: str = "{}") -> Tensor:
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(config)
    return load(Checkpoint.open(directory), lambda source: source.take("a.weight", *shape))


@pytest.mark.parametrize("block", [(128, 128), (4, 8)])
def test_fp8_in_blocks(tmp_path: Path, block: tuple[int, int]) -> None:
    out, width = 10 if block[0] == 4 else 130, 20 if block[1] == 8 else 140
    values = random_bytes(out, width)
    scales = torch.rand(
        math.ceil(out / block[0]), math.ceil(width / block[1]), generator=torch.Generator().manual_seed(1)
    )
    ours = read(
        tmp_path,
        {"a.weight": values.view(torch.float8_e4m3fn), "a.weight_scale_inv": scales},
        out,
        width,
        config=f'{{"quantization_config": {{"quant_method": "fp8", "weight_block_size": {list(block)}}}}}',
    )
    for row in range(out):
        for column in range(width):
            scale = scales[row // block[0], column // block[1]].item()
            assert ours[row, column].item() == pytest.approx(e4m3(int(values[row, column])) * scale, rel=1e-6)


@pytest.mark.parametrize("shape", [(), (1,), (6, 1), (6,)])
def test_fp8_by_rows_or_as_a_whole(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values, scales = random_bytes(6, 10), torch.rand(shape, generator=torch.Generator().manual_seed(1))
    ours = read(tmp_path, {"a.weight": values.view(torch.float8_e4m3fn), "a.weight_scale": scales}, 6, 10)
    flat = scales.flatten()
    for row in range(6):
        scale = flat[row if len(flat) > 1 else 0].item()
        assert ours[row].tolist() == pytest.approx([e4m3(int(byte)) * scale for byte in values[row]], rel=1e-6)


def test_mxfp8(tmp_path: Path) -> None:
    values = random_bytes(3, 64)
    powers = torch.tensor([[127, 120], [130, 1], [100, 140]], dtype=torch.uint8)
    ours = read(tmp_path, {"a.weight": values.view(torch.float8_e4m3fn), "a.weight_scale": powers}, 3, 64)
    for row in range(3):
        expected = [e4m3(int(byte)) * 2.0 ** (int(powers[row, at // 32]) - 127) for at, byte in enumerate(values[row])]
        assert ours[row].tolist() == expected


@pytest.mark.parametrize("naming", ["modelopt", "compressed-tensors"])
def test_nvfp4_in_both_namings(tmp_path: Path, naming: str) -> None:
    packed, scales = random_bytes(4, 24), random_bytes(4, 3, seed=1) & 0x7F
    tensors = {"a.weight_scale": scales.view(torch.float8_e4m3fn), "a.input_scale": torch.tensor(1.0)}
    if naming == "modelopt":
        tensors |= {"a.weight": packed, "a.weight_scale_2": torch.tensor(0.0125)}
        overall = 0.0125
    else:
        tensors |= {"a.weight_packed": packed, "a.weight_global_scale": torch.tensor([80.0])}
        overall = 1 / 80
    ours = read(tmp_path, tensors, 4, 48)
    for row in range(4):
        for column in range(48):
            byte = int(packed[row, column // 2])
            value = e2m1(byte & 15 if column % 2 == 0 else byte >> 4)
            expected = value * e4m3(int(scales[row, column // 16])) * overall
            assert ours[row, column].item() == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_e2m1_has_these_values() -> None:
    """The golden decoder itself, against the table of the format's specification."""
    assert [e2m1(nibble) for nibble in range(8)] == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert (e4m3(0x7E), e4m3(0x01), e4m3(0xB8)) == (448.0, 2.0**-9, -1.0)


def test_a_scale_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    tensors = {"a.weight": random_bytes(4, 64).view(torch.float8_e4m3fn), "a.weight_scale_inv": torch.ones(2, 1)}
    with pytest.raises(WrongWeights, match=r"`a\.weight_scale_inv` is \[2, 1\]; .* in fp8-blocks needs \[1, 1\]"):
        read(tmp_path, tensors, 4, 64)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"a.weight": random_bytes(2, 4).view(torch.float8_e4m3fn)}, "has no scale beside it"),
        ({"a.weight_packed": random_bytes(2, 8)}, "lacks a scale beside it"),
    ],
)
def test_values_without_scales_are_refused(tmp_path: Path, tensors: dict[str, Tensor], sentence: str) -> None:
    with pytest.raises(WrongWeights, match=sentence):
        read(tmp_path, tensors, 2, 16)


def test_a_nan_among_quantized_values_is_found(tmp_path: Path) -> None:
    values = random_bytes(200, 128)
    values[150, 3] = 0x7F
    tensors = {"a.weight": values.view(torch.float8_e4m3fn), "a.weight_scale_inv": torch.ones(2, 1)}
    with pytest.raises(WrongWeights, match=r"`a\.weight` holds a value that is not a number \(element 19,203\)"):
        read(tmp_path, tensors, 200, 128)
