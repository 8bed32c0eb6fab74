"""The disk tier's folder: what it finds after a restart, who goes when there is no room, and what a bad disk costs."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sequences import SECRET, prompt
from torch import Tensor

from tandem.caches.chunk_file import Kind, header_size
from tandem.caches.folder import Folder
from tandem.caches.prefix import Piece
from tandem.errors import CannotStart
from tandem.model.saved import host_memory

SIZE = 128  # bytes of a payload
FILE = header_size(4) + SIZE
DAY = 86400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(path: Path, clock: Clock, limit: int = 100 * FILE, model: bytes = b"model") -> Folder:
    path.mkdir(exist_ok=True)
    (path / "secret").write_bytes(SECRET)
    folder = Folder(path, model, limit, 30 * DAY, clock)
    folder.scan()
    return folder


def payload(piece: Piece) -> Tensor:
    data = host_memory(SIZE)
    data.copy_(torch.randint(0, 256, (SIZE,), generator=torch.Generator().manual_seed(int(piece.tokens.sum()))))
    return data


def write(folder: Folder, tokens: list[int], kind: Kind = Kind.ROWS) -> list[Piece]:
    """All its pieces, as far as they are not there."""
    pieces = list(prompt(tokens).pieces(len(tokens)))
    for piece in pieces:
        folder.write(piece, kind, payload(piece))
    return pieces


def held(folder: Folder, tokens: list[int]) -> int:
    """Rows of `tokens` that can be read from the first on, with the right bits."""
    rows = 0
    for piece in prompt(tokens).pieces(len(tokens)):
        match = folder.index.match(piece)
        if match is None:
            break
        data = folder.read(match[0], Kind.ROWS)
        assert data is not None and torch.equal(data, payload(match[0].piece))
        rows += match[1]
        if match[1] < piece.rows:
            break
    return rows


def test_what_was_written_is_there_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    folder = opened(tmp_path, clock)
    write(folder, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    write(folder, [1, 2, 3, 4], Kind.STATE)
    size = folder.stats.bytes
    folder.close()
    again = opened(tmp_path, clock)
    assert held(again, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == 9 and again.stats.bytes == size
    assert [chunk.has_state for chunk in sorted(again.index, key=lambda c: c.piece.first)] == [True, False, False]
    again.check_integrity()


def test_only_the_owner_looks_in(tmp_path: Path, clock: Clock) -> None:
    folder = Folder(tmp_path / "new" / "deep", b"model", 1, 1, clock)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()} == {0o600}
    assert len(folder.secret) == 32
    folder.close()
    assert Folder(folder.path, b"model", 1, 1, clock).secret == folder.secret


def test_a_folder_has_one_writer(tmp_path: Path, clock: Clock) -> None:
    folder = opened(tmp_path, clock)
    with pytest.raises(CannotStart, match="another process"):
        opened(tmp_path, clock)
    folder.close()
    opened(tmp_path, clock)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match="cannot be kept in"):
        Folder(tmp_path / "file" / "folder", b"model", 1, 1, clock)


def test_what_a_dead_process_left_unfinished_is_deleted(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "00.rows.new").write_bytes(b"half a file")
    opened(tmp_path, clock)
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize("damage", [b"", b"nothing of ours", None], ids=["empty", "foreign", "a state without rows"])
def test_what_is_not_what_it_says_is_deleted(tmp_path: Path, clock: Clock, damage: bytes | None) -> None:
    folder = opened(tmp_path, clock)
    (piece,) = write(folder, [1, 2, 3, 4])
    write(folder, [1, 2, 3, 4], Kind.STATE)
    folder.close()
    path = tmp_path / f"{piece.key.hex()}.rows"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    again = opened(tmp_path, clock)
    assert not list(tmp_path.glob("*.rows")) and not list(tmp_path.glob("*.state"))
    assert again.stats.bytes == 0 and again.stats.corrupt == (damage is not None)


def test_the_conversation_used_longest_ago_goes_first_and_of_it_the_end(tmp_path: Path, clock: Clock) -> None:
    folder = opened(tmp_path, clock, limit=5 * FILE)
    old, new = [1] * 12, [2] * 8
    write(folder, old)
    clock.now += 10
    write(folder, new)
    clock.now += 10
    write(folder, [3] * 4)
    assert (held(folder, old), held(folder, new), held(folder, [3] * 4)) == (8, 8, 4)
    folder.touch([prompt(old).key(12), prompt(old).key(8)])  # the last of them that is there
    clock.now += 10
    write(folder, [4] * 8)
    assert (held(folder, old), held(folder, new), held(folder, [3] * 4), held(folder, [4] * 8)) == (8, 0, 4, 8)
    assert folder.stats.evicted == 3
    folder.check_integrity()


def test_a_head_that_newer_conversations_go_on_from_is_not_old(tmp_path: Path, clock: Clock) -> None:
    """Even after a restart: of a used sequence only the last file's time says so."""
    folder = opened(tmp_path, clock)
    write(folder, [1] * 8)
    clock.now += 29 * DAY
    write(folder, [*[1] * 8, 2, 2, 2, 2])
    folder.close()
    clock.now += 2 * DAY
    again = opened(tmp_path, clock)
    assert held(again, [*[1] * 8, 2, 2, 2, 2]) == 12
    clock.now += 29 * DAY
    again.expire()
    assert again.stats.chunks == 0 == again.stats.bytes and again.stats.evicted == 3


def test_the_head_of_an_evicted_end_is_as_new_as_that(tmp_path: Path, clock: Clock) -> None:
    """Even after a restart."""
    folder = opened(tmp_path, clock, limit=3 * FILE)
    write(folder, [1] * 8)
    clock.now += 20 * DAY
    write(folder, [1] * 12)
    clock.now += DAY
    write(folder, [2] * 4)
    assert (held(folder, [1] * 12), held(folder, [2] * 4)) == (8, 4)
    clock.now += 14 * DAY
    folder.close()
    again = opened(tmp_path, clock, limit=3 * FILE)
    assert held(again, [1] * 12) == 8
    clock.now += 17 * DAY
    again.expire()
    assert again.stats.chunks == 0


def test_what_a_chunk_goes_on_from_makes_no_room_for_it(tmp_path: Path, clock: Clock) -> None:
    folder = opened(tmp_path, clock, limit=2 * FILE)
    pieces = write(folder, [1] * 12)
    assert held(folder, [1] * 12) == 8 and folder.index.get(pieces[2].key) is None
    assert not folder.write(pieces[2], Kind.ROWS, payload(pieces[2]))
    folder.check_integrity()


def test_a_lowered_limit_holds_from_the_start(tmp_path: Path, clock: Clock) -> None:
    folder = opened(tmp_path, clock)
    write(folder, [1] * 16)
    folder.close()
    again = opened(tmp_path, clock, limit=2 * FILE)
    assert held(again, [1] * 16) == 8
    again.check_integrity()


def test_a_file_larger_than_the_limit_pushes_nobody_out(tmp_path: Path, clock: Clock) -> None:
    folder = opened(tmp_path, clock, limit=2 * FILE)
    write(folder, [1] * 4)
    (piece,) = prompt([2] * 4).pieces(4)
    assert not folder.write(piece, Kind.ROWS, host_memory(3 * FILE))
    assert held(folder, [1] * 4) == 4 and folder.stats.failed == 0


def test_another_models_files_stay_until_room_is_wanted(tmp_path: Path, clock: Clock) -> None:
    """A trial of another model that is taken back finds its conversations."""
    folder = opened(tmp_path, clock, model=b"one", limit=3 * FILE)
    write(folder, [1] * 8)
    folder.close()
    other = opened(tmp_path, clock, model=b"other", limit=3 * FILE)
    assert held(other, [1] * 8) == 0 and other.stats.bytes == 2 * FILE and other.stats.chunks == 0
    write(other, [2] * 4)
    other.close()
    back = opened(tmp_path, clock, model=b"one", limit=3 * FILE)
    assert held(back, [1] * 8) == 8
    write(back, [3] * 4)
    assert held(back, [1] * 8) == 8 and back.stats.bytes == 3 * FILE
    back.check_integrity()


def test_an_end_that_has_grown_gives_way(tmp_path: Path, clock: Clock) -> None:
    folder = opened(tmp_path, clock)
    write(folder, [1, 2, 3, 4, 5, 6])
    write(folder, [1, 2, 3, 4, 7])
    write(folder, [1, 2, 3, 4, 5, 6, 7])
    assert held(folder, [1, 2, 3, 4, 5, 6, 7]) == 7 and folder.stats.chunks == 3
    write(folder, [1, 2, 3, 4, 5, 6, 7], Kind.STATE)
    write(folder, [1, 2, 3, 4, 5, 6, 7, 8])
    assert folder.stats.chunks == 4  # a place to go on is not outgrown
    folder.check_integrity()


# --- bad disks ---


def damage(folder: Folder, piece: Piece, kind: Kind = Kind.ROWS) -> Path:
    path = folder.path / f"{piece.key.hex()}.{kind.name.lower()}"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path


def test_a_corrupt_chunk_is_said_once_and_gone(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    folder = opened(tmp_path, clock)
    pieces = write(folder, [7, 8, 9, 7, 5, 6, 7, 8])
    chunk = folder.index.get(pieces[1].key)
    path = damage(folder, pieces[1])
    assert chunk and folder.read(chunk, Kind.ROWS) is None and folder.read(chunk, Kind.ROWS) is None
    assert not path.exists() and folder.stats.corrupt == 1
    assert held(folder, [7, 8, 9, 7, 5, 6, 7, 8]) == 4
    assert [record.getMessage().startswith(f"[caches] {path}") for record in caplog.records] == [True]
    write(folder, [7, 8, 9, 7, 5, 6, 7, 8])
    assert held(folder, [7, 8, 9, 7, 5, 6, 7, 8]) == 8
    folder.check_integrity()


def test_a_corrupt_state_leaves_its_rows(tmp_path: Path, clock: Clock) -> None:
    folder = opened(tmp_path, clock)
    pieces = write(folder, [1, 2, 3, 4])
    write(folder, [1, 2, 3, 4], Kind.STATE)
    damage(folder, pieces[0], Kind.STATE)
    chunk = folder.index.get(pieces[0].key)
    assert chunk and folder.read(chunk, Kind.STATE) is None
    assert not chunk.has_state and held(folder, [1, 2, 3, 4]) == 4
    folder.check_integrity()


def test_an_unreadable_file_is_asked_for_once(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be read leaves index and byte count, though it may not even be deletable."""
    folder = opened(tmp_path, clock)
    pieces = write(folder, [1] * 8)
    chunks = [folder.index.get(piece.key) for piece in pieces]

    def refuse(*args: object, **kwargs: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    for chunk in reversed(chunks):
        assert chunk and folder.read(chunk, Kind.ROWS) is None and folder.read(chunk, Kind.ROWS) is None
    assert folder.stats.bytes == 0 == folder.stats.chunks and folder.stats.failed == 4
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
    folder.check_integrity()


def test_a_full_disk_is_said_once_until_it_works_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = opened(tmp_path, clock)
    write(folder, [1] * 4)

    def refuse(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", refuse)
    write(folder, [1] * 12)
    write(folder, [2] * 4)
    assert folder.is_failing and folder.stats.failed == 3 and folder.stats.chunks == 1
    assert len(caplog.records) == 1 and "No space left" in caplog.text and str(tmp_path) in caplog.text
    assert held(folder, [1] * 4) == 4
    monkeypatch.undo()
    write(folder, [1] * 12)
    assert not folder.is_failing and held(folder, [1] * 12) == 12
    folder.check_integrity()


def test_a_file_deleted_by_someone_else_is_not_there(tmp_path: Path, clock: Clock) -> None:
    folder = opened(tmp_path, clock)
    (piece,) = write(folder, [1] * 4)
    (tmp_path / f"{piece.key.hex()}.rows").unlink()
    chunk = folder.index.get(piece.key)
    assert chunk and folder.read(chunk, Kind.ROWS) is None and held(folder, [1] * 4) == 0
    folder.check_integrity()


def test_no_log_line_holds_a_token(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    folder = opened(tmp_path, clock)
    (piece,) = write(folder, [31337, 31338, 31339, 31340])
    damage(folder, piece)
    chunk = folder.index.get(piece.key)
    assert chunk and folder.read(chunk, Kind.ROWS) is None
    assert caplog.text and "3133" not in caplog.text


class Years(RuleBasedStateMachine):
    """Sequences are written, used, damaged and looked for; days pass, and now and then the box restarts."""

    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=13)

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.place = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.limit = 7 * FILE
        self.folder = opened(Path(self.place.name), self.clock, self.limit)

    @rule(tokens=tokens, kind=st.sampled_from(list(Kind)))
    def write(self, tokens: list[int], kind: Kind) -> None:
        write(self.folder, tokens, kind)

    @rule(tokens=tokens)
    def use(self, tokens: list[int]) -> None:
        self.folder.touch([prompt(tokens).key(len(tokens))])

    @rule(tokens=tokens)
    def look(self, tokens: list[int]) -> None:
        held(self.folder, tokens)

    @rule(tokens=tokens)
    def go_bad(self, tokens: list[int]) -> None:
        if chunk := self.folder.index.get(prompt(tokens).key(len(tokens))):
            damage(self.folder, chunk.piece)
            assert self.folder.read(chunk, Kind.ROWS) is None

    @rule(days=st.integers(1, 20))
    def wait(self, days: int) -> None:
        self.clock.now += days * DAY
        self.folder.expire()
        assert all(chunk.used >= self.clock.now - 30 * DAY or self.goes_on(chunk.piece) for chunk in self.folder.index)

    def goes_on(self, piece: Piece) -> bool:
        return bool(self.folder.index.children(piece.key))

    @rule()
    def restart(self) -> None:
        before = {(chunk.piece.key, *chunk.sizes) for chunk in self.folder.index}
        self.folder.close()
        self.folder = opened(Path(self.place.name), self.clock, self.limit)
        assert {(chunk.piece.key, *chunk.sizes) for chunk in self.folder.index} == before

    @invariant()
    def books_are_right(self) -> None:
        self.folder.check_integrity()
        files = [path for path in Path(self.place.name).iterdir() if path.suffix in (".rows", ".state")]
        assert sum(path.stat().st_size for path in files) == self.folder.stats.bytes

    def teardown(self) -> None:
        self.folder.close()
        self.place.cleanup()


Years.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestYears = Years.TestCase
