"""Memory and disk as one: what is found, where it comes from, and that it has the bits it was given."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequences import CHUNK, Books, hybrid_state, kv_state, read, reading, same_rows
from tiers import LOTS, SOON, A, conversation, found, load, opened, park, path_of, until, written

from tandem.caches.chunk_file import Kind
from tandem.caches.found import Source
from tandem.caches.opening import DiskTier, open_caches
from tandem.memory.budget import Level
from tandem.model import saved

# --- finding ---


def test_the_next_turn_finds_all_but_what_is_new() -> None:
    with opened() as caches:
        park(caches, A)
        assert found(caches, [*A, 11, 12]) == (10, "park")
        assert load(caches, [*A, 11, 12]) == 10


def test_an_edited_turn_finds_what_comes_before_the_edit() -> None:
    with opened() as caches:
        park(caches, A)
        assert load(caches, [1, 2, 3, 4, 5, 6, 0, 8, 9]) == 6


def test_at_least_one_token_is_left_to_read() -> None:
    with opened() as caches:
        park(caches, A)
        assert [load(caches, A[:rows]) for rows in (10, 9, 8, 5, 1)] == [9, 8, 7, 4, 0]


def test_without_row_exact_rows_a_sequence_goes_on_from_the_grid() -> None:
    with opened(any_row=False) as caches:
        park(caches, A[:8])
        assert [load(caches, tokens) for tokens in ([*A, 11], A[:8], [1, 2, 3, 4, 5, 0])] == [8, 4, 4]


def test_nothing_crosses_a_scope() -> None:
    with opened() as caches:
        park(caches, A)
        assert found(caches, [*A, 11], scope="two") == (0, "none")
        park(caches, A, scope="two")
        caches.give_back(Level.PARK, 1)
        assert found(caches, [*A, 11], scope="two")[0] + found(caches, [*A, 11])[0] in (18, 20)


def test_the_source_is_that_of_the_last_rows() -> None:
    with opened() as caches:
        state = reading(kv_state, A)
        caches.store_head(caches.prompt("one", A), 4, state)
        assert found(caches, A) == (4, "store")
        park(caches, A[:8])
        assert found(caches, [1, 2, 3, 4, 0]) == (4, "park") and found(caches, A) == (8, "park")
        pin = caches.pin(caches.prompt("one", A), 10, state)
        assert pin and found(caches, [*A, 11]) == (10, "pin")
        caches.release(pin)
        assert found(caches, [*A, 11]) == (8, "park")


def test_a_stash_comes_back_and_is_forgotten() -> None:
    books = Books()
    with opened(books=books) as caches:
        state, tokens = reading(kv_state, A), caches.prompt("one", A)
        hold = caches.stash(tokens, 6, state)
        assert hold
        read(state, [9] * 6)
        assert caches.unstash(hold, state) == 6
        assert same_rows(state, reading(kv_state, A), 10) and books.budget.cached == 0


def test_rows_a_slot_has_already_are_not_loaded_again() -> None:
    with opened() as caches:
        park(caches, A)
        prompt, state = caches.prompt("one", [*A, 11]), reading(kv_state, A[:4])
        there = caches.find(prompt)
        assert there
        restore = caches.restore(prompt, there)
        restore.begin(state, 4)
        assert restore.finish() == 10 and restore.loaded == {Source.PARK: 6}
        assert same_rows(state, reading(kv_state, A), 10)


def test_one_piece_is_loaded_at_a_time() -> None:
    """Between two of them others have their round."""
    with opened() as caches:
        park(caches, A)
        prompt = caches.prompt("one", [*A, 11])
        there = caches.find(prompt)
        assert there
        restore = caches.restore(prompt, there)
        restore.begin(kv_state())
        assert [restore.advance() for _ in range(4)] == [False, False, False, True]


def test_as_long_as_nothing_changes_the_same_is_found(tmp_path: Path) -> None:
    """Whoever waits looks again only after a change: of rows, of states, and of where they come from."""
    with opened(tmp_path, new=hybrid_state, any_row=False) as caches:
        state, anchors = conversation(4, 8)
        prompt, seen = caches.prompt("one", A), [caches.changes]

        def found_anew() -> tuple[int, str]:
            assert caches.changes > seen[-1]
            seen.append(caches.changes)
            return found(caches, A)

        caches.store_head(prompt, 8, state)
        assert found_anew() == (0, "none")
        caches.store_head(prompt, 4, state, anchors[:1])
        assert found_anew() == (4, "store")
        caches.pin(prompt, 4, state, anchors[:1])
        assert found_anew() == (4, "pin")
        caches.write_behind(prompt, 8, state, anchors)
        written(caches)
        assert found_anew() == (8, "store")
        path_of(tmp_path, caches, A[:8], Kind.STATE).unlink()
        load(caches, A, hybrid_state)
        assert found_anew() == (4, "pin")
        found(caches, A), load(caches, A, hybrid_state)
        assert caches.changes == seen[-1]


# --- disk ---


def test_a_restarted_appliance_resumes(tmp_path: Path) -> None:
    with opened(tmp_path) as caches:
        assert park(caches, A)
    with opened(tmp_path) as caches:
        assert found(caches, [*A, 11]) == (10, "disk")
        assert load(caches, [*A, 11]) == 10
        assert load(caches, [1, 2, 3, 4, 5, 6, 0, 8]) == 6
        stats = caches.stats
        assert stats.restored == {Source.DISK: 16} and (stats.lookups, stats.restores, stats.hits) == (3, 2, 2)
        assert stats.disk and stats.disk.folder.read == 5


def test_a_longer_conversation_than_memory_holds_is_spilled(tmp_path: Path) -> None:
    with opened(tmp_path, memory=100) as caches:
        assert park(caches, A)
        written(caches)
        assert load(caches, [*A, 11]) == 10 and caches.stats.refused == 1
    with opened(memory=100) as caches:
        assert not park(caches, A)


def test_rows_come_from_memory_as_far_as_it_goes(tmp_path: Path) -> None:
    with opened(tmp_path) as caches:
        park(caches, A)
        written(caches)
        caches.give_back(Level.PARK, 1)
        assert found(caches, [*A, 11]) == (10, "disk") and load(caches, [*A, 11]) == 10
        assert caches.stats.restored == {Source.PARK: 8, Source.DISK: 2}


def test_nothing_is_written_twice(tmp_path: Path) -> None:
    with opened(tmp_path) as caches:
        state, prompt = reading(kv_state, A), caches.prompt("one", A)
        for rows in (4, 4, 8, 10, 10):
            assert caches.write_behind(prompt, rows, state) == 0
        written(caches)
        assert caches.write_behind(prompt, 10, state) == 0
        written(caches)
        assert caches.stats.disk and caches.stats.disk.folder.written == 3


@pytest.mark.parametrize("waiting", [kv_state().saved_bytes(4), 1], ids=["one", "less than one"])
def test_what_the_disk_has_no_time_for_is_dropped_and_may_come_again(tmp_path: Path, waiting: int) -> None:
    with opened(tmp_path, waiting=waiting) as caches:
        state, prompt = reading(kv_state, A), caches.prompt("one", A)
        dropped = 0
        while left := caches.write_behind(prompt, 10, state):
            assert left in (1, 2)
            dropped += 1
            written(caches)
        written(caches)
        assert load(caches, [*A, 11]) == 10
        assert caches.stats.disk and caches.stats.disk.dropped == dropped >= 1


def test_no_memory_for_a_copy_costs_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an answer leaves is offered again later; the engine that offered it goes on."""
    with opened(tmp_path) as caches:
        state = reading(kv_state, A)
        prompt = caches.prompt("one", A)

        def full(size: int) -> NoReturn:
            raise OSError(12, "Cannot allocate memory")

        with monkeypatch.context() as short:
            short.setattr(saved, "host_memory", full)
            assert caches.write_behind(prompt, len(A), state) == 3
        assert caches.write_behind(prompt, len(A), state) == 0


def test_a_waiting_request_reads_ahead(tmp_path: Path) -> None:
    with opened(tmp_path) as caches:
        park(caches, A)
    with opened(tmp_path) as caches:
        prompt = caches.prompt("one", [*A, 11])
        there = caches.find(prompt)
        assert there and sum(step.rows for step in there.steps if step.source is Source.DISK) == 10
        restore = caches.restore(prompt, there)
        until(lambda: (stats := caches.stats.disk) is not None and stats.folder.read == 3)
        state = kv_state()
        restore.begin(state)
        assert [restore.advance() for _ in range(4)] == [False, False, False, True]
        assert same_rows(state, reading(kv_state, A), 10)


def test_a_request_that_leaves_stops_its_reading(tmp_path: Path) -> None:
    with opened(tmp_path) as caches:
        park(caches, A)
    with opened(tmp_path) as caches:
        prompt = caches.prompt("one", [*A, 11])
        there = caches.find(prompt)
        assert there
        caches.restore(prompt, there).cancel()
        assert load(caches, [*A, 11]) == 10


def test_a_corrupt_chunk_costs_what_lies_behind_it(tmp_path: Path) -> None:
    with opened(tmp_path) as caches:
        park(caches, A)
    with opened(tmp_path) as caches:
        path = path_of(tmp_path, caches, A[:8])
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        assert load(caches, [*A, 11]) == 4 and not path.exists()
        assert caches.stats.disk and caches.stats.disk.folder.corrupt == 1
        assert park(caches, A)
        written(caches)
    with opened(tmp_path) as caches:
        assert load(caches, [*A, 11]) == 10


@pytest.mark.parametrize("gone", [4, 8, 10])
def test_a_file_that_is_gone_costs_what_lies_behind_it(tmp_path: Path, gone: int) -> None:
    with opened(tmp_path) as caches:
        park(caches, A)
    with opened(tmp_path) as caches:
        path_of(tmp_path, caches, A[:gone]).unlink()
        assert load(caches, [*A, 11]) == {4: 0, 8: 4, 10: 8}[gone]
        stats = caches.stats
        assert (stats.lookups, stats.restores, stats.hits) == (1, 1, gone != 4)


def test_a_folder_that_cannot_be_used_is_no_disk_tier(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path):
        holdings = Books().holdings
        other = open_caches(CHUNK, b"model", kv_state(), holdings, LOTS, DiskTier(tmp_path, 1, 1, 1), any_row=True)
        assert other.stats.disk is None and "no disk tier" in caplog.text
        assert park(other, A) and load(other, [*A, 11]) == 10


def test_another_model_finds_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as caches:
        park(caches, A)
    for chunk, fingerprint, new in (
        (CHUNK, b"other", kv_state),
        (2, b"model", kv_state),
        (CHUNK, b"model", hybrid_state),
    ):
        tier = DiskTier(tmp_path, LOTS, 1e9, LOTS)
        caches = open_caches(chunk, fingerprint, new(), Books().holdings, LOTS, tier, any_row=True)
        until(lambda caches=caches: (stats := caches.stats.disk) is not None and stats.is_scanned)
        assert found(caches, [*A, 11]) == (0, "none")
        caches.close(SOON)


# --- states that cannot rewind ---


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_recurrent_sequence_goes_on_where_its_state_was_kept(tmp_path: Path, on_disk: bool) -> None:
    with opened(
        tmp_path if on_disk else None, new=hybrid_state, any_row=False, memory=0 if on_disk else LOTS
    ) as caches:
        state, anchors = conversation(4, 8, 10)
        assert caches.park(caches.prompt("one", A), 10, state, [anchors[0], anchors[2]])
        if on_disk:
            written(caches)
        assert load(caches, [*A, 11], hybrid_state) == 10
        assert load(caches, [*A[:9], 0], hybrid_state) == 4  # rows of 8 are there, a state is not
        assert load(caches, A, hybrid_state) == 4
        assert load(caches, A[:4], hybrid_state) == 0
        assert caches.park(caches.prompt("one", A), 8, state, anchors[:2])
        if on_disk:
            written(caches)
        assert load(caches, [*A[:9], 0], hybrid_state) == 8


def test_a_state_on_disk_completes_rows_in_memory(tmp_path: Path) -> None:
    with opened(tmp_path, new=hybrid_state, any_row=False) as caches:
        state, anchors = conversation(4, 8)
        prompt = caches.prompt("one", A)
        caches.write_behind(prompt, 8, state, anchors)
        written(caches)
        caches.store_head(prompt, 8, state)
        assert found(caches, A) == (8, "store") and load(caches, A, hybrid_state) == 8


def test_a_state_on_disk_has_rows_that_end_where_it_stands(tmp_path: Path) -> None:
    """Though longer ones, which have them all, are there."""
    with opened(tmp_path, new=hybrid_state, memory=0) as caches:
        state, anchors = conversation(6, 8)
        caches.write_behind(caches.prompt("one", A), 8, state, anchors[1:])
        written(caches)
        caches.write_behind(caches.prompt("one", A[:6]), 6, state, anchors[:1])
        written(caches)
        assert load(caches, A, hybrid_state) == 8 and load(caches, [*A[:7], 0], hybrid_state) == 6


def test_a_corrupt_state_costs_the_way_to_the_state_before_it(tmp_path: Path) -> None:
    with opened(tmp_path, new=hybrid_state, any_row=False) as caches:
        state, anchors = conversation(4, 8)
        caches.park(caches.prompt("one", A), 8, state, anchors)
    with opened(tmp_path, new=hybrid_state, any_row=False) as caches:
        path = path_of(tmp_path, caches, A[:8], Kind.STATE)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        assert load(caches, A, hybrid_state) == 4
        path_of(tmp_path, caches, A[:4], Kind.STATE).unlink()
        assert load(caches, A, hybrid_state) == 0


# --- whatever comes ---


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whatever_is_kept_loads_to_the_bits_that_its_owner_read_it_to(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Two scopes say the same words, and the rows of each have bits of their own: a row of the other would show."""
    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=14)
    with opened(tmp_path_factory.mktemp("tier"), memory=6 * kv_state().saved_bytes(4), disk=4000) as caches:
        for _ in range(data.draw(st.integers(1, 14))):
            sequence, own = data.draw(tokens), data.draw(st.sampled_from([0, 100]))
            scope, said = f"scope {own}", [own + token for token in sequence]
            prompt, state = caches.prompt(scope, sequence), reading(kv_state, said)
            match data.draw(st.sampled_from(["park", "store", "disk", "give back", "load", "load"])):
                case "park":
                    caches.park(prompt, len(sequence), state)
                case "store":
                    caches.store_head(prompt, len(sequence), state)
                case "disk":
                    caches.write_behind(prompt, len(sequence), state)
                case "give back":
                    caches.give_back(data.draw(st.sampled_from(list(Level))), 2000)
                case "load" if (there := caches.find(prompt := caches.prompt(scope, [*sequence, 7]))) is not None:
                    state = reading(kv_state, [99] * 20)
                    rows = caches.load(prompt, there, state)
                    assert rows <= there.rows and same_rows(state, reading(kv_state, said), rows)
            caches.check_integrity()
