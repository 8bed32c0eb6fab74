"""Files as they come: whole ones are read number for number, every other one gets its sentence."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from test_safetensors import cached_pages
from tiny_llama import TinyLlama

from tandem.errors import CannotStart
from tandem.model import load
from tandem.model.weights.gguf import GgufFile

TINY = TinyLlama(layers=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


def refusal(path: Path) -> str:
    with pytest.raises(CannotStart) as refused:
        load(path, "int4", threads=1)
    sentence = str(refused.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence.replace(str(path), "FILE")


class TestNumbers:
    @pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
    def test_a_matrix_is_what_was_written(self, path: Path, kind: Kind) -> None:
        TINY.with_kind(kind).write(path)
        weight = TINY.weights()["blk.0.ffn_down.weight"]
        expected = weight if kind is Kind.F32 else gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)
        with GgufFile(path) as file:
            read = file.tensors["blk.0.ffn_down.weight"].float32()
        assert torch.equal(read, torch.from_numpy(expected))

    def test_the_sixth_bit_format_is_read_too(self, path: Path) -> None:
        """Q6_K, which the package reads but does not write."""
        rows, blocks = 3, 2
        random = np.random.default_rng(0)
        stored = random.integers(0, 256, (rows, blocks, 210), dtype=np.uint8)
        stored[..., 208:] = np.full((rows, blocks, 1), 0.01, np.float16).view(np.uint8)  # the scale, a finite one
        stored = stored.reshape(rows, -1)
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("matrix", stored, raw_dtype=Kind.Q6_K)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with GgufFile(path) as file:
            assert file.tensors["matrix"].shape == (rows, blocks * 256)
            read = file.tensors["matrix"].float32()
        assert torch.equal(read, torch.from_numpy(gguf.quants.dequantize(stored, Kind.Q6_K)))

    @pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
    def test_whole_numbers_lose_nothing(self, path: Path, kind: Kind) -> None:
        TINY.with_kind(kind).write(path)
        with GgufFile(path) as file:
            matrix = file.tensors["blk.0.attn_q.weight"]
            grouped, expected = matrix.grouped(), matrix.float32()
        assert grouped.bits == matrix.bits
        assert int(grouped.numbers.max()) < 2**grouped.bits
        scale, minimum = (part.repeat_interleave(32, dim=1) for part in (grouped.scale, grouped.minimum))
        torch.testing.assert_close(grouped.numbers * scale + minimum, expected, rtol=1e-6, atol=1e-6)

    def test_metadata_is_read_and_texts_are_passed_over(self, path: Path) -> None:
        TINY.write(path)
        with GgufFile(path) as file:
            assert file.architecture == "llama"
            assert file.whole("llama.embedding_length") == TINY.hidden
            assert file.metadata["tokenizer.ggml.tokens"] is None

    def test_a_model_with_frequency_factors_turns_slower(self, path: Path, tmp_path: Path) -> None:
        plain = load(TINY.write(tmp_path / "plain.gguf"), "float32", threads=1)
        factors = np.full(TINY.head_dim // 2, 2.0, np.float32)
        slow = load(TINY.write(path, {"rope_freqs.weight": factors}), "float32", threads=1)
        one, two = (model._rope.at(torch.tensor([at]))[0, 0] for model, at in ((plain, 5), (slow, 10)))
        torch.testing.assert_close(one, two)


class TestRefusals:
    def test_no_file(self, path: Path) -> None:
        assert refusal(path) == "cannot read the weights FILE: No such file or directory"

    def test_something_else(self, path: Path) -> None:
        path.write_bytes(b"PK\x03\x04 a zip")
        assert refusal(path) == "FILE is not a GGUF file"

    def test_another_version(self, path: Path) -> None:
        path.write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(100))
        assert refusal(path) == "FILE is GGUF version 50331648; little-endian versions 2 and 3 are read"

    def test_another_architecture(self, path: Path) -> None:
        writer = gguf.GGUFWriter(path, "gpt2")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        assert refusal(path).startswith("FILE holds a model of architecture `gpt2`; known are ")

    def test_cut_in_the_header(self, path: Path) -> None:
        TINY.write(path)
        path.write_bytes(path.read_bytes()[:300])
        assert refusal(path) == "FILE is truncated: it ends inside its header"

    def test_cut_in_the_weights(self, path: Path) -> None:
        TINY.write(path)
        path.write_bytes(path.read_bytes()[:-2000])
        assert "is truncated: tensor `blk.0.ffn_" in refusal(path)

    @pytest.mark.parametrize("at", range(8, 120, 7))
    def test_damage_in_the_header_is_never_a_traceback(self, path: Path, at: int) -> None:
        TINY.write(path)
        data = bytearray(path.read_bytes())
        data[at : at + 4] = b"\xff" * 4
        path.write_bytes(data)
        refusal(path)

    def test_a_tensor_is_missing(self, path: Path) -> None:
        TINY.write(path, {"blk.0.ffn_up.weight": None})
        assert refusal(path) == "FILE lacks `blk.0.ffn_up.weight` [96, 64]"

    def test_the_embedding_is_missing(self, path: Path) -> None:
        TINY.write(path, {"token_embd.weight": None})
        assert "`token_embd.weight`" in refusal(path)

    def test_a_tensor_too_many(self, path: Path) -> None:
        TINY.write(path, {"blk.0.attn_q.bias": np.zeros(64, np.float32)})
        assert refusal(path) == "FILE has unexpected tensors `blk.0.attn_q.bias`"

    def test_a_tensor_of_another_shape(self, path: Path) -> None:
        TINY.write(path, {"blk.0.attn_k.weight": np.zeros((48, 64), np.float32)})
        assert refusal(path) == "FILE has tensors of wrong shape: `blk.0.attn_k.weight` is [48, 64], expected [32, 64]"

    def test_many_tensors_of_another_shape_are_not_all_listed(self, path: Path) -> None:
        names = ("attn_q", "attn_k", "attn_v", "ffn_up", "ffn_gate", "ffn_down")
        TINY.write(path, {f"blk.0.{name}.weight": np.zeros((8, 8), np.float32) for name in names})
        assert refusal(path).endswith(" and 2 more")

    @pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q4_1, Kind.Q8_0])
    @pytest.mark.parametrize("number", [np.nan, np.inf])
    @pytest.mark.filterwarnings("ignore:invalid value encountered")
    def test_a_number_that_is_none(self, path: Path, kind: Kind, number: float) -> None:
        weight = TINY.weights()["blk.0.ffn_gate.weight"]
        weight[5, 7] = number
        TINY.with_kind(kind).write(path, {"blk.0.ffn_gate.weight": weight})
        assert refusal(path) == "tensor `blk.0.ffn_gate.weight` in FILE holds numbers that are not finite"

    def test_a_format_that_cannot_be_read(self, path: Path) -> None:
        stored = np.zeros((96, 64 // 32 * 34), np.uint8)
        writer_kind = Kind.IQ4_NL  # 32 weights in 18 bytes
        TINY.write(path)
        with GgufFile(path) as file:
            assert file.tensors["blk.0.ffn_up.weight"].kind is Kind.F32
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("matrix", stored[:, :36], raw_dtype=writer_kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with GgufFile(path) as file, pytest.raises(CannotStart, match=r"cannot be read: `matrix` \(IQ4_NL\)"):
            file.require({"matrix": (96, 64)})

    @pytest.mark.parametrize(
        ("shape", "sentence"),
        [
            (TinyLlama(heads=4, kv_heads=3), "4 heads cannot share 3 KV heads"),
            (TinyLlama(head_dim=15), "a head of 15 numbers cannot be turned in pairs"),
        ],
    )
    def test_a_shape_that_makes_no_model(self, path: Path, shape: TinyLlama, sentence: str) -> None:
        shape.write(path, {name: None for name in shape.weights() if name.startswith("blk")})
        assert refusal(path) == f"FILE is a llama model that cannot be read: {sentence}"

    def test_a_file_that_shrinks_while_it_is_read(self, path: Path) -> None:
        TINY.write(path)
        with GgufFile(path) as file:
            path.write_bytes(path.read_bytes()[:5000])
            with pytest.raises(CannotStart, match="became shorter"):
                file.tensors["blk.0.ffn_down.weight"].float32()


def test_of_a_file_that_is_loaded_no_page_stays_in_the_page_cache(tmp_path: Path) -> None:
    """Nor do its pages pile up while it is read: what is there is what the kernel reads ahead."""
    shape = TinyLlama(hidden=512, heads=8, kv_heads=8, head_dim=64, feed_forward=2048, layers=4)
    path = shape.write(tmp_path / "m.gguf")
    with path.open("rb") as stream:
        os.fsync(stream.fileno())  # the kernel keeps pages it has yet to write
    size = path.stat().st_size
    assert size > 60 << 20
    with GgufFile(path) as file:
        os.posix_fadvise(file._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # as writing left it
        cached = []
        for tensor in file.tensors.values():
            assert len(file.read(tensor)) == tensor.size
            cached.append(cached_pages(path) * size)
    assert max(cached) < size / 2
    load(path, "bfloat16", threads=1)
    assert cached_pages(path) == 0
