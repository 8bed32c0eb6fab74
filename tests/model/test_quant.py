"""Packed weights against the matrices they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tandem.model.weights.grouped import Grouped
from tandem.model.weights.quant import WEIGHT_ONLY_ROWS, Dense, Int4, Int8

OUT, IN = 48, 96


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def four_bit() -> Grouped:
    generator = torch.Generator().manual_seed(1)
    return Grouped(
        numbers=torch.randint(0, 16, (OUT, IN), generator=generator, dtype=torch.uint8),
        scale=torch.rand(OUT, IN // 32, generator=generator) + 0.5,
        minimum=-8 * torch.rand(OUT, IN // 32, generator=generator),
        bits=4,
    )


def matrix(blocks: Grouped) -> Tensor:
    scale, minimum = (part.repeat_interleave(32, dim=1) for part in (blocks.scale, blocks.minimum))
    return blocks.numbers * scale + minimum


def relative(product: Tensor, expected: Tensor) -> float:
    return ((product.float() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("rows", [1, 5, WEIGHT_ONLY_ROWS, WEIGHT_ONLY_ROWS + 1])
class TestProducts:
    def test_eight_bits(self, rows: int) -> None:
        weight, x = random(OUT, IN), random(rows, IN, seed=1).bfloat16()
        assert relative(Int8(weight)(x), x.float() @ weight.T) < 0.012

    def test_four_bits(self, rows: int) -> None:
        blocks, x = four_bit(), random(rows, IN, seed=1).bfloat16()
        assert relative(Int4(blocks)(x), x.float() @ matrix(blocks).T) < 0.012

    def test_dense(self, rows: int) -> None:
        weight, x = random(OUT, IN), random(rows, IN, seed=1)
        torch.testing.assert_close(Dense(weight)(x), x @ weight.T)


def test_eight_bits_are_nearest() -> None:
    """Every weight within half a step of its own, but for the largest, which the stored scale may cut a little."""
    weight = random(OUT, IN)
    packed = Int8(weight)
    step = packed.scale.float()[:, None]
    error = (packed.quantized * step - weight).abs()
    assert (error <= torch.where(packed.quantized.abs() == 127, step, step / 2 + 1e-6)).all()


def test_an_output_of_zeros_stays_zero() -> None:
    weight = random(OUT, IN)
    weight[3] = 0
    assert (Int8(weight)(random(2, IN).bfloat16())[:, 3] == 0).all()


def test_lookup_is_the_row_of_the_matrix() -> None:
    weight, tokens = random(OUT, IN), torch.tensor([7, 0, 7])
    assert torch.equal(Dense(weight).lookup(tokens), weight[tokens])
    assert relative(Int8(weight).lookup(tokens), weight[tokens]) < 0.01
    assert Int8(weight).lookup(tokens).dtype is torch.float32
