"""Models that are broken, as their owner meets them: one sentence with the file and the remedy, the status that the
README states, and nothing left behind. What headers show is told by `check` and `up` before a process is started."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from wire_appliance import Appliance

from tandem.errors import ExitStatus

pytestmark = [pytest.mark.wire, pytest.mark.timeout(120)]

SPARE = 7


@pytest.fixture
def box() -> Iterator[Appliance]:
    """An appliance that serves a small `qwen3` from a directory; each test breaks something of it."""
    import checkpoints
    from tiny_tokenizer import NUM_IDS, write_tokenizer

    appliance = Appliance()
    directory = appliance.base / "models/tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(checkpoints.COMMON, "vocab_size", NUM_IDS + SPARE)
        checkpoints.save("qwen3", directory)
    write_tokenizer(directory)
    few = {"size": "8 MiB", "basis": "estimate"}
    profile = {
        "model": "tiny",
        "family": "qwen3",
        "window": checkpoints.WINDOW,
        "weights": {"source": "path:models/tiny", "in_memory": {"float32": few}},
        "kv": {"layers": 3, "heads": 2, "head_dim": 16},
        "slot": {"graphs": few, "plain": few},
        "runtime": {"size": "240 MiB", "basis": "estimate"},
        "workspace": few,
        "serving": {"compute": "float32", "chunk": 16, "slots": 1, "side_window": checkpoints.WINDOW},
    }
    (appliance.base / "profiles/tiny.yaml").write_text(json.dumps(profile, indent=1))
    appliance.write(profile="tiny")
    yield appliance
    appliance.close()


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def shard(directory: Path) -> Path:
    return directory / "model.safetensors"


def truncate(directory: Path) -> None:
    data = shard(directory).read_bytes()
    shard(directory).write_bytes(data[: len(data) // 2])


def another_type(directory: Path) -> None:
    edit(directory / "config.json", model_type="mamba")


def another_family(directory: Path) -> None:
    edit(directory / "config.json", model_type="llama")


def odd_config(directory: Path) -> None:
    edit(directory / "config.json", num_key_value_heads=3)


def another_tokenizer(directory: Path) -> None:
    edit(directory / "config.json", vocab_size=200)


EARLY: dict[str, tuple[Callable[[Path], None], ExitStatus, tuple[str, ...]]] = {
    "truncated shard": (
        truncate,
        ExitStatus.DOES_NOT_FIT,
        ("model.safetensors is truncated: it should have", "fetch this file again"),
    ),
    "unknown model_type": (
        another_type,
        ExitStatus.DOES_NOT_FIT,
        ("config.json describes a model of type `mamba`; known are llama,", "choose a model of one of these types"),
    ),
    "wrong config": (
        odd_config,
        ExitStatus.DOES_NOT_FIT,
        (
            "config.json describes a model that cannot be read: 4 heads cannot share 3 KV heads",
            "or fetch config.json again",
        ),
    ),
    "another family": (
        another_family,
        ExitStatus.DOCUMENT_WRONG,
        ("the profile says `family: qwen3`, and", "holds a model of the family `llama`", "write `family: llama`"),
    ),
    "tokenizer of another model": (
        another_tokenizer,
        ExitStatus.DOES_NOT_FIT,
        ("tokenizer.json has the token id 264, and config.json describes a model of 200 ids", "of one and the same"),
    ),
}


@pytest.mark.parametrize("name", EARLY)
def test_what_headers_show_is_told_before_anything_is_started(box: Appliance, name: str) -> None:
    broken, status, sentences = EARLY[name]
    broken(box.base / "models/tiny")
    for command in (("check",), ("up", "--detach")):
        told = box.run(*command)
        assert told.returncode == status, told.stderr
        words = " ".join(told.stderr.split())
        assert str(box.base / "models/tiny") in words
        for sentence in sentences:
            assert sentence in words
        assert "Traceback" not in told.stderr
    assert not running(box)


def config_that_the_shapes_contradict(directory: Path) -> None:
    edit(directory / "config.json", hidden_size=64, head_dim=16)


def weight_that_is_no_number(directory: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(shard(directory))
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(tensors, shard(directory))


LOADING: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "NaN weight": (
        weight_that_is_no_number,
        (
            "model.safetensors: `model.layers.1.mlp.up_proj.weight` holds a value that is not a number (element 101)",
            "(fetch this file again; if it stays, the published weights are broken)",
        ),
    ),
    "config of another size": (
        config_that_the_shapes_contradict,
        (
            "does not hold the model its config.json describes: model.safetensors: "
            "`model.layers.0.input_layernorm.weight` is [32], not [64]",
            "(fetch config.json and all shards of one revision)",
        ),
    ),
}


@pytest.mark.parametrize("name", LOADING)
def test_what_loading_finds_ends_up_with_the_engine_s_own_sentence(box: Appliance, name: str) -> None:
    broken, sentences = LOADING[name]
    broken(box.base / "models/tiny")
    told = box.run("up", "--detach")
    assert told.returncode == ExitStatus.DOES_NOT_FIT, told.stderr
    assert "engine cannot come up: exited with status 3" in told.stderr
    for sentence in sentences:
        assert sentence in told.stderr
    assert "Traceback" not in told.stderr
    assert not running(box)


def running(box: Appliance) -> list[int]:
    """Processes of this appliance: a model that is half loaded would be in one of them."""
    lines = ((process.pid, process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return [pid for pid, line in lines if any(str(box.base) in part for part in line)]
