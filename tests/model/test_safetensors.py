"""Checkpoints on disk: read in full and in pieces, refused in words, and never left in memory."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tandem.model.weights import safetensors
from tandem.model.weights.checkpoint import Checkpoint, Source, load
from tandem.model.weights.safetensors import WrongWeights, read_directory, read_header


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two shards under an index."""
    save_file({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5).bfloat16()}, tmp_path / "one.safetensors")
    save_file({"c": torch.tensor([1, 2, 3])}, tmp_path / "two.safetensors")
    places = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / safetensors.INDEX).write_text(json.dumps({"weight_map": places}))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def take_all(source: Source) -> tuple[torch.Tensor, ...]:
    return source.take("a", 2, 3), source.take("b", 5), source.take("c", 3, dtype=torch.int64)


def test_every_dtype_is_converted_and_every_shard_found(directory: Path) -> None:
    a, b, c = load(Checkpoint.open(directory), take_all)
    assert a.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert b.dtype == torch.float32 and b.tolist() == [1] * 5
    assert c.dtype == torch.int64 and c.tolist() == [1, 2, 3]


def test_a_directory_without_an_index_is_all_its_files(directory: Path) -> None:
    (directory / safetensors.INDEX).unlink()
    assert set(read_directory(directory)) == {"a", "b", "c"}


def test_progress_is_the_share_of_bytes_and_ends_at_one(directory: Path) -> None:
    heard: list[float] = []
    load(Checkpoint.open(directory), take_all, progress=heard.append)
    assert heard == sorted(heard) and heard[-1] == 1.0
    assert heard[0] == pytest.approx(24 / (24 + 10 + 24))


def test_pieces_join_to_the_whole(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors, "PIECE", 5)  # not a multiple of anything
    a, b, c = load(Checkpoint.open(directory), take_all)
    assert (a.sum(), b.sum(), c.sum()) == (15, 5, 6)


def refuse(directory: Path, build=take_all, unused: tuple[str, ...] = ()) -> str:
    with pytest.raises(WrongWeights) as caught:
        load(Checkpoint.open(directory), build, unused)
    return str(caught.value)


def test_everything_that_does_not_fit_is_named_with_file_and_expected_shape(directory: Path) -> None:
    def build(source: Source) -> None:
        source.take("a", 3, 2)
        source.take("d", 7, 7)
        source.take("c", 3)

    assert refuse(directory, build) == (
        f"{directory} does not hold the model its config.json describes: one.safetensors: `a` is [2, 3], not [3, 2]; "
        "`d` [7, 7] is missing; one.safetensors: `b` [5] is not part of it"
    )


def test_leftovers_may_be_declared(directory: Path) -> None:
    a = load(Checkpoint.open(directory), lambda source: source.take("a", 2, 3), unused=("b", "c"))
    assert a.sum() == 15


def test_a_long_list_is_cut(directory: Path) -> None:
    def build(source: Source) -> None:
        for number in range(10):
            source.take(f"layer{number}", 1)

    assert refuse(directory, build, ("a", "b", "c")).endswith("`layer3` [1] is missing; and 6 more")


def test_nothing_is_read_of_a_checkpoint_that_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_mapping(file: Path) -> None:
        raise AssertionError(f"{file} was opened")

    monkeypatch.setattr("tandem.model.weights.checkpoint.Mapping", no_mapping)
    refuse(directory, lambda source: source.take("a", 9))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_named_with_its_place(directory: Path, bad: float) -> None:
    save_file({"a": torch.tensor([[0, 1, 2], [3, bad, 5]]), "b": torch.ones(5)}, directory / "one.safetensors")
    assert f"{directory}/one.safetensors: `a` holds a value that is not a number (element 4)" == refuse(directory)


def test_a_truncated_shard_says_how_much_is_missing(directory: Path) -> None:
    file = directory / "one.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    assert f"{file} is truncated: it should have {len(whole)} bytes and has {len(whole) - 4}" == refuse(directory)
    file.write_bytes(whole[:20])
    assert f"{file} is truncated: its header alone is" in refuse(directory)


@pytest.mark.parametrize(
    "content",
    [b"", b"GGUF" + bytes(60), (5).to_bytes(8, "little") + b"[1,2]", (9).to_bytes(8, "little") + b'{"a": {}}'],
)
def test_a_file_that_is_something_else(directory: Path, content: bytes) -> None:
    (directory / "one.safetensors").write_bytes(content)
    assert f"{directory}/one.safetensors is not a safetensors file" in refuse(directory)


def test_spans_that_contradict_shapes_and_unknown_types(tmp_path: Path) -> None:
    for spec, sentence in (
        ('{"dtype":"F32","shape":[3],"data_offsets":[0,8]}', r"`a` is \[3\] of F32 but takes 8 bytes"),
        ('{"dtype":"F4","shape":[3],"data_offsets":[0,8]}', "`a` is stored as F4, which is not supported"),
    ):
        text = f'{{"a":{spec}}}'.encode()
        file = tmp_path / "x.safetensors"
        file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
        with pytest.raises(WrongWeights, match=sentence):
            read_header(file)


def test_a_shard_the_index_names_and_nobody_fetched(directory: Path) -> None:
    (directory / "two.safetensors").unlink()
    assert "names two.safetensors, which is not there" in refuse(directory)


def test_no_config_and_no_weights(tmp_path: Path) -> None:
    assert refuse(tmp_path) == f"{tmp_path}/config.json cannot be read: No such file or directory"
    (tmp_path / "config.json").write_text("{")
    assert "config.json is not JSON" in refuse(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert refuse(tmp_path) == f"{tmp_path} holds no safetensors file"


def test_a_table_in_parts_is_read_where_it_lies(tmp_path: Path) -> None:
    whole = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    save_file({"t.0": whole[:7].clone(), "t.1": whole[7:9].clone()}, tmp_path / "one.safetensors")
    save_file({"t.2": whole[9:].clone()}, tmp_path / "two.safetensors")
    (tmp_path / "config.json").write_text("{}")
    names = ["t.0", "t.1", "t.2"]
    table = load(Checkpoint.open(tmp_path), lambda source: source.table(names, 20, 4))
    rows = torch.tensor([[0, 6, 7], [8, 9, 19], [9, 9, 0]])
    assert torch.equal(table.read(rows), whole[rows])

    assert "`t.3`, one of 4 parts of a table, is missing" in refuse(tmp_path, lambda s: s.table([*names, "t.3"], 20, 4))
    assert "make [20, 4], not [20, 5]" in refuse(tmp_path, lambda source: source.table(names, 20, 5))


MEASURE = """
import resource, sys, torch
from pathlib import Path
from tandem.model.weights.checkpoint import Checkpoint, load
torch.ones(64, 64) @ torch.ones(64, 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
checkpoint = Checkpoint.open(Path(sys.argv[1]))
built = load(checkpoint, lambda source: [source.take(f"w{i}", 1024, 32768, dtype=torch.bfloat16) for i in range(4)])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, sum(t.nbytes for t in built))
"""


def test_loading_takes_the_weights_and_little_more(tmp_path: Path) -> None:
    """268 MB of bf16; the pages of the file never count beside the tensors, and the page cache is given back."""
    save_file({f"w{i}": torch.ones(1024, 32768, dtype=torch.bfloat16) for i in range(4)}, tmp_path / "m.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "m.safetensors").open("rb") as stream:
        os.fsync(stream.fileno())  # the kernel keeps pages it has yet to write
    peak, weights = map(int, subprocess.check_output([sys.executable, "-c", MEASURE, str(tmp_path)]).split())
    assert weights == 4 * 1024 * 32768 * 2
    assert peak < weights * 1.1 + safetensors.PIECE
    assert cached_pages(tmp_path / "m.safetensors") < 0.05


def cached_pages(file: Path) -> float:
    """Share of the file's pages in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
        count = -(-len(mapped) // mmap.PAGESIZE)
        seen = (ctypes.c_ubyte * count)()
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(mapped)), seen) == 0
        return sum(page & 1 for page in seen) / count
