"""Kernels, step by step in Triton's interpreter: against the formats' own definitions and against the plain code.

The interpreter cuts bfloat16 where a device rounds it, hence tolerances of a whole last bit.
"""

from __future__ import annotations

import pytest
import torch
from packing import stored
from torch import Tensor
from torch.nn import functional

pytest.importorskip("triton")

from tandem.model import delta
from tandem.model.attention import attend
from tandem.model.config import AttentionConfig, DeltaConfig, ExpertsConfig
from tandem.model.kernels.attention import CHUNK, attend_rows
from tandem.model.kernels.delta import RoundRows, convolve, recur
from tandem.model.kernels.experts import PackedExperts, chosen_by_any
from tandem.model.kernels.products import PackedProduct, Side, splits, widen
from tandem.model.kernels.running import INTERPRETED, ROWS
from tandem.model.layers import gated_silu
from tandem.model.passes import Pass, Span
from tandem.model.rounds import RoundTables
from tandem.model.state import KvRows, Recurrent, SequenceState, Tail
from tandem.model.tree import Tree, chain
from tandem.model.weights.blockscaled import Format
from tandem.model.weights.packed import Packed, plain, stacked

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled in this process: tests/gpu tries them")

LAST_BIT = 2.0**-7
BRANCHING = Tree((0, 0, 1, 2, 1, 0, 5))


def rows_of(count: int, width: int, seed: int = 3) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).bfloat16()


def bfloat16_weight(out: int, width: int) -> Packed:
    return plain(rows_of(out, width, seed=5))


WEIGHTS = [
    pytest.param(lambda out, width: bfloat16_weight(out, width), id="bfloat16"),
    *[pytest.param(lambda out, width, f=f: stored(f, out, width).packed, id=str(f)) for f in Format],
]


class TestProducts:
    @pytest.mark.parametrize("weight", WEIGHTS)
    @pytest.mark.parametrize(("out", "width"), [(200, 1312), (40, 96), (1, 64)])
    def test_they_are_those_of_the_dequantized_weights(self, weight, out: int, width: int) -> None:  # type: ignore[no-untyped-def]
        packed = weight(out, width)
        rows = rows_of(ROWS, width)
        expected = rows.float() @ packed.float32().T
        product = PackedProduct(packed)(rows)
        assert product.dtype is torch.bfloat16
        scale = (rows.float().abs() @ packed.float32().abs().T).max()
        assert (product.float() - expected).abs().max() <= LAST_BIT * scale

    @pytest.mark.parametrize("weight", WEIGHTS)
    def test_a_row_s_bits_do_not_depend_on_its_neighbours(self, weight) -> None:  # type: ignore[no-untyped-def]
        """Nor on how many there are, nor on where among them it stands."""
        product, rows = PackedProduct(weight(40, 544)), rows_of(ROWS, 544)
        together = product(rows)
        for count in (1, 2, 3, 7, 15):
            assert torch.equal(product(rows[:count]), together[:count])
        assert torch.equal(product(rows.flip(0)), together.flip(0))
        assert torch.equal(product(rows[5:6]), together[5:6])

    @pytest.mark.parametrize("weight", WEIGHTS)
    def test_many_rows_multiply_widened_weights(self, weight) -> None:  # type: ignore[no-untyped-def]
        packed = weight(256, 352)
        wide = widen(packed, slice(128, 256))
        assert (wide.float() - packed.float32()[128:]).abs().max() <= LAST_BIT * packed.float32().abs().max()
        rows = rows_of(40, 352)
        assert torch.equal(PackedProduct(packed)(rows), functional.linear(rows, widen(packed, slice(0, 256))))

    def test_a_matrix_is_cut_by_its_shape(self) -> None:
        assert splits(bfloat16_weight(32, 8192)) > 1
        assert splits(bfloat16_weight(64, 256)) == 1

    def test_a_scale_a_row_and_a_scale_a_block_are_one_product(self) -> None:
        """What rearranging makes of blocks multiplies to the same bits."""
        packed = stored(Format.FP8_BLOCKS, 256, 384).packed
        spread = packed.rearranged(torch.arange(256))
        rows = rows_of(ROWS, 384)
        assert packed.rows_a_scale == 128 and spread.rows_a_scale == 1
        assert torch.equal(PackedProduct(packed)(rows), PackedProduct(spread)(rows))

    def test_parts_of_different_kinds_stand_side_by_side(self) -> None:
        parts = [PackedProduct(stored(Format.MXFP8, 40, 96).packed), PackedProduct(bfloat16_weight(8, 96))]
        rows = rows_of(3, 96)
        side = Side(parts)
        assert side.shape == (48, 96)
        assert torch.equal(side(rows), torch.cat([part(rows) for part in parts], dim=1))


class TestExperts:
    config = ExpertsConfig(experts=6, chosen=2, width=48, shared_width=16)

    @pytest.fixture(params=[None, Format.NVFP4_MODELOPT, Format.FP8_BLOCKS])
    def experts(self, request: pytest.FixtureRequest) -> PackedExperts:
        def matrix(out: int, width: int, seed: int) -> Packed:
            return stored(request.param, out, width, seed).packed if request.param else bfloat16_weight(out, width)

        config = self.config
        gate_up = stacked([matrix(2 * config.width, 64, seed) for seed in range(config.experts)])
        down = stacked([matrix(64, config.width, seed + 20) for seed in range(config.experts)])
        return PackedExperts(gate_up, down, config)

    def choices(self, rows: int) -> Tensor:
        generator = torch.Generator().manual_seed(2)
        return torch.stack([torch.randperm(self.config.experts, generator=generator)[:2] for _ in range(rows)])

    def test_a_row_gets_what_its_experts_say(self, experts: PackedExperts) -> None:
        rows, choices = rows_of(5, 64), self.choices(5)
        answers = experts(rows, choices)
        gate_up, down = experts.gate_up.float32(), experts.down.float32()
        for row in range(5):
            for rank, number in enumerate(choices[row].tolist()):
                wide = rows[row].float() @ gate_up[number * 96 : (number + 1) * 96].T
                expected = gated_silu(wide) @ down[number * 64 : (number + 1) * 64].T
                assert (answers[row, rank] - expected).abs().max() <= 0.05 * expected.abs().max()

    def test_whatever_the_others_choose(self, experts: PackedExperts) -> None:
        rows, choices = rows_of(9, 64), self.choices(9)
        together = experts(rows, choices)
        for row in range(9):
            assert torch.equal(experts(rows[row : row + 1], choices[row : row + 1]), together[row : row + 1])

    def test_a_prompt_s_chunk_goes_expert_by_expert(self, experts: PackedExperts) -> None:
        rows, choices = rows_of(20, 64), self.choices(20)
        few = torch.cat([experts(rows[:10], choices[:10]), experts(rows[10:], choices[10:])])
        assert (experts(rows, choices) - few).abs().max() <= 0.03 * few.abs().max()

    def test_the_union_of_what_is_chosen(self) -> None:
        union = chosen_by_any(torch.tensor([[4, 1], [1, 0], [4, 1]]), most=5)
        assert union.tolist() == [0, 1, 4, -1, -1]


def told(spans: list[Span], layers: tuple[int, ...]) -> RoundTables:
    tables = RoundTables(torch.empty(RoundTables.size(layers), dtype=torch.int64), layers)
    rows = sum(span.rows for span in spans)
    tables.tell(Pass(torch.arange(rows), torch.arange(rows), tuple(spans), None))
    return tables


class TestAttention:
    config = AttentionConfig(heads=6, kv_heads=2, head_dim=16, rope_dim=16, gated=False)

    def state(self, rows: int, seed: int, window: int = 256) -> SequenceState:
        state = SequenceState(window, torch.bfloat16, [[KvRows(window, 2, 16, torch.bfloat16)]])
        kv = state.kv(0)
        kv.fill_(torch.nan)  # what was never written must not be looked at
        kv[:, :, :, :rows] = torch.randn(2, 1, 2, rows, 16, generator=torch.Generator().manual_seed(seed)).bfloat16()
        return state

    def drawn(self, seed: int = 9) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        queries = torch.randn(ROWS, 6, 16, generator=generator).bfloat16()
        return queries, torch.randn(2, 1, 2, ROWS, 16, generator=generator).bfloat16()

    @pytest.mark.parametrize("start", [0, 3, CHUNK - 1, CHUNK, 2 * CHUNK + 5])
    @pytest.mark.parametrize("tree", [chain(1), chain(5), BRANCHING])
    def test_it_is_softmax_attention_over_each_row_s_path(self, start: int, tree: Tree) -> None:
        queries, written = self.drawn()
        ours, plain = (Span(self.state(start, 1), start, 0, tree.rows, tree, False, None) for _ in range(2))
        answer = attend_rows(self.config, 0, queries, written, told([ours], (1,)))
        expected = attend(0, queries.float().bfloat16(), written, [plain])
        assert (answer[: tree.rows].float() - expected.float()).abs().max() < 0.03
        assert torch.equal(
            ours.state.kv(0)[..., : start + tree.rows, :], plain.state.kv(0)[..., : start + tree.rows, :]
        )

    def test_rows_of_a_block_and_of_a_tree_have_the_bits_they_get_alone(self) -> None:
        """Beside another sequence, of another window, too."""
        queries, written = self.drawn()
        start, tree = CHUNK - 2, BRANCHING
        first = Span(self.state(start, 1), start, 0, tree.rows, tree, False, None)
        other = Span(self.state(150, 2, window=200), 150, tree.rows, 3, chain(3), True, None)
        together = attend_rows(self.config, 0, queries, written, told([first, other], (1,)))
        for row in range(tree.rows):
            state = self.state(start, 1)
            for depth, number in enumerate(tree.path_to(row)):
                alone = Span(state, start + depth, 0, 1, chain(1), True, None)
                mine = attend_rows(
                    self.config, 0, queries[number : number + 1].expand(ROWS, -1, -1),
                    written[:, :, :, number : number + 1].expand(-1, -1, -1, ROWS, -1), told([alone], (1,)),
                )  # fmt: skip
            assert torch.equal(mine[0], together[row])


class TestDelta:
    config = DeltaConfig(key_heads=2, value_heads=4, key_dim=8, value_dim=8, taps=4)

    def state(self, seed: int) -> SequenceState:
        memory, tail = Recurrent(4, 8, 8), Tail((3, 48), torch.bfloat16)
        generator = torch.Generator().manual_seed(seed)
        memory.memory.normal_(generator=generator)
        tail.rows.copy_(torch.randn(3, 48, generator=generator))
        return SequenceState(64, torch.bfloat16, [[memory, tail]])

    def rows(self) -> RoundRows:
        generator = torch.Generator().manual_seed(4)

        def draw(*shape: int) -> Tensor:
            return torch.randn(ROWS, *shape, generator=generator)

        return RoundRows(draw(2, 8), delta.unit(draw(2, 8)), draw(4, 8), -draw(4).abs() * 0.1, draw(4).sigmoid())

    def plain(self, rows: RoundRows, place: slice) -> delta.Rows:
        queries, keys = (each[place].repeat_interleave(2, dim=1).transpose(0, 1) for each in (rows.queries, rows.keys))
        return delta.Rows(
            queries, keys, rows.values[place].transpose(0, 1), rows.log_decay[place].T, rows.rates[place].T
        )

    def test_a_tree_is_solved_and_can_be_committed(self) -> None:
        state, rows = self.state(1), self.rows()
        before = state.layers[0][0].fixed()[0].clone()
        tables = told([Span(state, 5, 0, BRANCHING.rows, BRANCHING, False, None)], (2,))
        read, corrections, faded = recur(self.config, rows, 0, tables)
        expected, held = delta.read(before, self.plain(rows, slice(0, BRANCHING.rows)), BRANCHING)
        place = slice(0, BRANCHING.rows)
        torch.testing.assert_close(read[place], expected.transpose(0, 1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(corrections[place], held.corrections.transpose(0, 1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(faded[place], held.faded.T)
        assert torch.equal(state.layers[0][0].fixed()[0], before)

    def test_rows_that_stay_are_taken_one_by_one(self) -> None:
        """To the bits of being decoded alone, beside whomever; and the memory is brought forward."""
        together, other, alone, rows = self.state(1), self.state(2), self.state(1), self.rows()
        spans = [Span(other, 5, 0, 2, chain(2), True, None), Span(together, 5, 2, 4, chain(4), True, None)]
        read, _, _ = recur(self.config, rows, 0, told(spans, (2,)))
        for row in range(2, 6):
            one = RoundRows(*(
                each[row : row + 1].expand(ROWS, *each.shape[1:]).contiguous()
                for each in (rows.queries, rows.keys, rows.values, rows.log_decay, rows.rates)
            ))  # fmt: skip
            lone, _, _ = recur(self.config, one, 0, told([Span(alone, 3 + row, 0, 1, chain(1), True, None)], (2,)))
            assert torch.equal(lone[0], read[row])
        assert torch.equal(alone.layers[0][0].fixed()[0], together.layers[0][0].fixed()[0])
        memory = self.state(1).layers[0][0].fixed()[0]
        expected = delta.walk(memory, self.plain(rows, slice(2, 6)))
        torch.testing.assert_close(read[2:6], expected.transpose(0, 1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(together.layers[0][0].fixed()[0], memory, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("rows", [1, 2, 5])
    def test_a_convolution_and_its_tail(self, rows: int) -> None:
        state, weight, fresh = self.state(1), torch.randn(48, 4), rows_of(ROWS, 48)
        tail = state.layers[0][1].fixed()[0]
        before = tail.clone()
        convolved = convolve(fresh, weight, 0, told([Span(state, 9, 0, rows, chain(rows), True, None)], (2,)))
        expected = delta.causal_conv(before.float(), fresh[:rows].float(), weight, chain(rows).look_back(3))
        torch.testing.assert_close(convolved[:rows], expected)
        assert torch.equal(tail, delta.next_tail(before, fresh[:rows]))

    def test_a_tree_leaves_the_tail_alone(self) -> None:
        state, weight, fresh = self.state(1), torch.randn(48, 4), rows_of(ROWS, 48)
        before = state.layers[0][1].fixed()[0].clone()
        tables = told([Span(state, 9, 0, BRANCHING.rows, BRANCHING, False, None)], (2,))
        convolved = convolve(fresh, weight, 0, tables)[: BRANCHING.rows]
        expected = delta.causal_conv(before.float(), fresh[: BRANCHING.rows].float(), weight, BRANCHING.look_back(3))
        torch.testing.assert_close(convolved, expected)
        assert torch.equal(state.layers[0][1].fixed()[0], before)
