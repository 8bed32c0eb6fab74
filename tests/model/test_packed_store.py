"""Packed weights kept on disk: the same bits as freshly packed, and never a file that is not what its name says."""

from __future__ import annotations

import ctypes
import itertools
import logging
import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

import pytest
import test_native
import torch
from torch import Tensor

from tandem.contract import content
from tandem.model.families.dense import Weights
from tandem.model.interface import Block, Wants
from tandem.model.loading import load
from tandem.model.native import packed_file, store
from tandem.model.native.blocks import Blocks, round_to_eight
from tandem.model.native.packed_file import in_memory
from tandem.model.native.step import NativeStep
from tandem.model.native.store import Wrap

WIDTH, OUTPUTS = 64, 48


class Toy:
    """Implements `dense.Weights` on random numbers, and counts what is packed."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self.packed = 0

    def matrix(self, width: int, parts: Sequence[tuple[str, int]]) -> Blocks:
        self.packed += 1
        outputs = sum(outputs for _, outputs in parts)
        return round_to_eight(self._random(parts[0][0], outputs, width))

    def norm(self, name: str, width: int) -> Tensor:
        return self._random(name, width)

    def _random(self, name: str, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(self._seed + sum(name.encode())))


class Model(NamedTuple):
    qkv: Blocks
    down: Blocks
    norm: Tensor


def build(weights: Weights) -> Model:
    qkv = weights.matrix(WIDTH, [("q", 16), ("k", 16), ("v", 16)])
    return Model(qkv, weights.matrix(WIDTH, [("down", OUTPUTS)]), weights.norm("norm", 7))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"numbers")
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are milliseconds old."""
    monkeypatch.setattr(content, "_SETTLED", -1)


def read(state: Path, source: Path, weights: Toy | None = None, compute: str = "int4") -> tuple[Model, int]:
    """The model, and how many matrices were packed for it."""
    weights = weights or Toy()
    return store.read(state, source, compute, lambda wrap: build(wrap(weights)), build), weights.packed


def is_same(left: Model, right: Model) -> bool:
    matrices = zip(left[:2], right[:2], strict=True)
    return torch.equal(left.norm, right.norm) and all(
        torch.equal(a.data, b.data) and (a.outputs, a.inputs, a.bits) == (b.outputs, b.inputs, b.bits)
        for a, b in matrices
    )


def kept(state: Path) -> list[Path]:
    return sorted((state / "packed").glob("*.packed"))


FRESH = build(Toy())


def test_it_is_packed_once_and_has_the_bits_of_freshly_packed_weights(state: Path, source: Path) -> None:
    first, packed = read(state, source)
    assert packed == 2 and is_same(first, FRESH)
    again, packed = read(state, source)
    assert packed == 0 and is_same(again, FRESH)
    assert len(kept(state)) == 1
    assert {path.suffix or path.name for path in (state / "packed").iterdir()} == {".packed", ".used", "lock"}


def test_without_a_state_folder_nothing_is_kept(source: Path) -> None:
    weights = Toy()
    assert is_same(store.read(None, source, "int4", lambda wrap: build(wrap(weights)), build), FRESH)


def test_a_survey_writes_nothing(state: Path, source: Path) -> None:
    class Survey(Toy):
        def matrix(self, width: int, parts: Sequence[tuple[str, int]]) -> Blocks:
            return Blocks(torch.empty(1, device="meta"), 16, width, 8)

        def norm(self, name: str, width: int) -> Tensor:
            return torch.empty(width, device="meta")

    def pack(wrap: Wrap) -> Model:
        build(wrap(Survey()))
        return build(wrap(Toy()))

    assert is_same(store.read(state, source, "int4", pack, build), FRESH)


def test_other_numbers_of_the_same_size_are_packed_anew_and_replace_the_old(state: Path, source: Path) -> None:
    read(state, source)
    (before,) = kept(state)
    source.write_bytes(b"NUMBERS")
    model, packed = read(state, source, Toy(seed=1))
    assert packed == 2 and is_same(model, build(Toy(seed=1)))
    assert kept(state) != [before] and len(kept(state)) == 1


def test_another_form_of_the_same_numbers_is_kept_beside_it(state: Path, source: Path) -> None:
    read(state, source, compute="int4")
    assert read(state, source, compute="int8")[1] == 2
    assert read(state, source, compute="int4")[1] == 0
    assert len(kept(state)) == 2


def test_other_code_packs_anew(state: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(state, source)
    other = source.with_name("other.gguf")
    other.write_bytes(b"other numbers")
    read(state, other, Toy(seed=1))
    (tmp_path / "code" / "native").mkdir(parents=True)
    (tmp_path / "code" / "native" / "blocks.py").write_text("OUTPUTS = 8")
    monkeypatch.setattr(store, "_PACKAGE", tmp_path / "code")
    assert read(state, source)[1] == 2
    assert len(kept(state)) == 1  # what the code before it packed of any source is gone
    (tmp_path / "code" / "moe.py").write_text("no part of packing")
    assert read(state, source)[1] == 0


@pytest.mark.parametrize("pattern", store._CODE)
def test_the_code_that_packs_is_where_it_is_said_to_be(pattern: str) -> None:
    assert list(store._PACKAGE.glob(pattern))


def test_of_one_source_the_two_used_last_are_kept(state: Path, source: Path) -> None:
    for compute in ("int4", "int8", "int4", "bfloat16"):
        read(state, source, compute=compute)
    assert len(kept(state)) == 2
    assert [read(state, source, compute=compute)[1] for compute in ("bfloat16", "int4", "int8")] == [0, 0, 2]
    assert len(kept(state)) == len(list((state / "packed").glob("*.used"))) == 2


def test_every_form_of_an_earlier_content_is_removed(state: Path, source: Path) -> None:
    read(state, source, compute="int4")
    read(state, source, compute="int8")
    source.write_bytes(b"NUMBERS")
    read(state, source, compute="int8")
    assert len(kept(state)) == 1


@pytest.mark.parametrize("is_read_again", [True, False])
def test_another_source_whose_content_is_known_to_be_another_is_removed_when_one_is_opened(
    is_read_again: bool, state: Path, source: Path
) -> None:
    other = source.with_name("other.gguf")
    other.write_bytes(b"other numbers")
    read(state, source)
    read(state, other, Toy(seed=1))
    other.write_bytes(b"OTHER NUMBERS")
    if is_read_again:
        content.remembered_sha256(other, state)
    assert read(state, source)[1] == 0
    assert len(kept(state)) == (1 if is_read_again else 2)


def test_a_source_that_cannot_be_read_is_read_once_and_its_error_is_the_one_that_is_told(
    state: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unreadable(Toy):
        def matrix(self, width: int, parts: Sequence[tuple[str, int]]) -> Blocks:
            self.packed += 1
            (part,) = (state / "packed").glob("*.part")
            part.unlink()
            part.mkdir()  # cannot be removed as a file is
            raise OSError("the source's disk is unwell")

    weights = Unreadable()
    with pytest.raises(OSError, match="the source's disk is unwell"):
        read(state, source, weights)
    assert weights.packed == 1 and "not kept" not in caplog.text


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, cut, empty])
def test_a_damaged_file_is_packed_anew_with_one_line(
    state: Path, source: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    read(state, source)
    damage(kept(state)[0])
    with caplog.at_level(logging.INFO):
        model, packed = read(state, source)
    assert packed == 2 and is_same(model, FRESH)
    assert [record.message for record in caplog.records if "are damaged" in record.message] == [
        f"packed weights in {kept(state)[0]} are damaged: they are packed anew"
    ]
    assert read(state, source)[1] == 0


def test_what_died_in_the_middle_leaves_nothing(state: Path, source: Path) -> None:
    class Dying(Toy):
        def norm(self, name: str, width: int) -> Tensor:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(state, source, Dying())
    assert kept(state) == []
    (state / "packed" / "another.part").write_bytes(b"of a process that was killed")
    model, _ = read(state, source)
    assert is_same(model, FRESH) and not list((state / "packed").glob("*.part"))


def test_what_belongs_to_weights_that_are_gone_is_removed(state: Path, source: Path) -> None:
    read(state, source)
    other = source.with_name("other.gguf")
    other.write_bytes(b"other numbers")
    read(state, other, Toy(seed=1))
    assert len(kept(state)) == 2  # both are there
    source.unlink()
    other.write_bytes(b"other numbers again")
    read(state, other, Toy(seed=2))
    assert len(kept(state)) == 1


def test_where_nothing_can_be_written_every_start_packs(
    state: Path, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (state / "packed").write_bytes(b"no folder")
    for _ in range(2):
        caplog.clear()
        model, packed = read(state, source)
        assert packed == 2 and is_same(model, FRESH)
        assert len([record for record in caplog.records if "not kept" in record.message]) == 1


def test_a_disk_that_is_almost_full_is_left_alone(
    state: Path, source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packed_file, "_SPARE", 1 << 60)
    model, _ = read(state, source)
    assert is_same(model, FRESH)
    assert "the disk has" in caplog.text and "are left alone" in caplog.text
    assert [path.name for path in (state / "packed").iterdir()] == ["lock"]


def test_of_two_at_once_one_packs_and_both_have_it(state: Path, source: Path) -> None:
    """Two threads: the lock belongs to the open file, so it keeps them apart as it does processes."""
    together = Barrier(2)

    def start() -> tuple[bool, int]:
        together.wait()
        model, packed = read(state, source)
        return is_same(model, FRESH), packed

    with ThreadPoolExecutor(2) as threads:
        started = [threads.submit(start) for _ in range(2)]
        assert sorted(each.result(60) for each in started) == [(True, 0), (True, 2)]
    assert len(kept(state)) == 1


@pytest.mark.parametrize("refused", ["mprotect", "mlock"])
def test_a_file_that_may_not_be_locked_is_copied(
    state: Path, source: Path, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class System:
        def __getattr__(self, name: str) -> Callable[..., int]:
            return lambda *_: -1 if name == refused else 0

    read(state, source)
    monkeypatch.setattr("ctypes.CDLL", lambda _: System())
    model, packed = read(state, source)
    assert packed == 0 and is_same(model, FRESH)
    model.norm.zero_()  # pages of its own: a mapped file's cannot be written to
    assert is_same(read(state, source)[0], FRESH)


def test_pages_are_the_file_s_own(tmp_path: Path) -> None:
    """Mapped, locked and read: nothing of it is anonymous memory."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8 << 20))
    data = in_memory(path)
    assert int(data.amax()) == 255
    if not _may_lock(8 << 20):
        pytest.skip("this user may not lock so much: the file is read into memory of its own")
    pages = _pages_of(path)
    assert (pages["Rss:"], pages["Anonymous:"], pages["Locked:"]) == (8 << 20, 0, 8 << 20)


def _may_lock(size: int) -> bool:
    own = mmap.mmap(-1, size)
    where = ctypes.addressof(ctypes.c_char.from_buffer(own))
    return ctypes.CDLL(None).mlock(ctypes.c_void_p(where), ctypes.c_size_t(size)) == 0


def _pages_of(path: Path) -> dict[str, int]:
    """Bytes by the kernel's names, of where a file is mapped in this process."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    assert any(line.endswith(str(path)) for line in lines)
    sizes = itertools.takewhile(lambda words: words[-1] == "kB", (line.split() for line in lines))
    return {words[0]: int(words[1]) * 1024 for words in sizes}


@pytest.mark.skipif(not NativeStep.pays(), reason="nothing is packed on this machine")
@pytest.mark.parametrize("name", test_native.TestServed.FILES)
def test_every_kind_of_weights_comes_back_bit_for_bit(
    name: str, state: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compute, shape = test_native.TestServed.FILES[name]
    path = tmp_path / "weights"
    if "directory" in name:
        shape.reference().bfloat16().save_pretrained(path)
    else:
        shape.write(path)
    with caplog.at_level(logging.INFO):
        models = [load(path, compute, 2, state=folder) for folder in (None, state, state)]
    assert len([record for record in caplog.records if "are packed, and kept" in record.message]) == 1
    rows = torch.arange(40) * 7 % shape.vocab
    fresh, first, again = (model.forward([Block(rows, 0, model.new_state(64), Wants.ALL)]) for model in models)
    assert torch.equal(first, fresh) and torch.equal(again, fresh)
