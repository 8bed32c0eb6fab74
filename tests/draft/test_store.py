import threading

import numpy as np

from tandem.draft import store as store_module
from tandem.draft.archive import BYTES_A_TOKEN, Archive
from tandem.draft.grams import LONGEST
from tandem.draft.store import LookupStore

SIZE = 4096 * BYTES_A_TOKEN


def text(seed, length=100):
    return np.random.default_rng(seed).integers(0, 50_000, length).astype(np.uint32)


def archive_in(directory, readonly=False):
    return Archive(directory / "lookup", SIZE, bytes(32), readonly)


def is_found(view, tokens):
    return len(view.find(tokens[:50].tolist()).positions) > 0


class Gated(Archive):
    """Waits for `gate` before it keeps anything, and fails `failures` times."""

    def __init__(self, directory, failures=0):
        super().__init__(directory / "lookup", SIZE, bytes(32))
        self.gate, self.entered, self.failures = threading.Event(), threading.Event(), failures

    def add(self, scope, tokens):
        self.entered.set()
        self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        super().add(scope, tokens)


def test_what_is_remembered_is_found_by_its_scope_and_kept(tmp_path):
    store = LookupStore(archive_in(tmp_path))
    anna, ben = store.shelf("anna"), store.shelf("ben")
    store.remember("anna", text(1))
    store.remember("ben", text(2))
    store.close()
    assert is_found(anna.view, text(1)) and not is_found(anna.view, text(2))
    assert is_found(ben.view, text(2)) and not is_found(ben.view, text(1))

    store = LookupStore(archive_in(tmp_path))
    shelf = store.shelf("anna")
    store.close()
    assert is_found(shelf.view, text(1))


def test_read_only_answers_and_learns_nothing(tmp_path):
    store = LookupStore(archive_in(tmp_path))
    store.remember("", text(1))
    store.close()
    store = LookupStore(archive_in(tmp_path, readonly=True))
    shelf = store.shelf("")
    store.remember("", text(2))
    store.close()
    assert is_found(shelf.view, text(1)) and not is_found(shelf.view, text(2)) and not store.num_lost
    archive = archive_in(tmp_path)
    assert is_found(archive.view(""), text(1)) and not is_found(archive.view(""), text(2))


def test_nobody_waits_for_a_slow_disk_and_what_it_cannot_take_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "_MOST_WAITING", 3)
    archive = Gated(tmp_path)
    store = LookupStore(archive)
    shelf = store.shelf("")
    store.remember("", text(0))
    archive.entered.wait()
    for seed in range(1, 6):
        store.remember("", text(seed))
    assert store.num_lost == 2
    assert shelf.view.end == LONGEST
    archive.gate.set()
    store.close()
    assert [is_found(shelf.view, text(seed)) for seed in range(6)] == [True] * 4 + [False] * 2


def test_a_disk_that_fails_costs_texts_is_told_once_and_tried_again(tmp_path, caplog):
    archive = Gated(tmp_path, failures=2)
    archive.gate.set()
    store = LookupStore(archive)
    shelf = store.shelf("")
    for seed in range(4):
        store.remember("", text(seed))
    store.close()
    assert [is_found(shelf.view, text(seed)) for seed in range(4)] == [False, False, True, True]
    assert store.num_lost == 2
    (line,) = caplog.messages
    assert "No space left" in line


def test_what_another_scope_made_room_for_is_gone_from_sight(tmp_path):
    store = LookupStore(archive_in(tmp_path))
    first, second = store.shelf("first"), store.shelf("second")
    for seed in range(10):
        store.remember("first", text(seed, 300))
    for seed in range(10, 20):
        store.remember("second", text(seed, 300))
    store.close()
    assert not is_found(first.view, text(0, 300))
    assert is_found(first.view, text(9, 300)) and is_found(second.view, text(19, 300))
    assert (first.view.end + second.view.end - 2 * LONGEST) * BYTES_A_TOKEN <= SIZE
