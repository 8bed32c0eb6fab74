"""Gated DeltaNet: one formulation, three uses, held against the reference and against running each path alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as reference

from tandem.model import delta
from tandem.model.delta import Rows
from tandem.model.tree import Tree, chain

HEADS, KEY, VALUE = 3, 8, 6

shapes = st.integers(1, 14).flatmap(lambda rows: st.tuples(*(st.integers(0, max(0, row - 1)) for row in range(rows))))
trees = shapes.map(Tree)


def bring(rows: int, seed: int = 0, fade: float = 1.0) -> Rows:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    return Rows(
        queries=delta.unit(normal(HEADS, rows, KEY)) * KEY**-0.5,
        keys=delta.unit(normal(HEADS, rows, KEY)),
        values=normal(HEADS, rows, VALUE),
        log_decay=-fade * torch.rand(HEADS, rows, generator=random),
        rates=torch.rand(HEADS, rows, generator=random),
    )


def memory(seed: int = 1) -> Tensor:
    return torch.randn(HEADS, KEY, VALUE, generator=torch.Generator().manual_seed(seed))


def pick(rows: Rows, path: list[int]) -> Rows:
    return Rows(*(getattr(rows, name)[:, path] for name in ("queries", "keys", "values", "log_decay", "rates")))


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 150])
@pytest.mark.parametrize("rule", [reference.torch_chunk_gated_delta_rule, reference.torch_recurrent_gated_delta_rule])
def test_a_scan_is_the_reference_rule(rows: int, rule) -> None:
    brought, state = bring(rows), memory()
    outputs, final = rule(
        *(x.transpose(0, 1)[None] for x in (brought.queries * KEY**0.5, brought.keys, brought.values)),
        g=brought.log_decay.T[None],
        beta=brought.rates.T[None],
        initial_state=state[None].clone(),
        output_final_state=True,
    )
    ours = delta.scan(state, brought)
    torch.testing.assert_close(ours, outputs[0].transpose(0, 1), atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(state, final[0], atol=2e-6, rtol=2e-5)


def test_decode_row_by_row_is_the_scan() -> None:
    brought, scanned, stepped = bring(130), memory(), memory()
    torch.testing.assert_close(delta.scan(scanned, brought), delta.walk(stepped, brought), atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(scanned, stepped, atol=2e-6, rtol=2e-5)


@given(cuts=st.lists(st.integers(1, 129), max_size=5))
@settings(max_examples=20, deadline=None)
def test_a_prompt_may_be_read_in_any_pieces(cuts: list[int]) -> None:
    brought, whole, pieces = bring(130), memory(), memory()
    expected = delta.scan(whole, brought)
    edges = [0, *sorted(set(cuts)), 130]
    read = [delta.scan(pieces, brought.piece(a, b)) for a, b in pairwise(edges)]
    torch.testing.assert_close(torch.cat(read, dim=1), expected, atol=2e-6, rtol=2e-5)
    torch.testing.assert_close(pieces, whole, atol=2e-6, rtol=2e-5)


@given(tree=trees, seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_a_tree_is_all_its_paths_run_alone(tree: Tree, seed: int) -> None:
    brought, before = bring(tree.rows, seed), memory(seed + 1)
    kept = before.clone()
    outputs, corrections = delta.read(before, brought, tree)
    assert torch.equal(before, kept), "reading a tree must leave the memory alone"
    for row in range(tree.rows):
        path = tree.path_to(row)
        alone, committed = before.clone(), before.clone()
        expected = delta.walk(alone, pick(brought, path))
        corrections.commit(committed, path)
        torch.testing.assert_close(outputs[:, row], expected[:, -1], atol=3e-6, rtol=3e-5)
        torch.testing.assert_close(committed, alone, atol=3e-6, rtol=3e-5)


def test_accepting_nothing_leaves_the_memory_bit_for_bit() -> None:
    before = memory()
    _, corrections = delta.read(before, bring(4), chain(4))
    after = before.clone()
    corrections.commit(after, [])
    assert torch.equal(after, before)


def test_a_violent_decay_neither_overflows_nor_leaks_between_branches() -> None:
    tree = Tree((0, 0, 0, 1, 2))
    brought, state = bring(tree.rows, fade=200.0), memory()
    outputs, corrections = delta.read(state, brought, tree)
    assert outputs.isfinite().all()
    alone = state.clone()
    expected = delta.walk(alone, pick(brought, [0, 2, 4]))
    torch.testing.assert_close(outputs[:, 4], expected[:, -1], atol=3e-6, rtol=3e-5)
    corrections.commit(state, [0, 2, 4])
    torch.testing.assert_close(state, alone, atol=3e-6, rtol=3e-5)


def test_one_decoded_row_has_its_own_bits() -> None:
    """A row's step reads nothing of how many heads or sequences stand beside it."""
    brought, together = bring(1), memory()
    outputs = delta.step(together, brought)
    for head in range(HEADS):
        alone = memory()[head : head + 1]
        single = Rows(*(getattr(brought, name)[head : head + 1] for name in Rows.__slots__))
        assert torch.equal(delta.step(alone, single)[0], outputs[head])
        assert torch.equal(alone[0], together[head])


@given(tree=trees, dilation=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_convolution_looks_back_along_its_own_path(tree: Tree, dilation: int) -> None:
    taps, channels = 4, 5
    reach = (taps - 1) * dilation
    random = torch.Generator().manual_seed(tree.rows)
    rows, tail, weight = (
        torch.randn(*s, generator=random) for s in ((tree.rows, channels), (reach, channels), (channels, taps))
    )
    ours = delta.causal_conv(tail, rows, weight, tree.look_back(reach)[:, ::dilation])
    for row in range(tree.rows):
        line = torch.cat([tail, rows[tree.path_to(row)]]).T[None]
        plain = torch.nn.functional.conv1d(line, weight[:, None], groups=channels, dilation=dilation)
        torch.testing.assert_close(ours[row], plain[0, :, -1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_the_tail_is_what_the_next_block_looks_back_to(rows: int) -> None:
    history = torch.arange(40.0).reshape(20, 2)
    tail = delta.next_tail(history[:3], history[3 : 3 + rows])
    assert torch.equal(tail, history[rows : 3 + rows])
    assert torch.equal(delta.next_tail(history[:3], history[3:8], []), history[:3])
    assert torch.equal(delta.next_tail(history[:3], history[3:8], [0, 2]), history[[2, 3, 5]])
