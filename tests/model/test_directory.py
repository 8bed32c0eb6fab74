"""Checkpoint directories as people have them: other layouts, other formats, and everything that can be wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import FAMILIES, WINDOW, random_tokens, reference_logits, save
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandem.model.families.architecture import read_architecture
from tandem.model.families.directory import open_checkpoint
from tandem.model.families.fields import Fields
from tandem.model.interface import Block, Wants
from tandem.model.loading import load
from tandem.model.weights.quant import Compute
from tandem.model.weights.safetensors import CONFIG, WrongWeights, read_config

TOKENS = random_tokens(24, 1)


def logits(directory: Path, compute: Compute = Compute.FLOAT32) -> Tensor:
    model = open_checkpoint(directory, compute)
    return model.forward([Block(TOKENS, 0, model.new_state(WINDOW), Wants.ALL)])


def rewrite(directory: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    file = directory / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in change(load_file(file)).items()}, file)


def configure(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = directory / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(change(config) or config))


def test_a_checkpoint_that_also_sees_pictures(tmp_path: Path) -> None:
    """Names one deeper, the text's configuration in an object of its own, parts that are not read."""
    reference = save("qwen35", tmp_path)
    deeper = lambda name: name.replace("model.", "model.language_model.", 1)  # noqa: E731
    extra = {"model.visual.blocks.0.weight": torch.ones(3), "mtp.norm.weight": torch.ones(3)}
    rewrite(tmp_path, lambda tensors: {deeper(name): tensor for name, tensor in tensors.items()} | extra)
    configure(tmp_path, lambda config: {"model_type": "qwen3_5", "text_config": config})
    torch.testing.assert_close(logits(tmp_path), reference_logits(reference, TOKENS), atol=5e-5, rtol=0)


def test_experts_in_one_tensor(tmp_path: Path) -> None:
    reference = save("qwen35-moe", tmp_path)

    def fuse(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        fused = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
        for layer in range(4):
            at = f"model.layers.{layer}.mlp.experts"
            gate, up, down = (
                torch.stack([tensors[f"{at}.{number}.{part}_proj.weight"] for number in range(8)])
                for part in ("gate", "up", "down")
            )
            fused |= {f"{at}.gate_up_proj": torch.cat([gate, up], dim=1), f"{at}.down_proj": down}
        return fused

    rewrite(tmp_path, fuse)
    torch.testing.assert_close(logits(tmp_path), reference_logits(reference, TOKENS), atol=5e-5, rtol=0)


def test_hashing_that_the_checkpoint_does_not_spell_out(tmp_path: Path) -> None:
    reference = save("flashnext", tmp_path)
    rewrite(tmp_path, lambda tensors: {name: each for name, each in tensors.items() if each.dtype != torch.int64})
    torch.testing.assert_close(logits(tmp_path), reference_logits(reference, TOKENS), atol=5e-5, rtol=0)


def test_a_quantized_checkpoint_is_the_checkpoint_of_its_values(tmp_path: Path) -> None:
    """fp8 in blocks: the reference gets the values that the stored ones stand for."""
    block = 16
    reference = save("qwen35", tmp_path)

    def quantize(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        stored = dict(tensors)
        for name, weight in tensors.items():
            if "proj" not in name or weight.dim() != 2 or "in_proj_a" in name or "in_proj_b" in name:
                continue
            out, width = weight.shape
            scales = torch.rand(-(-out // block), -(-width // block)) / 100 + 0.001
            wide = scales.repeat_interleave(block, 0).repeat_interleave(block, 1)[:out, :width]
            values = (weight / wide).clamp(-448, 448).to(torch.float8_e4m3fn)
            stored |= {name: values, f"{name}_scale_inv": scales}
            reference.get_parameter(name).data = values.float() * wide
        return stored

    rewrite(tmp_path, quantize)
    configure(tmp_path, lambda config: config | {"quantization_config": {"weight_block_size": [block, block]}})
    torch.testing.assert_close(logits(tmp_path), reference_logits(reference, TOKENS), atol=5e-5, rtol=0)


@pytest.mark.parametrize("family", ["qwen3", "qwen35", "flashnext"])
@pytest.mark.parametrize(("compute", "worst"), [(Compute.BFLOAT16, 0.15), (Compute.INT8, 0.25)])
def test_narrower_computes_stay_near(tmp_path: Path, family: str, compute: Compute, worst: float) -> None:
    """Root mean square of the difference, in standard deviations of the logits."""
    expected = reference_logits(save(family, tmp_path), TOKENS)
    difference = (logits(tmp_path, compute) - expected).square().mean().sqrt() / expected.std()
    assert 0 < difference < worst


CONFIGURATIONS: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3", {"model_type": "mamba"}, "describes a model of type `mamba`; known are llama, qwen3, qwen3_5,"),
    ("qwen3", {"model_type": None}, "`model_type` is None; it should be a word"),
    ("qwen3", {"hidden_size": "32"}, "`hidden_size` is '32'; it should be a whole number, at least 1"),
    ("qwen3", {"hidden_size": 64}, r"`model.layers.0.input_layernorm.weight` is \[32\], not \[64\]"),
    ("qwen3", {"num_hidden_layers": 4}, r"`model.layers.3.input_layernorm.weight` \[32\] is missing"),
    ("qwen3", {"num_hidden_layers": 2}, r"`model.layers.2.input_layernorm.weight` \[32\] is not part of it"),
    ("qwen3", {"num_key_value_heads": 3}, "cannot be read: 4 heads cannot share 3 KV heads"),
    ("qwen3", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1}}, "its positions are scaled"),
    ("qwen3", {"rope_parameters": {}}, "`rope_parameters.rope_theta` is missing; it should be a number above 0"),
    ("qwen3", {"hidden_act": "gelu"}, "`hidden_act` is 'gelu'; it should be `silu`"),
    ("qwen3", {"use_sliding_window": True}, "its attention sees a sliding window"),
    ("qwen3", {"attention_bias": True}, "its attention has biases"),
    ("qwen35", {"layer_types": ["linear_attention"]}, "it should be 4 of `linear_attention` or `full_attention`"),
    ("qwen35", {"linear_num_key_heads": 3}, "4 value heads cannot share 3 key heads"),
    ("qwen35-moe", {"num_experts_per_tok": 9}, "`num_experts_per_tok` is 9; it should be at most 8"),
    ("flashnext", {"indexer_budget": 26}, "it should be a multiple of `indexer_compress_ratio`, 4"),
    ("flashnext", {"indexer_head_dim": 4}, "it should be at least 8, the numbers of a head that are turned"),
    ("flashnext", {"indexer_n_heads": None}, "`indexer_n_heads` is None; it should be a whole number"),
    ("flashnext", {"ple_layer_ids": [4]}, "`ple_layer_ids` is .*; it should be numbers, from 1, of linear"),
    ("flashnext", {"ple_embed_dim": 25}, "it should be a multiple of the n-gram heads, 6"),
    ("flashnext", {"eos_token_id": None}, "`eos_token_id` is None; it should be a token id"),
    ("flashnext", {"output_gate_type": "tanh"}, "it should be `silu` or `sigmoid`"),
    ("flashnext", {"split_ngram_parts": 5}, "shard_4.weight`, one of 5 parts of a table, is missing"),
    ("flashnext", {"ngram_vocab_size_base": 90}, r"the parts of .* make \[384, 4\], not \[640, 4\]"),
]


@pytest.mark.parametrize(("family", "change", "sentence"), CONFIGURATIONS)
def test_a_configuration_that_is_wrong_is_told_in_a_sentence(
    tmp_path: Path, family: str, change: dict[str, Any], sentence: str
) -> None:
    save(family, tmp_path)
    configure(tmp_path, lambda config: config | change)
    with pytest.raises(WrongWeights) as caught:
        open_checkpoint(tmp_path, Compute.FLOAT32)
    assert re.search(sentence, str(caught.value)), str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_nan_weight_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    save("qwen3", tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"

    def spoil(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        tensors[name][3, 5] = float("nan")
        return tensors

    rewrite(tmp_path, spoil)
    with pytest.raises(WrongWeights, match=f"`{name}` holds a value that is not a number"):
        open_checkpoint(tmp_path, Compute.FLOAT32)
    mapped = Path("/proc/self/maps").read_text()
    assert str(tmp_path) not in mapped


@pytest.mark.parametrize("family", FAMILIES)
def test_the_size_of_a_state_follows_from_the_configuration(tmp_path: Path, family: str) -> None:
    save(family, tmp_path)
    architecture = read_architecture(Fields(tmp_path / CONFIG, read_config(tmp_path)))
    state = open_checkpoint(tmp_path, Compute.FLOAT32).new_state(WINDOW)
    assert state.bytes_a_token == architecture.bytes_a_token(4)
    assert state.fixed_bytes == architecture.fixed_bytes(4)


def test_one_door_for_files_and_directories(tmp_path: Path) -> None:
    reference, threads = save("qwen3", tmp_path), torch.get_num_threads()
    heard: list[float] = []
    try:
        model = load(tmp_path, "float32", threads=1, progress=heard.append)
        read = model.forward([Block(TOKENS, 0, model.new_state(WINDOW), Wants.ALL)])
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(read, reference_logits(reference, TOKENS), atol=5e-5, rtol=0)
    assert heard == sorted(heard) and heard[-1] == 1.0
