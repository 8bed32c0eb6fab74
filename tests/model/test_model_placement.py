"""Every family on another device: all of its tensors there, and nothing in a pass waits for it.

The device is torch's `meta`, which has shapes and no values: asking it for a value raises, as waiting would cost.
Kernels do not start here; what they are given is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import FAMILIES, random_tokens, save
from tiny_llama import TinyLlama
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

from tandem.errors import CannotStart
from tandem.model.decoder import Decoder
from tandem.model.families import directory, reading
from tandem.model.families.architecture import read_architecture
from tandem.model.families.fields import Fields
from tandem.model.interface import Block, Wants
from tandem.model.kernels import attention, delta, experts, products
from tandem.model.loading import load
from tandem.model.placement import HOST, Placement, place
from tandem.model.rope import Rope
from tandem.model.tree import Tree
from tandem.model.weights.checkpoint import Checkpoint, Survey
from tandem.model.weights.packed import plain
from tandem.model.weights.quant import Compute
from tandem.model.weights.safetensors import CONFIG

ELSEWHERE = Placement(torch.device("meta"), kernels=True)


class OneDevice(TorchDispatchMode):
    """No operation mixes devices, and nothing comes back."""

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        given = [each for each in tree_leaves((arguments, keywords)) if isinstance(each, Tensor) and each.dim()]
        devices = {each.device.type for each in given}
        if operation is torch.ops.aten.copy_.default:
            assert not (arguments[0].device.type == "cpu" and "meta" in devices), "a value came back to the host"
        elif operation is torch.ops.aten._to_copy.default:
            assert given[0].device.type == "cpu" or keywords.get("device", torch.device("meta")).type == "meta", (
                "a value came back to the host"
            )
        else:
            assert len(devices) <= 1, f"{operation} mixes {devices}"
        return operation(*arguments, **keywords)


def build(path: Path) -> Decoder:
    checkpoint = Checkpoint.open(path)
    architecture = read_architecture(Fields(path / CONFIG, checkpoint.config))
    model = architecture.model
    rope = Rope(architecture.attention.rope_dim, model.rope_base, model.window, device=ELSEWHERE.device)
    return directory._BUILDERS[architecture.family](Survey(checkpoint, ELSEWHERE), architecture, Compute.BFLOAT16, rope)


class Zeros:
    """A table on disk: read by the host."""

    def __init__(self, width: int) -> None:
        self._width = width

    def read(self, rows: Tensor) -> Tensor:
        assert rows.device.type == "cpu", "which rows to read was asked of the device"
        return torch.zeros(*rows.shape, self._width)


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    def look(kernel: object, grid: object, *arguments: object, **constants: object) -> None:
        devices = {each.device.type for each in arguments if isinstance(each, Tensor)}
        assert devices == {"meta"}, f"a kernel was given tensors of {devices}"

    for module in (attention, delta, experts, products):
        monkeypatch.setattr(module, "launch", look)
    monkeypatch.setattr(reading, "Asked", lambda weight: products.PackedProduct(plain(weight.bfloat16())))
    monkeypatch.setattr(Survey, "table", lambda self, names, rows, width: Zeros(width))
    monkeypatch.setattr(reading.Reading, "on_host", lambda self, name, *shape: torch.ones(shape, dtype=torch.int64))
    # Which experts a prompt's chunk chose is the one thing that is asked of the device; not in a round.
    monkeypatch.setattr(
        experts.PackedExperts,
        "_many",
        lambda self, rows, choices: rows.new_empty(*choices.shape, rows.shape[1]).float(),
    )
    save(request.param, tmp_path)
    return build(tmp_path)


def test_all_tensors_of_a_state_lie_there(model: Decoder) -> None:
    state = model.new_state(128)
    tensors = [each for parts in state.layers for part in parts for each in (*part.by_row(), *part.fixed())]
    assert {each.device.type for each in tensors if each.dtype is not torch.int64} == {"meta"}


def test_a_sequence_s_life_mixes_no_devices_and_waits_for_none(model: Decoder) -> None:
    first, second, tree = model.new_state(128), model.new_state(64), Tree((0, 0, 1, 2, 1))

    def read(*blocks: Block) -> None:
        assert model.forward(blocks).device.type == "meta"

    with OneDevice():
        read(Block(random_tokens(40, 1), 0, first))
        read(Block(random_tokens(20, 2), 0, second, Wants.NONE))
        read(Block(random_tokens(7, 1), 40, first), Block(random_tokens(1, 2), 20, second))
        read(Block(random_tokens(5, 3), 47, first, Wants.ALL, tree), Block(random_tokens(1, 3), 21, second, Wants.ALL))
        first.commit([0, 1, 4])
        kept = first.snapshot()
        read(Block(random_tokens(1, 4), 50, first))
        first.restore(kept)
        first.copy_from(second, 22)


def test_a_mix_is_found() -> None:
    """The detector itself."""
    elsewhere = torch.empty(3, device="meta")
    with OneDevice():
        elsewhere + elsewhere
        with pytest.raises(AssertionError, match="mixes"):
            elsewhere.index_select(0, torch.tensor([1]))
        with pytest.raises(AssertionError, match="came back"):
            torch.zeros(3).copy_(elsewhere)
        with pytest.raises(RuntimeError):
            elsewhere.sum().item()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
class TestWithoutADevice:
    def test_a_plan_for_cuda_is_one_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(CannotStart, match=r"this machine has no CUDA device that torch .* can use") as caught:
            load(tmp_path, "bfloat16", 1, device="cuda")
        assert "engine.device: cpu" in str(caught.value.help)

    @pytest.mark.parametrize(
        ("absent", "sentence"),
        [("find_spec", "need triton, which is not installed"), ("_can_build", "finds no C compiler or no headers")],
    )
    def test_what_drives_it_may_be_missing(self, absent: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(f"tandem.model.placement.{absent}", lambda *anything: None)
        with pytest.raises(CannotStart, match=sentence):
            place("cuda")

    def test_the_cpu_is_always_there(self) -> None:
        assert place("cpu") is HOST


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bool], Placement]:
    pretended = Placement(torch.device("cpu"), kernels=True)
    monkeypatch.setattr("tandem.model.loading.place", lambda device, graphs: pretended)
    return lambda device, graphs: pretended


@pytest.mark.usefixtures("on_a_device")
class TestWhatIsLoadedThere:
    def test_a_format_that_is_not_the_checkpoint_s(self, tmp_path: Path) -> None:
        save("qwen3", tmp_path)
        with pytest.raises(CannotStart, match=r"computes in `nvfp4`, and no weight in .* is stored so") as caught:
            load(tmp_path, "nvfp4", torch.get_num_threads(), device="cuda")
        assert "engine.compute: bfloat16" in str(caught.value.help)

    def test_a_gguf_file(self, tmp_path: Path) -> None:
        path = TinyLlama().write(tmp_path / "tiny.gguf")
        with pytest.raises(CannotStart, match="GGUF file runs on the CPU only"):
            load(path, "bfloat16", torch.get_num_threads(), device="cuda")
