"""Quantized checkpoints loaded as a device holds them: the same model as dequantized on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import random_tokens, save
from packing import stored
from safetensors.torch import load_file, save_file
from torch import Tensor

pytest.importorskip("triton")

from tandem.model.decoder import Decoder
from tandem.model.families.directory import open_checkpoint
from tandem.model.interface import Block, Wants
from tandem.model.kernels import attention
from tandem.model.kernels.products import PackedProduct, Side
from tandem.model.kernels.running import INTERPRETED
from tandem.model.placement import Placement
from tandem.model.weights.blockscaled import Format
from tandem.model.weights.packed import Element
from tandem.model.weights.quant import Compute
from tandem.model.weights.safetensors import WrongWeights

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled in this process: tests/gpu tries them")

KERNELS = Placement(torch.device("cpu"), kernels=True)
FORMATS = [Format.FP8_BLOCKS, Format.FP8_ROWS, Format.MXFP8, Format.NVFP4_MODELOPT, Format.NVFP4_COMPRESSED]


def quantize(path: Path, format: Format) -> None:
    """Give every projection random weights in `format`, about as large as they were; small ones stay as they are."""
    file = path / "model.safetensors"
    tensors: dict[str, Tensor] = {}
    for seed, (name, weight) in enumerate(load_file(file).items()):
        if not name.endswith("proj.weight") and not name.endswith(("in_proj_qkv.weight", "in_proj_z.weight")):
            tensors[name] = weight
            continue
        drawn = stored(format, *weight.shape, seed=seed)
        spread = 0.15 / drawn.float32.std()
        match format:
            case Format.FP8_BLOCKS:
                tensors |= {name: drawn.values, f"{name}_scale_inv": drawn.scales * spread}
            case Format.FP8_ROWS:
                tensors |= {name: drawn.values, f"{name}_scale": drawn.scales * spread}
            case Format.MXFP8:
                lower = (drawn.scales + spread.log2().round()).to(torch.uint8)
                tensors |= {name: drawn.values, f"{name}_scale": lower}
            case Format.NVFP4_MODELOPT:
                tensors |= {
                    name: drawn.values,
                    f"{name}_scale": drawn.scales,
                    f"{name}_scale_2": drawn.overall * spread,
                }
            case Format.NVFP4_COMPRESSED:
                tensors |= {
                    f"{name}_packed": drawn.values,
                    f"{name}_scale": drawn.scales,
                    f"{name}_global_scale": drawn.overall / spread,
                }
    save_file(tensors, file)


def says(model: Decoder) -> Tensor:
    state, tokens = model.new_state(64), random_tokens(24, 1)
    read = model.forward([Block(tokens[:20], 0, state, Wants.ALL)])  # widened
    return torch.cat([read, model.forward([Block(tokens[20:], 20, state, Wants.ALL)])])  # as stored


@pytest.mark.parametrize("format", FORMATS)
def test_they_say_what_the_dequantized_model_says(
    format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "SPLITS", 2)  # the interpreter takes a program a time
    save("qwen35", tmp_path)
    quantize(tmp_path, format)
    ours = open_checkpoint(tmp_path, Compute.BFLOAT16, placement=KERNELS)
    expected = says(open_checkpoint(tmp_path, Compute.FLOAT32))
    usual = (says(open_checkpoint(tmp_path, Compute.BFLOAT16)) - expected).abs()
    apart = (says(ours) - expected).abs()
    assert apart.mean() < 1.5 * usual.mean() < 0.1, "as far from float32 as bfloat16 is by itself"
    mixer = ours._layers[0].mixer  # type: ignore[attr-defined]
    assert isinstance(mixer.inputs, Side), "rates and decays stay as they are stored, beside the others"
    assert isinstance(mixer.output, PackedProduct)
    assert mixer.output.weight.element is (Element.E2M1 if "nvfp4" in format else Element.E4M3)


def test_a_value_that_is_not_a_number_is_found(tmp_path: Path) -> None:
    save("qwen3", tmp_path)
    quantize(tmp_path, Format.FP8_ROWS)
    tensors = load_file(tmp_path / "model.safetensors")
    broken = "model.layers.1.self_attn.o_proj.weight"
    tensors[broken].view(torch.uint8)[3, 5] = 0x7F
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WrongWeights, match=rf"`{broken}` holds a value that is not a number \(element {3 * 64 + 5}\)"):
        open_checkpoint(tmp_path, Compute.BFLOAT16, placement=KERNELS)
