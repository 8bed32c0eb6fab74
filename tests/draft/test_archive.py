import logging
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.draft.archive import BYTES_A_TOKEN, Archive
from tandem.draft.grams import BOUNDARY, LONGEST
from tandem.draft.volume import read_volume
from tandem.errors import CannotStart

OURS, THEIRS = bytes(32), bytes([1] * 32)
SIZE = 4096 * BYTES_A_TOKEN  # 4,096 words in volumes of 256


def text(seed, length=100):
    return np.random.default_rng(seed).integers(0, 50_000, length).astype(np.uint32)


def archive_in(directory, size=SIZE, tokenizer=OURS, readonly=False):
    return Archive(directory / "lookup", size, tokenizer, readonly)


def documents(archive, scope=""):
    """What this scope may find, document by document."""
    view = archive.view(scope)
    words, found, at = view.words[LONGEST : view.end], [], 0
    while at < len(words):
        count = int(words[at])
        assert words[at + 2] == BOUNDARY == words[at + 3 + count]
        found.append(words[at + 3 : at + 3 + count].tolist())
        at += 4 + count
    return found


def reopened(archive, directory, **how):
    archive.close()
    return archive_in(directory, **how)


def test_a_text_is_found_again_after_a_restart(tmp_path):
    archive = archive_in(tmp_path)
    texts = [text(1), text(2, 300), text(3)]
    for each in texts:
        archive.add("", each)
    expected = [each.tolist() for each in texts]
    assert documents(archive) == expected
    archive = reopened(archive, tmp_path)
    assert documents(archive) == expected
    archive.check_integrity()
    places = archive.view("").find(texts[1][:50].tolist())
    assert archive.view("").after(places.positions, 5).tolist() == [texts[1][50:55].tolist()]


def test_a_file_cut_anywhere_in_its_last_document_keeps_the_others(tmp_path):
    archive = archive_in(tmp_path)
    archive.add("", text(1, 40))
    (path,) = (tmp_path / "lookup").glob("*.tokens")
    first_ends = path.stat().st_size
    archive.add("", text(2, 40))
    whole = path.read_bytes()
    for size in range(first_ends, len(whole)):
        path.write_bytes(whole[:size])
        archive = reopened(archive, tmp_path)
        assert documents(archive) == [text(1, 40).tolist()]
        archive.add("", text(3, 40))
        archive = reopened(archive, tmp_path)
        assert documents(archive) == [text(1, 40).tolist(), text(3, 40).tolist()]


@pytest.mark.wire
def test_a_process_killed_while_it_writes_leaves_whole_documents(tmp_path):
    program = (
        "import sys; from pathlib import Path; import numpy as np; from tandem.draft.archive import Archive\n"
        f"archive = Archive(Path(sys.argv[1]) / 'lookup', {SIZE * 100}, bytes(32))\n"
        "for number in range(1_000_000):\n"
        "    archive.add('', np.arange(number, number + 200, dtype=np.uint32) * 3)\n"
        "    print(number, flush=True)\n"
    )
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as process:
            assert process.stdout
            for _ in range(20):
                last = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGKILL)
        archive = archive_in(tmp_path, SIZE * 100, readonly=True)
        kept = documents(archive)
        assert any(document[-1] == 3 * (last + 199) for document in kept)
        assert all(np.diff(document).tolist() == [3] * (len(document) - 1) for document in kept)


def test_a_scope_never_sees_another(tmp_path):
    archive = archive_in(tmp_path)
    archive.add("anna", text(1))
    archive.add("ben", text(2))
    archive.add("", text(3))
    for _ in range(2):
        assert [documents(archive, scope) for scope in ("anna", "ben", "", "carl")] == [
            [text(1).tolist()],
            [text(2).tolist()],
            [text(3).tolist()],
            [],
        ]
        assert not len(archive.view("ben").find(text(1)[:50].tolist()).positions)
        archive = reopened(archive, tmp_path)


def test_a_scope_is_not_named_in_the_directory(tmp_path):
    archive = archive_in(tmp_path)
    archive.add("secret-key", text(1))
    assert not [path for path in (tmp_path / "lookup").iterdir() if "secret" in path.name]


def test_only_the_owner_may_look(tmp_path):
    mask = os.umask(0)
    try:
        (tmp_path / "lookup").mkdir(mode=0o777)
        archive = archive_in(tmp_path)
        archive.add("", text(1))
    finally:
        os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [tmp_path / "lookup", *(tmp_path / "lookup").iterdir()]}
    assert modes.pop("lookup") == 0o700
    assert len(modes) == 2 and set(modes.values()) == {0o600}


def test_the_oldest_half_is_forgotten_where_documents_end(tmp_path):
    archive = archive_in(tmp_path)
    texts = [text(seed, 200) for seed in range(60)]
    num_kept = []
    for count, each in enumerate(texts, 1):
        archive.add("", each)
        archive.check_integrity()
        kept = documents(archive)
        assert kept == [each.tolist() for each in texts[count - len(kept) : count]]
        num_kept.append(len(kept))
    after = [(new, old) for old, new in pairwise(num_kept) if new < old]
    assert len(after) >= 3
    assert all(0.4 * old <= new - 1 <= 0.5 * old for new, old in after)  # less the one that was added
    assert documents(reopened(archive, tmp_path)) == kept


def test_who_keeps_most_forgets_first(tmp_path):
    archive = archive_in(tmp_path)
    archive.add("small", text(1, 300))
    for seed in range(2, 80):
        archive.add("large", text(seed, 200))
        archive.check_integrity()
    assert documents(archive, "small") == [text(1, 300).tolist()]


def test_of_a_text_too_long_to_keep_its_end_is_kept(tmp_path):
    archive = archive_in(tmp_path)
    long = text(1, 10_000)
    archive.add("", long)
    assert documents(archive) == [long[-1024:].tolist()]
    archive.check_integrity()


def test_a_lower_cap_forgets_at_the_start(tmp_path):
    archive = archive_in(tmp_path)
    texts = [text(seed, 200) for seed in range(15)]
    for each in texts:
        archive.add("", each)
    archive = reopened(archive, tmp_path, size=SIZE // 2)
    kept = documents(archive)
    archive.check_integrity()
    assert 0 < len(kept) < 15 and kept == [each.tolist() for each in texts[-len(kept) :]]


def test_a_chat_is_kept_once_though_every_turn_brings_it_again(tmp_path):
    archive = archive_in(tmp_path)
    turns = [text(seed, 200) for seed in range(4)]
    for count in range(1, 5):
        archive.add("", np.concatenate(turns[:count]))
    lead_up = [[], *(turn[-LONGEST:].tolist() for turn in turns)]
    assert documents(archive) == [lead_up[at] + turns[at].tolist() for at in range(4)]
    held = archive.num_words
    archive.add("", np.concatenate(turns))
    assert archive.num_words == held


def test_a_scrap_is_not_kept(tmp_path):
    archive = archive_in(tmp_path)
    archive.add("", text(1, 10))
    assert documents(archive) == []


def test_another_tokenizer_starts_over_and_says_so_once(tmp_path, caplog):
    archive = archive_in(tmp_path)
    for seed in range(8):
        archive.add("", text(seed, 200))
    archive.close()
    with caplog.at_level(logging.INFO):
        archive = archive_in(tmp_path, tokenizer=THEIRS)
    assert documents(archive) == []
    (line,) = caplog.messages
    assert "another tokenizer" in line and "starting over" in line
    assert not list((tmp_path / "lookup").glob("*.tokens"))
    archive.add("", text(20))
    assert documents(archive) == [text(20).tolist()]


def test_read_only_deletes_nothing_of_another_tokenizer(tmp_path):
    archive = archive_in(tmp_path)
    archive.add("", text(1))
    archive.close()
    assert documents(archive_in(tmp_path, tokenizer=THEIRS, readonly=True)) == []
    assert documents(archive_in(tmp_path)) == [text(1).tolist()]


def test_read_only_makes_and_changes_nothing(tmp_path):
    archive_in(tmp_path, readonly=True).view("")
    assert not (tmp_path / "lookup").exists()
    archive = archive_in(tmp_path)
    archive.add("", text(1))
    archive.close()
    (path,) = (tmp_path / "lookup").glob("*.tokens")
    path.write_bytes(path.read_bytes() + b"torn")
    before = {each: each.read_bytes() for each in (tmp_path / "lookup").iterdir()}
    archive = archive_in(tmp_path, size=BYTES_A_TOKEN, readonly=True)
    assert documents(archive) == [text(1).tolist()]
    assert {each: each.read_bytes() for each in (tmp_path / "lookup").iterdir()} == before


def test_a_directory_that_another_process_writes_is_read_only(tmp_path, caplog):
    writer = archive_in(tmp_path)
    writer.add("", text(1))
    second = archive_in(tmp_path)
    assert second.readonly and "another process" in caplog.text
    assert documents(second) == [text(1).tolist()]
    writer.close()
    assert not archive_in(tmp_path).readonly


def test_a_directory_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "lookup").write_text("a file")
    with pytest.raises(CannotStart, match="lookup store"):
        archive_in(tmp_path)


def test_other_files_in_the_directory_are_left_alone(tmp_path):
    archive_in(tmp_path).close()
    (tmp_path / "lookup" / "notes.txt").write_text("mine")
    archive_in(tmp_path, tokenizer=THEIRS)
    assert (tmp_path / "lookup" / "notes.txt").read_text() == "mine"


def test_a_full_disk_keeps_what_was_there(tmp_path, monkeypatch):
    archive = archive_in(tmp_path)
    archive.add("", text(1))

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tandem.draft.volume.os.pwrite", full)
        with pytest.raises(OSError, match="No space"):
            archive.add("", text(2))
    archive.check_integrity()
    archive.add("", text(3))
    assert documents(archive) == documents(reopened(archive, tmp_path)) == [text(1).tolist(), text(3).tolist()]


steps = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(16, 1500), st.booleans()), max_size=30)


@settings(max_examples=40, deadline=None)
@given(steps)
def test_whatever_is_kept_each_scope_has_its_own_latest(tmp_path_factory, steps):
    directory: Path = tmp_path_factory.mktemp("archive")
    archive = archive_in(directory)
    kept: dict[str, list[list[int]]] = {"a": [], "b": [], "c": []}
    for seed, (scope, length, restart) in enumerate(steps):
        archive.add(scope, text(seed, length))
        kept[scope].append(text(seed, length)[-1024:].tolist())
        if restart:
            archive = reopened(archive, directory)
        archive.check_integrity()
        for each, texts in kept.items():
            found = documents(archive, each)
            assert found == texts[len(texts) - len(found) :]
        assert documents(archive, scope)[-1] == kept[scope][-1]
    for path in (directory / "lookup").glob("*.tokens"):
        read_volume(path, OURS)
