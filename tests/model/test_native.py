"""The native step against float arithmetic written out here, on random weights of odd sizes, in every family the
processor runs; and its promise that a row's bits are its own."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_llama import TinyLlama
from torch import Tensor

from tandem.model.config import ModelConfig
from tandem.model.families.architecture import read_architecture
from tandem.model.families.directory import why_in_torch
from tandem.model.families.fields import Fields
from tandem.model.interface import Block, Model, Wants
from tandem.model.loading import load
from tandem.model.native.blocks import Blocks, Rows, pack, round_to_eight, round_to_sixteen, stacked
from tandem.model.native.library import families
from tandem.model.native.model import ROWS_A_PASS, NativeModel
from tandem.model.native.step import NativeStep, StepLayer
from tandem.model.passes import passes
from tandem.model.placement import HOST, Placement
from tandem.model.rope import Rope
from tandem.model.state import KvRows, SequenceState
from tandem.model.tree import Tree
from tandem.model.weights.gguf import GgufFile
from tandem.model.weights.grouped import Grouped, unpack
from tandem.model.weights.quant import Compute
from tandem.model.weights.safetensors import CONFIG, read_config

pytestmark = pytest.mark.skipif(not families(), reason="the native step was not compiled: no compiler at installation")

VOCAB, WINDOW = 112, 640
BUCKET = 32
BITS = (4, 8, 16)


@dataclass(frozen=True)
class Case:
    """Weights as the step has them and as plain float32 matrices."""

    config: ModelConfig
    step: NativeStep
    matrices: list[dict[str, Tensor]]
    norms: list[dict[str, Tensor]]
    last_norm: Tensor
    head: Tensor
    embedding: Tensor
    rope: Rope
    halves: bool

    def state(self, window: int = WINDOW) -> SequenceState:
        layers = [
            [KvRows(window, self.config.kv_heads, self.config.head_dim, torch.bfloat16)]
            for _ in range(self.config.layers)
        ]
        return SequenceState(window, torch.bfloat16, layers)

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        runs = passes(blocks, BUCKET)
        return torch.cat([self.step(run, self.embedding[run.tokens], self.turns(run.positions)) for run in runs])

    def turns(self, positions: Tensor) -> Tensor:
        return torch.view_as_real(self.rope.at(positions)).flatten(1)


def random_blocks(outputs: int, inputs: int, bits: int, generator: torch.Generator | None = None) -> Blocks:
    """Weights around zero, of a size that keeps a row's length."""
    if bits == 16:
        return round_to_sixteen(torch.randn(outputs, inputs, generator=generator) / inputs**0.5)
    scale = (torch.rand(outputs, inputs // 32, generator=generator) * 6.4 / 2**bits / inputs**0.5).half().float()
    numbers = torch.randint(0, 2**bits, (outputs, inputs), generator=generator, dtype=torch.uint8)
    return pack(Grouped(numbers, scale, (scale * (0.5 - 2 ** (bits - 1))).half().float(), bits), bits)


def make(family: str, bits: int = 4, seed: int = 0, halves: bool = False, threads: int = 2, **sizes: int) -> Case:
    """Matrices of `bits`; the head of 8 at least."""
    config = ModelConfig(
        **{"layers": 2, "hidden": 96, "heads": 6, "kv_heads": 2, "head_dim": 32, "feed_forward": 160, **sizes},
        vocab=VOCAB,
        norm_epsilon=1e-5,
        rope_base=10_000.0,
        window=WINDOW,
        bos_token=None,
        eos_token=None,
    )
    generator = torch.Generator().manual_seed(seed)

    def norm(width: int) -> Tensor:
        return torch.rand(width, generator=generator) + 0.5

    wide = (config.heads + 2 * config.kv_heads) * config.head_dim
    shapes = {
        "qkv": (wide, config.hidden),
        "attention_output": (config.hidden, config.heads * config.head_dim),
        "gate_up": (2 * config.feed_forward, config.hidden),
        "down": (config.hidden, config.feed_forward),
    }
    matrices = [
        {name: random_blocks(*shape, bits, generator) for name, shape in shapes.items()} for _ in range(config.layers)
    ]
    norms = [
        {"attention_norm": norm(config.hidden), "feed_forward_norm": norm(config.hidden)}
        | ({"query_norm": norm(config.head_dim), "key_norm": norm(config.head_dim)} if halves else {})
        for _ in range(config.layers)
    ]
    head = random_blocks(VOCAB, config.hidden, max(bits, 8), generator)
    last_norm = norm(config.hidden)
    layers = [StepLayer(**blocks, **layer) for blocks, layer in zip(matrices, norms, strict=True)]
    return Case(
        config=config,
        step=NativeStep(config, layers, last_norm, head, threads, halves, family),
        matrices=[{name: unpacked(each) for name, each in blocks.items()} for blocks in matrices],
        norms=norms,
        last_norm=last_norm,
        head=unpacked(head),
        embedding=torch.randn(VOCAB, config.hidden, generator=generator),
        rope=Rope(config.head_dim, config.rope_base, WINDOW),
        halves=halves,
    )


def unpacked(blocks: Blocks) -> Tensor:
    """Weight by weight as `abi.h` says it."""
    output, i = torch.arange(blocks.outputs)[:, None], torch.arange(blocks.inputs)
    place, words = i % 32, {4: 4, 8: 8, 16: 16}[blocks.bits]
    if blocks.bits == 16:
        start = (output // 16 * (blocks.inputs // 32) + i // 32) * 512
        return blocks.data.flatten().view(torch.bfloat16)[start + place // 2 * 32 + output % 16 * 2 + place % 2].float()
    start = (output // 16 * (blocks.inputs // 32) + i // 32) * (words * 64 + 64)
    data = blocks.data.flatten()
    word = place % 16 // 4 if blocks.bits == 4 else place // 4
    numbers = data[start + word * 64 + output % 16 * 4 + place % 4]
    if blocks.bits == 4:
        numbers = torch.where(place >= 16, numbers >> 4, numbers & 15)
    halves = data.view(torch.float16).float()
    scale, minimum = (halves[start // 2 + words * 32 + half * 16 + output % 16] for half in (0, 1))
    return numbers * scale + minimum


def reference(case: Case, tokens: Tensor) -> Tensor:
    """Logits of every position, by the book, in float64: no cache, no blocks, no 8 bits."""
    config, rows = case.config, len(tokens)

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_epsilon).sqrt() * weight.double()

    def turned(x: Tensor) -> Tensor:
        cos, sin = case.turns(torch.arange(rows)).double().view(rows, 1, -1, 2).unbind(-1)
        if case.halves:
            first, second = x.chunk(2, -1)
            return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)
        first, second = x[..., ::2], x[..., 1::2]
        return torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2)

    stream = case.embedding[tokens].double()
    for matrices, norms in zip(case.matrices, case.norms, strict=True):
        mixed = normed(stream, norms["attention_norm"]) @ matrices["qkv"].double().T
        heads = mixed.view(rows, config.heads + 2 * config.kv_heads, config.head_dim)
        queries, keys, values = heads.split((config.heads, config.kv_heads, config.kv_heads), 1)
        if case.halves:
            queries, keys = normed(queries, norms["query_norm"]), normed(keys, norms["key_norm"])
        queries, keys = turned(queries), turned(keys)
        keys, values = (each.repeat_interleave(config.heads // config.kv_heads, 1) for each in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / config.head_dim**0.5
        scores.masked_fill_(torch.ones(rows, rows, dtype=torch.bool).triu(1), -torch.inf)
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1)
        stream = stream + attended @ matrices["attention_output"].double().T
        gate, up = (normed(stream, norms["feed_forward_norm"]) @ matrices["gate_up"].double().T).chunk(2, -1)
        stream = stream + (torch.nn.functional.silu(gate) * up) @ matrices["down"].double().T
    return normed(stream, case.last_norm) @ case.head.double().T


def some_tokens(count: int, seed: int = 1) -> Tensor:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed))


def read(case: Case, tokens: Tensor, sizes: Iterator[int] | None = None) -> tuple[Tensor, SequenceState]:
    state, logits, at = case.state(), [], 0
    while at < len(tokens):
        size = min(next(sizes) if sizes else 16, len(tokens) - at)
        logits.append(case.forward([Block(tokens[at : at + size], at, state, Wants.ALL)]))
        at += size
    return torch.cat(logits), state


@pytest.fixture(params=families())
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestBlocks:
    @pytest.mark.parametrize(
        ("kind", "bits"),
        [(Kind.Q4_0, 4), (Kind.Q4_1, 4), (Kind.Q4_1, 8), (Kind.Q5_0, 8), (Kind.Q5_1, 8), (Kind.Q8_0, 8)],
    )
    def test_what_a_file_keeps_as_whole_numbers_loses_nothing(self, tmp_path: Path, kind: Kind, bits: int) -> None:
        """Unpacked again by another road: number for number as `abi.h` says it."""
        with GgufFile(TestServed.SHAPE.with_kind(kind).write(tmp_path / "some.gguf")) as file:
            matrix = file.tensors["blk.0.ffn_down.weight"]
            blocks, expected = pack(matrix.grouped(), bits), matrix.float32()
        torch.testing.assert_close(unpacked(blocks), expected, rtol=1e-6, atol=1e-7)  # of a product and a sum
        if kind is not Kind.Q4_1 and kind is not Kind.Q5_1:
            assert torch.equal(unpacked(blocks), expected)

    @pytest.mark.parametrize(("kind", "bits"), [(Kind.Q4_K, 4), (Kind.Q5_K, 8)])
    def test_products_of_scales_are_rounded_to_halves(self, kind: Kind, bits: int) -> None:
        size = gguf.GGML_QUANT_SIZES[kind][1]
        stored = torch.randint(0, 256, (32, 3, size), dtype=torch.uint8)
        stored[..., :4] = (torch.rand(32, 3, 2) / 500 + 0.001).half().view(torch.uint8)
        matrix = unpack(kind.name, stored)
        scale, minimum = (each.repeat_interleave(32, 1) for each in (matrix.scale, matrix.minimum))
        error = (unpacked(pack(matrix, bits)) - (matrix.numbers * scale + minimum)).abs()
        assert (error <= (matrix.numbers * scale + minimum.abs()) / 2040 + 1e-6).all()

    def test_others_are_rounded_within_half_a_step(self) -> None:
        weight = torch.randn(48, 96)
        steps = weight.view(48, 3, 32).abs().amax(2).repeat_interleave(32, 1) / 127
        assert ((unpacked(round_to_eight(weight)) - weight).abs() <= steps * 0.57).all()  # the scale is rounded as well

    def test_sixteen_bits_are_bfloat16(self) -> None:
        weight = torch.randn(48, 96)
        assert torch.equal(unpacked(round_to_sixteen(weight)), weight.bfloat16().float())

    def test_a_group_of_zeros_stays_zero(self) -> None:
        assert not unpacked(round_to_eight(torch.zeros(16, 32))).any()

    @pytest.mark.parametrize("bits", BITS)
    def test_a_row_is_looked_up_as_it_is(self, bits: int) -> None:
        blocks = stacked([random_blocks(32, 64, bits), random_blocks(16, 64, bits)])
        tokens = torch.tensor([3, 47, 16, 3, 31])
        assert torch.equal(Rows(blocks).lookup(tokens), unpacked(blocks)[tokens])


class TestNearTheReference:
    """The step rounds KV to bfloat16, and rows to 8 bits before products with 4 or 8: a thousandth, or a hundredth, of
    a logit's spread is its own."""

    @pytest.mark.parametrize(
        "sizes",
        [
            {},
            {"hidden": 64, "heads": 2, "kv_heads": 2, "head_dim": 64, "feed_forward": 96},
            {"hidden": 160, "heads": 9, "kv_heads": 3, "head_dim": 32, "feed_forward": 64, "layers": 1},
            {"hidden": 128, "heads": 8, "kv_heads": 1, "head_dim": 128, "feed_forward": 256},
        ],
        ids=["small", "no groups", "threes", "one kv head"],
    )
    @pytest.mark.parametrize("halves", [False, True], ids=["pairs", "halves and head norms"])
    @pytest.mark.parametrize("bits", BITS)
    def test_logits(self, family: str, sizes: dict[str, int], halves: bool, bits: int) -> None:
        case = make(family, bits, halves=halves, **sizes)
        tokens = some_tokens(300)  # more than one chunk of positions
        logits, _ = read(case, tokens)
        expected = reference(case, tokens)
        worst = 0.002 if bits == 16 else 0.02
        assert (logits - expected).square().mean().sqrt() < worst * expected.std()

    def test_a_mistake_of_one_position_would_show(self, family: str) -> None:
        case = make(family)
        tokens = some_tokens(60)
        shifted = torch.cat((tokens[:1], tokens[:-1]))
        logits, _ = read(case, shifted)
        expected = reference(case, tokens)
        assert (logits - expected).square().mean().sqrt() > 0.2 * expected.std()


class TestARowsBitsAreItsOwn:
    @settings(max_examples=8, deadline=None)
    @given(sizes=st.lists(st.integers(1, BUCKET), min_size=1, max_size=8), seed=st.integers(0, 5))
    @pytest.mark.parametrize("halves", [False, True])
    @pytest.mark.parametrize("bits", BITS)
    def test_in_blocks_of_any_size(self, bits: int, halves: bool, sizes: list[int], seed: int) -> None:
        case = CASES[bits, halves]
        tokens = some_tokens(sum(sizes), seed)
        alone, lone_state = read(case, tokens, iter([1] * len(tokens)))
        together, state = read(case, tokens, iter(sizes))
        assert torch.equal(alone, together)
        for mine, theirs in zip(state.keys + state.values, lone_state.keys + lone_state.values, strict=True):
            assert torch.equal(mine[: len(tokens)], theirs[: len(tokens)])

    @pytest.mark.parametrize("bits", BITS)
    def test_beside_other_sequences(self, family: str, bits: int) -> None:
        case = make(family, bits)
        lengths, rows = (5, 270, 33), (3, 1, 7)
        texts = [
            some_tokens(length + more, seed) for seed, (length, more) in enumerate(zip(lengths, rows, strict=True))
        ]
        states = [read(case, text[:length])[1] for text, length in zip(texts, lengths, strict=True)]
        again = [read(case, text[:length])[1] for text, length in zip(texts, lengths, strict=True)]

        def block(index: int, state: SequenceState) -> Block:
            return Block(texts[index][lengths[index] :], lengths[index], state, Wants.ALL)

        joint = case.forward([block(index, state) for index, state in enumerate(states)])
        lone = [case.forward([block(index, state)]) for index, state in enumerate(again)]
        assert torch.equal(joint, torch.cat(lone))

    @settings(max_examples=12, deadline=None)
    @given(data=st.data(), before=st.sampled_from([1, 15, 16, 40, 255, 256, 290]))
    @pytest.mark.parametrize("bits", BITS)
    def test_on_a_path_of_a_tree(self, bits: int, data: st.DataObject, before: int) -> None:
        case = CASES[bits, False]
        parents = [0, *(data.draw(st.integers(0, row - 1)) for row in range(1, data.draw(st.integers(2, 12))))]
        tree = Tree(parents)
        prompt, guesses = some_tokens(before, 7), some_tokens(len(parents), 8)
        _, state = read(case, prompt)
        logits = case.forward([Block(guesses, before, state, Wants.ALL, tree)])
        leaf = data.draw(st.integers(0, len(parents) - 1))
        path = tree.path_to(leaf)
        alone, _ = read(case, torch.cat((prompt, guesses[path])))
        assert torch.equal(logits[path], alone[before:])
        state.commit(path)  # and going on behind it
        following = some_tokens(3, 9)
        went_on = case.forward([Block(following, before + len(path), state, Wants.ALL)])
        whole, _ = read(case, torch.cat((prompt, guesses[path], following)))
        assert torch.equal(went_on, whole[-3:])

    @pytest.mark.parametrize("bits", BITS)
    def test_with_any_number_of_threads(self, family: str, bits: int) -> None:
        tokens = some_tokens(50)
        answers = [read(make(family, bits, threads=threads), tokens)[0] for threads in (1, 2, 3, 5)]
        assert all(torch.equal(answer, answers[0]) for answer in answers)

    def test_whatever_rows_are_wanted(self, family: str) -> None:
        case = make(family)
        tokens = some_tokens(9)
        every, _ = read(case, tokens)
        last = case.forward([Block(tokens, 0, case.state(), Wants.LAST)])
        assert torch.equal(last, every[-1:])
        assert case.forward([Block(tokens, 0, case.state(), Wants.NONE)]).shape == (0, VOCAB)


@pytest.mark.parametrize("bits", BITS)
def test_broken_numbers_are_not_hidden(family: str, bits: int) -> None:
    """Rounding to 8 bits would make a number of what is none; the engine must see that the row is broken."""
    case = make(family, bits)
    case.embedding[3] = torch.nan
    logits = case.forward([Block(torch.tensor([5, 3]), 0, case.state(), Wants.ALL)])
    assert logits[1].isnan().all()
    assert logits[0].isfinite().all()


class TestServed:
    """From files and directories through `load`."""

    SHAPE = TinyLlama(hidden=64, heads=4, kv_heads=2, head_dim=32, feed_forward=96, vocab=160)
    MIXED = {"attn_q": Kind.Q4_0, "attn_k": Kind.Q8_0, "attn_v": Kind.Q5_1, "ffn_gate": Kind.Q4_1, "ffn_up": Kind.F16}
    FILES = {
        "four bits": ("int4", SHAPE.with_kind(Kind.Q4_1)),
        "eight bits": ("int4", SHAPE.with_kind(Kind.Q8_0)),
        "four bits in eight": ("int8", SHAPE.with_kind(Kind.Q4_0)),
        "mixed": ("int4", replace(SHAPE, kinds=MIXED, tied=False)),
        "sixteen bits": ("bfloat16", SHAPE.with_kind(Kind.BF16)),
        "qwen3": ("int4", replace(SHAPE.with_kind(Kind.Q4_1), family="qwen3", heads=6, seed=1)),
        "a directory": ("bfloat16", replace(SHAPE, tied=False)),
        "a directory in eight bits": ("int8", SHAPE),
        "a directory of qwen3": ("bfloat16", replace(SHAPE, family="qwen3", heads=6)),
    }

    @classmethod
    @functools.cache
    def served(cls, name: str) -> tuple[NativeModel, Model]:
        """What is served, and the same file in float32."""
        if not NativeStep.pays():
            pytest.skip("this processor has no family that pays")
        compute, shape = cls.FILES[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            if "directory" in name:
                shape.reference().bfloat16().save_pretrained(path)
            else:
                path = shape.write(path / "some.gguf")
            served, exact = load(path, compute, 2), load(path, "float32", 2)
        assert isinstance(served, NativeModel) and served.is_row_invariant
        assert not isinstance(exact, NativeModel)
        return served, exact

    @pytest.mark.parametrize("name", FILES)
    def test_near_the_same_file_in_float32(self, name: str) -> None:
        served, exact = self.served(name)
        tokens = torch.arange(90) % 160
        blocks = [(0, 48), (48, 5), (53, 1), (54, 32), (86, 4)]  # a chunk, then short ones
        states = served.new_state(128), exact.new_state(128)
        logits = [
            torch.cat([model.forward([Block(tokens[at : at + rows], at, state, Wants.ALL)]) for at, rows in blocks])
            for model, state in zip((served, exact), states, strict=True)
        ]
        worst = logits[1].std() * (0.015 if self.FILES[name][0] == "bfloat16" else 0.08)
        assert (logits[0] - logits[1]).square().mean().sqrt() < worst
        lead = logits[1].topk(2).values.diff().abs()[:, 0] > 4 * worst
        assert lead.sum() > 30
        assert torch.equal(logits[0].argmax(-1)[lead], logits[1].argmax(-1)[lead])

    @settings(max_examples=8, deadline=None)
    @given(cuts=st.lists(st.integers(1, 89), max_size=6, unique=True))
    @pytest.mark.parametrize("name", FILES)
    def test_every_row_is_the_same_whatever_pass_made_it(self, name: str, cuts: list[int]) -> None:
        """A prompt in one chunk, in pieces, or row by row: the same KV rows and the same logits, bit for bit."""
        served, _ = self.served(name)
        tokens = torch.arange(90) * 7 % 160
        whole, state = served.new_state(128), served.new_state(128)
        expected = served.forward([Block(tokens, 0, whole, Wants.ALL)])
        edges = [0, *sorted(cuts), 90]
        pieces = [
            served.forward([Block(tokens[at:end], at, state, Wants.ALL)]) for at, end in itertools.pairwise(edges)
        ]
        assert torch.equal(torch.cat(pieces), expected)
        for ours, theirs in zip(state.keys + state.values, whole.keys + whole.values, strict=True):
            assert torch.equal(ours[:90], theirs[:90])

    def test_long_blocks_beside_short_ones(self) -> None:
        served, _ = self.served("four bits")
        tokens = torch.arange(90) * 11 % 160
        states = [served.new_state(128) for _ in range(3)]
        rows, wants = (5, 2 * ROWS_A_PASS + 3, 1), (Wants.ALL, Wants.LAST, Wants.LAST)
        blocks = [Block(tokens[:n], 0, state, want) for n, state, want in zip(rows, states, wants, strict=True)]
        together = served.forward(blocks)
        alone = [
            served.forward([Block(tokens[:n], 0, served.new_state(128), want)])
            for n, want in zip(rows, wants, strict=True)
        ]
        assert torch.equal(together, torch.cat(alone))
        assert served.forward([Block(tokens, 0, states[0], Wants.NONE)]).shape == (0, 160)

    def test_what_a_device_multiplies_stays_there(self, tmp_path: Path) -> None:
        self.SHAPE.reference().save_pretrained(tmp_path)
        architecture = read_architecture(Fields(tmp_path / CONFIG, read_config(tmp_path)))
        elsewhere = Placement(torch.device("cpu"), kernels=True), Placement(torch.device("meta"), kernels=False)
        taken = [why_in_torch(architecture, Compute.BFLOAT16, place) is None for place in (HOST, *elsewhere)]
        assert taken == [NativeStep.pays(), False, False]

    def test_sizes_that_are_no_multiples_run_in_torch(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        path = replace(self.SHAPE, vocab=161).with_kind(Kind.Q8_0).write(tmp_path / "odd.gguf")
        assert not isinstance(load(path, "int4", 2), NativeModel)
        assert "passes run in torch: sizes of this model" in caplog.text


CASES = (
    {(bits, halves): make(families()[0], bits, halves=halves) for bits in BITS for halves in (False, True)}
    if families()
    else {}
)
