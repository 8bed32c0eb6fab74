import numpy as np
import pytest

from tandem.draft import volume
from tandem.draft.grams import BOUNDARY
from tandem.draft.volume import ForeignVolume, append_to, document, read_volume

OURS, THEIRS = bytes(32), bytes([1] * 32)


def words(*tokens):
    return np.array(tokens, np.uint32)


def documents(read):
    """The tokens of each, without what surrounds them."""
    found, at = [], 0
    while at < len(read):
        assert read[at + 2] == BOUNDARY == read[at + 3 + read[at]]
        found.append(read[at + 3 : at + 3 + read[at]].tolist())
        at += 4 + int(read[at])
    return found


def written(path, *texts):
    end = 0
    for text in texts:
        append_to(path, end, document(words(*text)), OURS)
        end += len(text) + 4
    return end


def test_documents_come_back_in_order(tmp_path):
    path = tmp_path / "v"
    written(path, [1, 2, 3], [], [7] * 100)
    assert documents(read_volume(path, OURS)) == [[1, 2, 3], [], [7] * 100]


def test_a_file_cut_anywhere_holds_the_documents_before_the_cut(tmp_path):
    path = tmp_path / "v"
    written(path, [1, 2, 3], [4, 5, 6, 7])
    whole = path.read_bytes()
    first_ends = 64 + 4 * 7
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert documents(read_volume(path, OURS)) == ([[1, 2, 3]] if size >= first_ends else []), size


def test_what_is_written_behind_a_cut_is_read_again(tmp_path):
    path = tmp_path / "v"
    written(path, [1, 2, 3], [4, 5, 6, 7])
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        kept = read_volume(path, OURS)
        append_to(path, len(kept), document(words(8, 9)), OURS)
        assert documents(read_volume(path, OURS)) == [*documents(kept), [8, 9]], size
        assert path.stat().st_size == 64 + 4 * (len(kept) + 6), "nothing of the tail is left"


def test_a_changed_byte_ends_what_counts(tmp_path):
    path = tmp_path / "v"
    written(path, [1, 2, 3], [4, 5, 6, 7])
    whole = path.read_bytes()
    for at in range(64 + 4 * 7, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert documents(read_volume(path, OURS)) == [[1, 2, 3]], at


def test_zeros_that_a_power_cut_leaves_are_no_document(tmp_path):
    path = tmp_path / "v"
    written(path, [1, 2, 3])
    with path.open("ab") as file:
        file.write(bytes(4096))
    assert documents(read_volume(path, OURS)) == [[1, 2, 3]]


def test_another_tokenizer_and_another_file_are_foreign(tmp_path):
    path = tmp_path / "v"
    written(path, [1, 2, 3])
    with pytest.raises(ForeignVolume):
        read_volume(path, THEIRS)
    path.write_bytes(b"some other file that has nothing to do with this one, and is longer than a header")
    with pytest.raises(ForeignVolume):
        read_volume(path, OURS)


def test_a_disk_that_fills_up_leaves_the_volume_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "v"
    end = written(path, [1, 2, 3])
    before = path.read_bytes()
    real = volume.os.pwrite

    def half(file, data, offset):
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return real(file, data[: len(data) // 2], offset)

    monkeypatch.setattr(volume.os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        append_to(path, end, document(words(*range(50))), OURS)
    assert path.read_bytes() == before
