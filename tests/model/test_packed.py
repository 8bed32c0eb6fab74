"""Packed matrices stand for what the stored ones do, however they are stacked and rearranged."""

from __future__ import annotations

import pytest
import torch
from packing import stored

from tandem.model.weights.blockscaled import Format
from tandem.model.weights.packed import Packed, plain, stacked

FORMATS = pytest.mark.parametrize("format", list(Format))


def same(packed: Packed, expected: torch.Tensor) -> None:
    assert packed.shape == tuple(expected.shape)
    torch.testing.assert_close(packed.float32(), expected, rtol=1e-6, atol=1e-30)


@FORMATS
def test_its_value_is_the_stored_one_s(format: Format) -> None:
    weight = stored(format, 130, 288)
    same(weight.packed, weight.float32)


@FORMATS
@pytest.mark.parametrize("outs", [(128, 256, 40), (40, 128)])
def test_stacked(format: Format, outs: tuple[int, ...]) -> None:
    """Blocks stay blocks while they end where matrices do."""
    parts = [stored(format, out, 288, seed) for seed, out in enumerate(outs)]
    whole = stacked([part.packed for part in parts])
    same(whole, torch.cat([part.float32 for part in parts]))
    assert (whole.rows_a_scale > 1) == (format is Format.FP8_BLOCKS and outs[0] == 128)


@FORMATS
def test_rearranged_and_looked_up(format: Format) -> None:
    weight = stored(format, 130, 288)
    order = torch.randperm(130, generator=torch.Generator().manual_seed(1))
    same(weight.packed.rearranged(order), weight.float32[order])
    torch.testing.assert_close(weight.packed.lookup(order[:3]), weight.float32[order[:3]], rtol=1e-6, atol=1e-30)


def test_it_takes_what_the_file_takes() -> None:
    weight = stored(Format.NVFP4_MODELOPT, 128, 256).packed
    assert weight.bytes == 128 * 256 // 2 + 128 * 256 // 16 + 128 * 4
    assert plain(torch.zeros(8, 16, dtype=torch.bfloat16)).bytes == 256
