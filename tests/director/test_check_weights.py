"""Headers held against the profile that names them, when documents are checked and when they are edited."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from tiny_llama import TinyLlama

from tandem.config import load
from tandem.director.reload import judge_documents
from tandem.director.weights import check_weights
from tandem.errors import CannotStart, DocumentError
from tandem.memory.reading import read_box
from tandem.model.inspection import AHEAD, Inspection, KvRows
from tandem.planner.compile import compile_plan

PLAN = "profile: mine\nresidency: laptop\n"
TINY = "extends: smollm2-135m\nwindow: 128\nweights: {source: 'path:m.gguf', distribution: null, sha256: null}\n"
TINY_KV = "kv: {layers: 2, heads: 2, head_dim: 16}\n"


def write(base: Path, profile: str) -> Path:
    (base / "profiles").mkdir(exist_ok=True)
    (base / "profiles/mine.yaml").write_text(profile)
    (base / "appliance.yaml").write_text(PLAN)
    return base / "appliance.yaml"


def refusal(appliance: Path) -> str:
    with pytest.raises((DocumentError, CannotStart)) as error:
        check_weights(load(appliance, environment={}))
    if isinstance(error.value, DocumentError):
        (problem,) = error.value.problems
        assert problem.place is not None and problem.place.line == 1
        return f"{problem.message} ({problem.help})"
    return f"{error.value} ({error.value.help})"


def retype(file: Path, tensor: str, kind: Kind) -> None:
    """In the header, to a kind of as many bytes: there is no writer for some."""
    data, name = bytearray(file.read_bytes()), tensor.encode()
    dimensions = 4 + 2 * 8
    struct.pack_into("<I", data, data.index(name) + len(name) + dimensions, kind)
    file.write_bytes(data)


@pytest.mark.parametrize(("heads", "declared"), [(1, "7,680"), (9, "69,120")])
def test_rows_of_another_size_than_the_model_s(tmp_path: Path, heads: int, declared: str) -> None:
    """Planned too small, requests would fail for memory that nobody counted; too large, slots would be refused."""
    told = refusal(write(tmp_path, f"extends: smollm2-135m\nkv: {{heads: {heads}}}\n"))
    assert f"says that a token's rows take {declared} bytes; the model in" in told
    assert "takes 23,040" in told and "write `kv: {layers: 30, heads: 3, head_dim: 64}` in the profile" in told


def test_rows_of_the_same_size_counted_otherwise_are_good(tmp_path: Path) -> None:
    check_weights(load(write(tmp_path, "extends: smollm2-135m\nkv: {layers: 15, heads: 6}\n"), environment={}))


def test_what_drafters_and_the_rotary_table_keep_no_header_knows(tmp_path: Path) -> None:
    profile = "extends: smollm2-135m\nkv: {drafters: [20 KiB], rotary: 256 B, element: 4 B}\n"
    check_weights(load(write(tmp_path, profile), environment={}))


@pytest.mark.parametrize(("layers", "is_good"), [(11, False), (12, True), (13, True), (14, False)])
def test_a_head_that_guesses_ahead_may_be_counted_as_a_layer(layers: int, is_good: bool) -> None:
    rows = KvRows(layers=12, heads=2, head_dim=256, indexer_key=128)
    seen = Inspection("flashnext", {}, 1, 1, rows.bytes_a_token, 0, {}, {AHEAD: 1}, 1, rows)
    assert seen.takes(replace(rows, layers=layers)) == is_good
    assert replace(seen, groups={}).takes(replace(rows, layers=layers)) == (layers == 12)


def test_an_edit_of_the_rows_is_refused(tmp_path: Path) -> None:
    appliance = write(tmp_path, "extends: smollm2-135m\n")
    running = compile_plan(load(appliance, environment={}), read_box())
    write(tmp_path, "extends: smollm2-135m\nkv: {heads: 1}\n")
    judgement = judge_documents(running, held=0)
    assert judgement.plan is None and "takes 23,040" in judgement.details


def test_a_file_of_formats_that_are_not_read(tmp_path: Path) -> None:
    """Found in the header, so that an edit leaves the engine alone."""
    retype(TinyLlama(kinds={"ffn_up": Kind.Q4_0}).write(tmp_path / "m.gguf"), "blk.1.ffn_up.weight", Kind.IQ4_NL)
    appliance = write(tmp_path, "extends: smollm2-135m\n")
    running = compile_plan(load(appliance, environment={}), read_box())
    told = refusal(write(tmp_path, TINY + TINY_KV))
    assert "uses formats that cannot be read: `blk.1.ffn_up.weight` (IQ4_NL); read are F32, F16, " in told
    judgement = judge_documents(running, held=0)
    assert judgement.plan is None and "(IQ4_NL)" in judgement.details


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_file_of_an_architecture_that_is_not_served(tmp_path: Path, family: str) -> None:
    TinyLlama(family="gemma3").write(tmp_path / "m.gguf")
    told = refusal(write(tmp_path, f"{TINY}{TINY_KV}family: {family}\n"))
    assert "holds a model of architecture `gemma3`; known are llama, qwen3" in told
    assert "family: gemma3" not in told


def test_a_model_to_draft_is_looked_at_as_well(tmp_path: Path) -> None:
    TinyLlama(family="gemma3").write(tmp_path / "m.gguf")
    appliance = write(tmp_path, "extends: smollm2-135m\n")
    running = compile_plan(load(appliance, environment={}), read_box())
    appliance.write_text(f"{PLAN}draft:\n  model: {{weights: 'path:m.gguf', in_memory: 1 MiB}}\n")
    assert "architecture `gemma3`; known are llama, qwen3" in refusal(appliance)
    judgement = judge_documents(running, held=0)
    assert judgement.plan is None and "`gemma3`" in judgement.details


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    whole = TinyLlama().write(tmp_path / "m.gguf")
    whole.write_bytes(whole.read_bytes()[:-2000])
    told = refusal(write(tmp_path, TINY + TINY_KV))
    assert "is truncated" in told and "copy the whole file there again" in told
