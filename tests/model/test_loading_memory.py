"""What loading a whole model takes at its worst, and what it leaves behind: half a gigabyte on a real disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_safetensors import cached_pages

LAYERS, HIDDEN, WIDE, HEADS, KV_HEADS, VOCAB = 13, 1024, 4096, 16, 4, 32000
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}

# The peak is the kernel's own, counted anew once a model of one small layer has been loaded and run.
MEASURE = """
import sys
from pathlib import Path
import torch
from tandem.errors import TandemError
from tandem.model import Block, load

def status(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))

torch.set_num_threads(1)
small = load(Path(sys.argv[1], "small"), "bfloat16", threads=1)  # the runtime: torch imports and compiles as it goes
small.forward([Block(torch.tensor([1, 2, 3]), 0, small.new_state(16))])
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
try:
    model = load(Path(sys.argv[1]), "bfloat16", threads=1)
    logits = model.forward([Block(torch.tensor([1, 2, 3]), 0, model.new_state(16))])
    said = str(bool(logits.isfinite().all()))
except TandemError as error:
    said = str(error)
    del error
peak = status("VmHWM") - before
print(peak, status("VmRSS") - before, said, sep="|")
"""


def write(directory: Path, spoil: str | None = None) -> int:
    """The model that is measured, and beside it, in `small`, one of a layer that is not."""
    (directory / "small").mkdir()
    _write(directory / "small", 1, 64, None)
    return _write(directory, LAYERS, VOCAB, spoil)


def _write(directory: Path, count: int, vocab: int, spoil: str | None) -> int:
    """Two shards of random bf16; `spoil` names a tensor that gets a NaN. Returns the bytes of all tensors."""
    generator = torch.Generator().manual_seed(0)

    def matrix(out: int, width: int) -> torch.Tensor:
        return torch.randn(out, width, generator=generator).mul_(width**-0.5).bfloat16()

    head_dim = HIDDEN // HEADS
    shapes = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN)}
    shapes |= dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), (KV_HEADS * head_dim, HIDDEN))
    shapes |= {"mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN), "mlp.down_proj": (HIDDEN, WIDE)}
    ends = {"model.embed_tokens.weight": matrix(vocab, HIDDEN), "lm_head.weight": matrix(vocab, HIDDEN)}
    layers = {"model.norm.weight": torch.ones(HIDDEN).bfloat16()}
    for layer in range(count):
        at = f"model.layers.{layer}"
        layers |= {f"{at}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        norms = ("input_layernorm", "post_attention_layernorm")
        layers |= {f"{at}.{name}.weight": torch.ones(HIDDEN).bfloat16() for name in norms}
    if spoil is not None:
        layers[spoil].view(-1)[7] = float("nan")
    for name, tensors in (("one.safetensors", ends), ("two.safetensors", layers)):
        save_file(tensors, directory / name)
        with (directory / name).open("rb") as stream:
            os.fsync(stream.fileno())  # the kernel keeps pages it has yet to write
    places = {tensor: name for name, held in (("one", ends), ("two", layers)) for tensor in held}
    index = {"weight_map": {tensor: f"{name}.safetensors" for tensor, name in places.items()}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": count, "vocab_size": vocab}))
    return sum(tensor.nbytes for held in (ends, layers) for tensor in held.values())


def measure(directory: Path) -> tuple[int, int, str]:
    """Peak and what stays, both without the runtime, and what became of it."""
    told = subprocess.check_output([sys.executable, "-c", MEASURE, str(directory)], text=True)
    peak, stays, said = told.strip().split("|", 2)
    return int(peak), int(stays), said


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


def test_loading_a_model_takes_its_weights_and_a_tenth_at_most(
    directory: Path, record_property: Callable[[str, object], None]
) -> None:
    weights = write(directory)
    try:
        peak, _, said = measure(directory)
        cached = [cached_pages(directory / name) for name in ("one.safetensors", "two.safetensors")]
    finally:
        for shard in directory.glob("*.safetensors"):
            shard.unlink()
    record_property("peak", f"{peak / weights:.4f} of {weights} bytes")
    assert said == "True"
    assert weights > 500_000_000
    assert peak <= weights * 1.1
    assert max(cached) < 0.05


def test_a_weight_that_is_no_number_leaves_nothing_half_loaded(directory: Path) -> None:
    """Found in the last layer, when all but a few megabytes were there already."""
    name = f"model.layers.{LAYERS - 1}.mlp.down_proj.weight"
    weights = write(directory, spoil=name)
    try:
        peak, stays, said = measure(directory)
        cached = cached_pages(directory / "two.safetensors")  # the other may not have been opened yet
    finally:
        for shard in directory.glob("*.safetensors"):
            shard.unlink()
    assert f"two.safetensors: `{name}` holds a value that is not a number (element 7)" in said
    assert peak > weights * 0.6
    assert stays < weights * 0.02
    assert cached < 0.05
