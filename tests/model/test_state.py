"""A state's books: bytes by arithmetic, where it can go on, and that a copy is a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tandem.memory.heap import anonymous_bytes
from tandem.model.config import IndexConfig
from tandem.model.delta import Rows, read, unit
from tandem.model.indexed import BlockIndex
from tandem.model.rope import Rope
from tandem.model.saved import host_memory
from tandem.model.state import Allocate, KvRows, MtpRows, Part, Recurrent, SequenceState, Tail, allocate_at_once
from tandem.model.tree import Tree

BF16 = torch.bfloat16


def attention(window: int, layers: int = 2) -> SequenceState:
    return SequenceState(window, torch.float32, [[KvRows(window, 2, 4, torch.float32)] for _ in range(layers)])


def hybrid(window: int = 16) -> SequenceState:
    return SequenceState(
        window,
        torch.float32,
        [[Recurrent(2, 3, 4), Tail((3, 5), torch.float32)], [KvRows(window, 2, 4, torch.float32)]],
    )


def test_bytes_a_token_of_the_27b_hybrid() -> None:
    """16 of 64 layers keep rows: 16 x 2 x 4 heads x 256 x 2 bytes; the others cost the same at any length."""
    linear: list[Part] = [Recurrent(48, 128, 128), Tail((3, 10240), BF16)]
    layers = [[KvRows(8, 4, 256, BF16)] if (index + 1) % 4 == 0 else linear for index in range(64)]
    state = SequenceState(8, BF16, layers)
    assert state.bytes_a_token == 65_536
    assert state.fixed_bytes == 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2)


def test_bytes_a_token_of_the_27b_hybrid_with_its_drafters() -> None:
    """Two drafters of five such layers each, states of their own, and the table of turns: 106,752 bytes in all."""
    served = SequenceState(8, BF16, [[KvRows(8, 4, 256, BF16)] for _ in range(16)])
    drafters = [SequenceState(8, BF16, [[KvRows(8, 4, 256, BF16)] for _ in range(5)]) for _ in range(2)]
    turns = Rope(64, 10_000_000.0, 8).at(torch.arange(8)).nbytes // 8  # a quarter of a head turns
    assert [drafter.bytes_a_token for drafter in drafters] == [20_480, 20_480] and turns == 256
    assert served.bytes_a_token + sum(drafter.bytes_a_token for drafter in drafters) + turns == 106_752


def test_bytes_a_token_of_the_27b_hybrid_with_its_own_head() -> None:
    """One layer more, and one normed row of 5,120 numbers."""
    head = MtpRows(8, lambda rows, allocate: [KvRows(rows, 4, 256, BF16, allocate)], Tail((1, 5120), BF16))
    state = SequenceState(8, BF16, [[KvRows(8, 4, 256, BF16)] for _ in range(16)], head)
    assert state.bytes_a_token == 65_536 + 4_096
    assert state.fixed_bytes == 5120 * 2


def test_bytes_a_token_of_flash_next() -> None:
    """13 layers, that of the head that guesses ahead included, each with keys, values and an index key."""
    index = IndexConfig(heads=4, dim=128, budget=2048, ratio=16)

    def layer(rows: int, allocate: Allocate = allocate_at_once) -> list[Part]:
        return [
            KvRows(rows, 2, 256, BF16, allocate),
            BlockIndex(index, rows, BF16, lambda keys, places: keys, allocate),
        ]

    state = SequenceState(32, BF16, [layer(32) for _ in range(12)], MtpRows(32, layer, Tail((1, 4 * 2560), BF16)))
    assert state.bytes_a_token == 29_952


def test_rows_of_the_head_are_the_pools_own_kind_and_as_many_as_the_windows() -> None:
    asked: list[tuple[int, str]] = []

    def allocate(shape: Sequence[int], dtype: torch.dtype, row_axis: int, kind: str) -> Tensor:
        asked.append((shape[row_axis], kind))
        return allocate_at_once(shape, dtype, row_axis, kind)

    MtpRows(16, lambda rows, allocate: [KvRows(rows, 2, 4, BF16, allocate)], Tail((1, 8), BF16), allocate)
    assert asked == [(16, "mtp")]


def guessing(window: int = 16) -> SequenceState:
    head = MtpRows(
        window, lambda rows, allocate: [KvRows(rows, 2, 4, torch.float32, allocate)], Tail((1, 5), torch.float32)
    )
    return SequenceState(window, torch.float32, [[KvRows(window, 2, 4, torch.float32)]], head)


def test_the_head_counts_its_rows_from_the_second_token() -> None:
    """What its layer sees as row n lies where row n + 1 of the sequence does, and moves with it."""
    state = guessing()
    assert state.mtp is not None and not state.can_rewind
    state.kv(1).copy_(torch.arange(1.0, 16.0)[:, None].expand(15, 4))
    assert state.mtp.by_row()[0][1:, 0, 0, 0, 0].tolist() == list(range(1, 16))
    state.begin(0, 6, settled=True)
    state.begin(6, 5, settled=False)
    state.mtp.carry.take(torch.arange(5.0)[:, None].expand(5, 5), settled=False)
    state.commit([0, 2, 4])
    assert state.mtp.by_row()[0][1:9, 0, 0, 0, 0].tolist() == [1, 2, 3, 4, 5, 6, 8, 10]
    assert state.kv(1)[0, 0, 0, :8, 0].tolist() == [1, 2, 3, 4, 5, 6, 8, 10]
    assert state.mtp.carry.rows.unique().tolist() == [4] and state.position == 9


def test_what_the_head_keeps_is_copied_and_put_back() -> None:
    one, other = guessing(16), guessing(8)
    assert one.mtp is not None and other.mtp is not None
    one.begin(0, 5, settled=True)
    one.kv(1).fill_(1)
    one.mtp.carry.rows.fill_(2)
    kept = one.snapshot()
    other.copy_from(one, 5)
    one.mtp.carry.rows.fill_(3)
    assert other.kv(1)[..., :4, :].unique().tolist() == [1] and other.mtp.carry.rows.unique().tolist() == [2]
    one.restore(kept)
    assert one.mtp.carry.rows.unique().tolist() == [2] and kept.bytes == one.fixed_bytes == 5 * 4
    one.begin(0, 1, settled=True)
    assert one.mtp.carry.rows.unique().tolist() == [0]


def test_rows_alone_can_be_rewound_to_anywhere() -> None:
    state = attention(16)
    state.begin(0, 10, settled=True)
    assert [state.resumable(rows) for rows in (0, 4, 10)] == [0, 4, 10]
    state.begin(4, 3, settled=True)
    assert state.can_rewind and state.fixed_bytes == 0 and state.snapshot().bytes == 0


def test_a_recurrent_memory_goes_on_where_it_is_or_starts_over() -> None:
    state = hybrid()
    state.begin(0, 10, settled=True)
    assert not state.can_rewind
    assert [state.resumable(rows) for rows in (0, 4, 10, 12)] == [0, 0, 10, 10]
    for start in (4, 12):
        with pytest.raises(AssertionError, match=f"at row 10, cannot go on at {start}"):
            state.begin(start, 1, settled=True)
    state.begin(10, 2, settled=True)
    state.begin(0, 1, settled=True)
    assert state.resumable(5) == 1


def test_starting_over_forgets_all_fixed_tensors() -> None:
    parts: list[Part] = [Recurrent(2, 3, 4), Tail((2, 5), torch.float32), Tail((2,), torch.int64, fill=7)]
    state = SequenceState(16, torch.float32, [parts])
    for tensor in (each for part in parts for each in part.fixed()):
        tensor.fill_(3)
    state.begin(0, 1, settled=True)
    assert [tensor.unique().tolist() for part in parts for tensor in part.fixed()] == [[0.0], [0.0], [7]]


@pytest.mark.parametrize(("start", "rows"), [(0, 17), (16, 1), (10, 7)])
def test_a_block_lies_inside_its_window(start: int, rows: int) -> None:
    with pytest.raises(AssertionError, match="outside its window"):
        attention(16).begin(start, rows, settled=True)


def test_a_committed_path_moves_its_rows_together() -> None:
    state = attention(16)
    for layer in range(2):
        state.kv(layer).copy_(torch.arange(16.0)[None, None, None, :, None].expand_as(state.kv(layer)))
    state.begin(0, 6, settled=True)
    state.begin(6, 5, settled=False)
    state.commit([0, 2, 4])
    assert state.kv(1)[1, 0, 1, :9, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 10]
    state.begin(9, 1, settled=True)


def test_a_tree_is_settled_before_anything_else() -> None:
    state = hybrid()
    state.begin(0, 3, settled=False)
    for act in (lambda: state.begin(3, 1, settled=True), state.snapshot):
        with pytest.raises(AssertionError, match="not settled"):
            act()
    with pytest.raises(AssertionError, match="outside its tree"):
        state.commit([0, 3])
    state.begin(0, 1, settled=True)  # starting over is always possible: a failed pass leaves a tree behind


def test_a_path_not_accepted_leaves_fixed_tensors_alone() -> None:
    state = hybrid()
    memory, tail = state.layers[0]
    assert isinstance(memory, Recurrent) and isinstance(tail, Tail)
    state.begin(0, 2, settled=True)
    tail.rows.fill_(2)
    memory.memory.fill_(2)
    state.begin(2, 2, settled=False)
    random = [torch.randn(2, 2, size, generator=torch.Generator().manual_seed(size)) for size in (3, 3, 4)]
    rows = Rows(unit(random[0]), unit(random[1]), random[2], -torch.ones(2, 2), torch.full((2, 2), 0.5))
    memory.hold(read(memory.memory, rows, Tree((0, 0)))[1])
    tail.take(torch.ones(2, 5), settled=False)
    state.commit([])
    assert memory.memory.unique().tolist() == [2] and tail.rows.unique().tolist() == [2]
    assert state.resumable(9) == 2


def test_a_copy_shares_no_memory() -> None:
    one, other = hybrid(16), hybrid(8)
    one.begin(0, 5, settled=True)
    one.kv(1).fill_(1)
    one.layers[0][0].fixed()[0].fill_(1)
    other.copy_from(one, 5)
    kept = other.snapshot()
    one.kv(1).fill_(2)
    one.layers[0][0].fixed()[0].fill_(2)
    other.layers[0][0].fixed()[0].fill_(3)
    assert other.kv(1)[..., :5, :].unique().tolist() == [1]
    assert kept.position == other.resumable(8) == 5 and kept.tensors[0].unique().tolist() == [1]
    assert kept.bytes == other.fixed_bytes == 2 * 3 * 4 * 4 + 3 * 5 * 4


def test_only_what_is_there_can_be_copied() -> None:
    one = hybrid()
    one.begin(0, 5, settled=True)
    with pytest.raises(AssertionError, match="not a place to go on from"):
        hybrid().copy_from(one, 4)
    with pytest.raises(AssertionError, match="not a place to go on from"):
        hybrid(4).copy_from(one, 5)


def fill(state: SequenceState, seed: int) -> None:
    """Different bits in every row and every fixed tensor; among them some that are no numbers."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in (*state._rows, *state._fixed):
        bits = torch.randint(0, 256, (tensor.nbytes,), dtype=torch.uint8, generator=generator)
        tensor.copy_(bits.view(tensor.dtype).view(tensor.shape))


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def indexed(window: int = 16) -> SequenceState:
    """Parts of every kind there is, of different widths and types, in odd sizes."""

    def layer(rows: int, allocate: Allocate = allocate_at_once) -> list[Part]:
        index = BlockIndex(IndexConfig(3, 5, 8, 2), rows, BF16, lambda keys, places: keys, allocate)
        return [KvRows(rows, 3, 5, BF16, allocate), index]

    recurrent: list[Part] = [Recurrent(1, 3, 3), Tail((3, 5), BF16), Tail((2,), torch.int64)]
    return SequenceState(window, BF16, [recurrent, layer(window)], MtpRows(window, layer, Tail((1, 7), torch.float32)))


@pytest.mark.parametrize("new", [attention, hybrid, indexed])
def test_saved_rows_come_back_bit_for_bit(new: Callable[[int], SequenceState]) -> None:
    one, other = new(16), new(16)
    fill(one, 0)
    saved = one.save(3, 11)
    assert (saved.first, saved.rows, saved.end) == (3, 8, 11) and saved.bytes == one.saved_bytes(8)
    assert 8 * one.bytes_a_token <= saved.bytes < 8 * one.bytes_a_token + 64 * len(one._rows)
    fill(one, 9)  # a copy shares no memory
    other.load(saved)
    fill(one, 0)
    for mine, theirs in zip(one._rows, other._rows, strict=True):
        assert torch.equal(bits(theirs[3:11]), bits(mine[3:11]))


@pytest.mark.parametrize("new", [attention, hybrid, indexed])
def test_only_the_rows_asked_for_are_loaded(new: Callable[[int], SequenceState]) -> None:
    one, other, untouched = new(16), new(16), new(16)
    for seed, state in ((1, one), (2, other), (2, untouched)):
        fill(state, seed)
    other.load(one.save(3, 11), 5)
    for mine, theirs, before in zip(one._rows, other._rows, untouched._rows, strict=True):
        assert torch.equal(bits(theirs[3:8]), bits(mine[3:8]))
        assert torch.equal(bits(theirs[8:]), bits(before[8:])) and torch.equal(bits(theirs[:3]), bits(before[:3]))


def test_windows_may_differ_and_formats_may_not() -> None:
    short, long = hybrid(8), hybrid(32)
    fill(short, 1)
    long.load(short.save(0, 8))
    assert all(torch.equal(bits(a[:8]), bits(b[:8])) for a, b in zip(short._rows, long._rows, strict=True))
    assert short.format == long.format != attention(8).format
    with pytest.raises(AssertionError, match="outside the window"):
        short.load(long.save(4, 12))
    with pytest.raises(AssertionError, match="another state"):
        attention(8).load(short.save(0, 8))


def test_a_state_goes_on_behind_loaded_rows_or_where_it_is_restored() -> None:
    rows = attention(16)
    rows.load(attention(16).save(4, 9))
    assert rows.position == 9
    one, other = hybrid(), hybrid()
    one.begin(0, 7, settled=True)
    fill(one, 1)
    fixed = one.snapshot()
    other.begin(0, 3, settled=True)
    other.load(one.save(0, 7))
    assert other.resumable(7) == 0
    packed = other.unpack(fixed.pack(), 7)
    other.restore(packed)
    assert other.resumable(7) == 7
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(one._fixed, other._fixed, strict=True))


def test_the_index_is_made_anew_over_loaded_rows() -> None:
    one, other = indexed(), indexed()
    index = next(part for part in other._parts if isinstance(part, BlockIndex))
    index._made = 5
    other.load(one.save(4, 8))
    assert index._made == 2


def test_a_copys_memory_goes_back_when_it_is_dropped() -> None:
    before = anonymous_bytes()
    saved = host_memory(64 << 20)
    saved.fill_(1)
    assert anonymous_bytes() - before > 60 << 20
    del saved
    assert anonymous_bytes() - before < 8 << 20
