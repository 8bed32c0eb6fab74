"""Rows on their way into a state: what is skipped, what is looked for again, and what is left when nothing comes."""

from __future__ import annotations

from pathlib import Path

from sequences import hybrid_state, kv_state, read, reading, same_rows
from tiers import SOON, A, conversation, found, load, opened, park, path_of, until, written

from tandem.caches.chunk_file import Kind
from tandem.caches.found import Source
from tandem.memory.budget import Level


def test_rows_a_slot_has_already_are_not_read_again(tmp_path: Path) -> None:
    with opened(tmp_path, memory=0) as caches:
        park(caches, A)
        written(caches)
        prompt, state = caches.prompt("one", [*A, 11]), reading(kv_state, A[:8])
        there = caches.find(prompt)
        assert there
        restore = caches.restore(prompt, there)
        restore.begin(state, 8)
        assert restore.finish() == 10 and restore.loaded == {Source.DISK: 2}
        assert same_rows(state, reading(kv_state, A), 10)


def test_what_a_slot_has_stays_when_nothing_comes(tmp_path: Path) -> None:
    with opened(tmp_path, memory=0) as caches:
        park(caches, A)
        written(caches)
        prompt, state = caches.prompt("one", [*A, 11]), reading(kv_state, A[:8])
        there = caches.find(prompt)
        assert there
        path_of(tmp_path, caches, A).unlink()
        restore = caches.restore(prompt, there)
        restore.begin(state, 8)
        assert restore.finish() == 8 and restore.loaded == {}


def test_what_cannot_be_read_is_looked_for_in_memory(tmp_path: Path) -> None:
    with opened(tmp_path) as caches:
        caches.write_behind(caches.prompt("one", A), 10, reading(kv_state, A))
        written(caches)
        prompt = caches.prompt("one", [*A, 11])
        there = caches.find(prompt)
        assert there and there.source is Source.DISK
        path_of(tmp_path, caches, A[:4]).unlink()
        caches.store_head(prompt, 8, reading(kv_state, [*A, 11]))
        state = kv_state()
        assert caches.load(prompt, there, state) == 10
        assert caches.stats.restored == {Source.STORE: 8, Source.DISK: 2}
        assert same_rows(state, reading(kv_state, A), 10)


def test_memory_that_was_wanted_meanwhile_is_still_whole_for_who_was_promised_it() -> None:
    with opened() as caches:
        park(caches, A)
        prompt, state = caches.prompt("one", [*A, 11]), kv_state()
        there = caches.find(prompt)
        assert there
        restore = caches.restore(prompt, there)
        restore.begin(state)
        restore.advance()
        caches.give_back(Level.PARK, 1 << 30)
        assert found(caches, A) == (0, "none")
        assert restore.finish() == 10 and same_rows(state, reading(kv_state, A), 10)


def test_a_state_whose_rows_came_and_whose_memory_did_not_starts_over(tmp_path: Path) -> None:
    with opened(tmp_path, new=hybrid_state, any_row=False, memory=0) as caches:
        state, anchors = conversation(4)
        caches.park(caches.prompt("one", A), 4, state, anchors)
        written(caches)
        prompt = caches.prompt("one", A)
        there = caches.find(prompt)
        assert there
        path_of(tmp_path, caches, A[:4], Kind.STATE).unlink()
        other = reading(hybrid_state, [9] * 7)
        assert caches.load(prompt, there, other) == 0
        assert other.resumable(9) == 0
        read(other, A)


def test_nobody_waits_for_a_tier_that_was_closed(tmp_path: Path) -> None:
    with opened(tmp_path, memory=0) as caches:
        park(caches, A)
        written(caches)
        prompt, state = caches.prompt("one", [*A, 11]), kv_state()
        there = caches.find(prompt)
        assert there
        restore = caches.restore(prompt, there)
        until(lambda: (stats := caches.stats.disk) is not None and stats.folder.read == 3)
        caches.close(SOON)
        late = caches.restore(prompt, there)
        restore.begin(state)
        assert restore.finish() == 10
        late.begin(kv_state())
        assert late.finish() == 0
        assert load(caches, [*A, 11]) == 0 and not park(caches, A)
