"""A file of the disk tier: whole or not there, and what was changed since is never taken for what was written."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import prompt
from torch import Tensor

from tandem.caches.chunk_file import (
    Corrupt,
    Kind,
    NotOurs,
    file_name,
    header_size,
    read_header,
    read_payload,
    write_file,
)
from tandem.caches.prefix import Piece
from tandem.model.saved import host_memory

TAG = b"model of a test!"
PIECE = list(prompt([1, 2, 3, 4, 5, 6, 7, 8]).pieces(8))[1]


def payload(size: int = 256) -> Tensor:
    data = host_memory(size)
    data.copy_(torch.arange(size) % 251)
    return data


def path_of(folder: Path, kind: Kind = Kind.ROWS, piece: Piece = PIECE) -> Path:
    return folder / file_name(piece.key, kind)


@pytest.mark.parametrize("kind", Kind)
def test_a_file_says_what_it_is(tmp_path: Path, kind: Kind) -> None:
    path = path_of(tmp_path, kind)
    size = write_file(path, TAG, kind, PIECE, payload())
    assert size == path.stat().st_size == header_size(4) + 256
    header = read_header(path, TAG)
    assert (header.kind, header.payload, header.size) == (kind, 256, size)
    there = header.piece
    assert (there.key, there.parent, there.first, there.tokens.tolist()) == (PIECE.key, PIECE.parent, 4, [5, 6, 7, 8])
    assert torch.equal(read_payload(path, TAG, kind, PIECE), payload())


def test_a_header_longer_than_one_read(tmp_path: Path) -> None:
    piece = Piece(PIECE.key, PIECE.parent, 0, prompt(range(10_000)).tokens)
    path = path_of(tmp_path)
    write_file(path, TAG, Kind.ROWS, piece, payload())
    assert read_header(path, TAG).piece.rows == 10_000
    assert torch.equal(read_payload(path, TAG, Kind.ROWS, piece), payload())


def test_only_the_owner_reads_it_and_its_name_holds_no_token(tmp_path: Path) -> None:
    path = path_of(tmp_path)
    before = os.umask(0)
    try:
        write_file(path, TAG, Kind.ROWS, PIECE, payload())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.name == f"{PIECE.key.hex()}.rows" and [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = path_of(tmp_path_factory.mktemp("written"))
    write_file(path, TAG, Kind.ROWS, PIECE, payload())
    return path, path.read_bytes()


@settings(max_examples=300, deadline=None)
@given(data=st.data(), flips=st.integers(1, 255))
def test_no_byte_can_change_unseen(written: tuple[Path, bytes], data: st.DataObject, flips: int) -> None:
    path, whole = written
    at = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ flips]) + whole[at + 1 :])
    with pytest.raises((Corrupt, NotOurs)):
        read_payload(path, TAG, Kind.ROWS, PIECE)
    if at < header_size(4):
        with pytest.raises((Corrupt, NotOurs)):
            read_header(path, TAG)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_torn_file_is_none(written: tuple[Path, bytes], data: st.DataObject) -> None:
    """Cut anywhere, or its end never written: what a power cut leaves of a file whose name came through."""
    path, whole = written
    at = data.draw(st.integers(0, len(whole) - 1))
    for torn in (whole[:at], whole[:at].ljust(len(whole), b"\0"), whole + b"\0"):
        if torn == whole:
            continue
        path.write_bytes(torn)
        with pytest.raises((Corrupt, NotOurs)):
            read_payload(path, TAG, Kind.ROWS, PIECE)


def test_two_changes_that_cancel_out_in_a_sum_are_seen(written: tuple[Path, bytes]) -> None:
    path, whole = written
    first, second = header_size(4), header_size(4) + 8
    path.write_bytes(whole[:first] + whole[second : second + 8] + whole[first:second] + whole[second + 8 :])
    with pytest.raises(Corrupt, match="bytes"):
        read_payload(path, TAG, Kind.ROWS, PIECE)


def test_another_models_file_is_left_alone(tmp_path: Path) -> None:
    path = path_of(tmp_path)
    write_file(path, TAG, Kind.ROWS, PIECE, payload())
    for read in (
        lambda: read_header(path, b"another model..."),
        lambda: read_payload(path, bytes(16), Kind.ROWS, PIECE),
    ):
        with pytest.raises(NotOurs):
            read()


def test_a_file_under_anothers_name_is_not_taken_for_it(tmp_path: Path) -> None:
    path, other = path_of(tmp_path), path_of(tmp_path, Kind.STATE)
    write_file(path, TAG, Kind.ROWS, PIECE, payload())
    path.rename(other)
    with pytest.raises(Corrupt, match="name"):
        read_header(other, TAG)
    with pytest.raises(Corrupt, match="another piece"):
        read_payload(other, TAG, Kind.STATE, PIECE)


def test_the_same_key_with_other_tokens_is_another_piece(tmp_path: Path) -> None:
    path = path_of(tmp_path)
    write_file(path, TAG, Kind.ROWS, PIECE, payload())
    for tokens in ([5, 6, 7, 9], [5, 6, 7]):
        with pytest.raises(Corrupt, match="another piece"):
            read_payload(path, TAG, Kind.ROWS, Piece(PIECE.key, PIECE.parent, 4, prompt(tokens).tokens))


def refuse(*args: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def write_a_little(file: int, data: memoryview, write: Callable[[int, memoryview], int] = os.write) -> int:
    if os.fstat(file).st_size > 100:
        refuse()
    return write(file, data[:50])


STEPS: list[tuple[object, str, Callable[..., object]]] = [
    (os, "open", refuse),
    (os, "write", refuse),
    (os, "write", write_a_little),
    (os, "fdatasync", refuse),
    (Path, "rename", refuse),
]


@pytest.mark.parametrize("step", STEPS, ids=["open", "write", "later write", "flush", "rename"])
def test_a_refusal_at_any_step_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[object, str, Callable[..., object]]
) -> None:
    monkeypatch.setattr(*step)
    with pytest.raises(OSError, match="No space"):
        write_file(path_of(tmp_path), TAG, Kind.ROWS, PIECE, payload())
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_ends_in_the_middle_of_a_file(tmp_path: Path) -> None:
    """The kernel itself refuses, half a file in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (header_size(4) + 100, hard))
    try:
        with pytest.raises(OSError):
            write_file(path_of(tmp_path), TAG, Kind.ROWS, PIECE, payload())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
