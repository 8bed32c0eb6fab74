from __future__ import annotations

import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from tandem.errors import CannotStart
from tandem.text.header import read_metadata


def test_reads_every_kind_of_value_as_the_reference_writer_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int32("a.i32", -7)
    writer.add_uint64("a.u64", 1 << 40)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.flag", True)
    writer.add_string("a.text", "größer ✓")
    writer.add_array("a.words", ["x", "", "你好"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_tensor("t", np.zeros(32, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    header = read_metadata(path)

    assert header["a.u8"] == 200
    assert header["a.i32"] == -7
    assert header["a.u64"] == 1 << 40
    assert header["a.f64"] == 0.1
    assert header["a.flag"] is True
    assert header["a.text"] == "größer ✓"
    assert header["a.words"] == ["x", "", "你好"]
    assert header["a.numbers"] == (1, -2, 3)
    assert header["general.architecture"] == "llama"


def test_the_default_models_header_is_read_in_a_fraction_of_a_second(model_file: Path) -> None:
    started = time.perf_counter()
    header = read_metadata(model_file)
    seconds = time.perf_counter() - started

    assert isinstance(header["tokenizer.ggml.tokens"], list)
    assert len(header["tokenizer.ggml.tokens"]) == 49_152
    assert seconds < 0.5


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04" + b"\0" * 40, "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60) + b"x" * 64, "middle of its header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77), "unknown kind 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 5), "cannot be read"),
    ],
    ids=["empty", "another format", "another version", "cut short", "unknown kind", "no keys"],
)
def test_a_broken_file_is_refused_with_its_name_and_a_reason(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(CannotStart, match=says) as caught:
        read_metadata(path)
    assert "broken.gguf" in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"none\.gguf"):
        read_metadata(tmp_path / "none.gguf")
