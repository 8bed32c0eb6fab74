"""Models on a real CUDA device: what the CPU cannot show. One command, minutes: `make test-gpu`.

Weights are random; the shapes of the 27B hybrid are real, all of its layers where memory allows (a line says how many).
Each test stands alone and prints what it found.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import FAMILIES, random_tokens, save
from random_models import HYBRID_27B, random_model, random_packed, weight_bytes
from torch import Tensor

from tandem.model.decoder import Decoder
from tandem.model.families.directory import open_checkpoint
from tandem.model.graphs import Rounds
from tandem.model.interface import Block, Wants
from tandem.model.placement import HOST, Placement
from tandem.model.state import SequenceState
from tandem.model.tree import Tree
from tandem.model.weights.blockscaled import Format
from tandem.model.weights.packed import Packed, plain, stacked
from tandem.model.weights.quant import Compute
from tandem.units import GIB

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.timeout(300),
]

DEVICE = torch.device("cuda", 0)
GRAPHS = Placement(DEVICE, kernels=True, graphs=True)
PLAIN = Placement(DEVICE, kernels=True, graphs=False)
TREE = Tree((0, 0, 1, 2, 1, 0, 5))
CONTEXT = 1_024
FORMATS = [pytest.param(None, id="bfloat16"), *[pytest.param(each, id=str(each)) for each in Format]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def told(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {line}", end="", flush=True)

    return told


@pytest.fixture(autouse=True)
def emptied() -> Iterator[None]:
    yield
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def milliseconds(work: Callable[[], object], times: int = 20) -> float:
    """A call, when many follow each other: median."""
    for _ in range(3):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    took = sorted(before.elapsed_time(after) for before, after in pairwise(marks))
    return took[times // 2]


def bandwidth() -> float:
    """Bytes a second that this device reads at best, now."""
    numbers = torch.ones(GIB // 2, dtype=torch.float32, device=DEVICE)
    reading = numbers.nbytes / milliseconds(lambda: numbers.sum(), times=7)
    other = torch.empty_like(numbers)
    copying = 2 * numbers.nbytes / milliseconds(lambda: other.copy_(numbers), times=7)
    return 1000 * max(reading, copying)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def weight(format: Format | None, out: int, width: int, seed: int = 0) -> Packed:
    if format is None:
        return plain((torch.randn(out, width, generator=generator(seed), device=DEVICE) * 0.02).bfloat16())
    return random_packed(format, out, width, generator(seed))


def rows_of(count: int, width: int) -> Tensor:
    return torch.randn(count, width, generator=generator(7), device=DEVICE).bfloat16()


def test_which_device(say: Callable[[str], None]) -> None:
    properties = torch.cuda.get_device_properties(DEVICE)
    say(
        f"{properties.name}, capability {properties.major}.{properties.minor}, {properties.multi_processor_count} "
        f"processors, {properties.total_memory / GIB:.0f} GiB, reads {bandwidth() / 1e9:,.0f} GB/s; torch "
        f"{torch.__version__} for CUDA {torch.version.cuda}"
    )
    assert (properties.major, properties.minor) >= (8, 9), "kernels convert e4m3, which older devices do not know"


@pytest.mark.parametrize("format", FORMATS)
def test_products(format: Format | None, say: Callable[[str], None]) -> None:
    """Against the dequantized weights; every row's bits at every count and place; and how fast."""
    from tandem.model.kernels.products import PackedProduct, widen

    for out, width in ((34_816, 5_120), (5_120, 17_408), (96, 5_120)):
        packed = weight(format, out, width)
        product, rows = PackedProduct(packed), rows_of(16, width)
        answer = product(rows)
        expected = rows.float() @ packed.float32().T
        worst = ((answer.float() - expected).abs().max() / expected.abs().max()).item()
        assert worst < 0.01, f"{out} x {width}: {worst}"
        for count in range(1, 17):
            assert torch.equal(product(rows[:count]), answer[:count]), f"{count} rows of {out} x {width}"
        assert torch.equal(product(rows.flip(0)), answer.flip(0))
        some = slice(0, min(out, 256))
        assert (
            widen(packed, some).float() - packed.float32()[some]
        ).abs().max() <= 2**-8 * packed.float32().abs().max()
        many = rows_of(100, width)
        torch.testing.assert_close(product(many).float(), many.float() @ packed.float32().T, rtol=0.03, atol=0.03)
        took = milliseconds(lambda product=product, rows=rows: product(rows))
        say(f"{out:>6} x {width:<6} {took:.3f} ms, {packed.bytes / took / 1e6:,.0f} GB/s, worst {worst:.4f}")


@pytest.mark.parametrize("format", [None, Format.NVFP4_MODELOPT, Format.FP8_BLOCKS])
def test_experts(format: Format | None, say: Callable[[str], None]) -> None:
    """A row's bits whatever the others choose; a chunk's answers near those of few rows; how fast."""
    from tandem.model.config import ExpertsConfig
    from tandem.model.kernels.experts import PackedExperts

    config, hidden, chosen = ExpertsConfig(experts=64, chosen=8, width=512, shared_width=512), 2_048, 8
    gate_up = stacked([weight(format, 2 * config.width, hidden, seed) for seed in range(config.experts)])
    down = stacked([weight(format, hidden, config.width, seed + 99) for seed in range(config.experts)])
    experts = PackedExperts(gate_up, down, config)
    rows = rows_of(40, hidden)
    scores = torch.rand(40, config.experts, generator=generator(3), device=DEVICE)
    choices = scores.topk(chosen, dim=1).indices
    together = experts(rows[:16], choices[:16])
    for row in range(16):
        assert torch.equal(experts(rows[row : row + 1], choices[row : row + 1]), together[row : row + 1])
    assert (experts(rows, choices)[:16] - together).abs().max() < 0.05 * together.abs().max()
    for count in (1, 4, 16):
        took = milliseconds(lambda count=count: experts(rows[:count], choices[:count]))
        read = choices[:count].unique().numel() * (gate_up.bytes + down.bytes) / config.experts
        say(f"{count:>2} rows {took:.3f} ms, {read / took / 1e6:,.0f} GB/s of the experts they chose")


class TestFamilies:
    """Small checkpoints of every family against their float32 forward on the CPU."""

    @pytest.fixture(params=FAMILIES)
    def models(self, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Decoder]:
        save(request.param, tmp_path)
        return {
            "cpu": open_checkpoint(tmp_path, Compute.FLOAT32, placement=HOST),
            "plain": open_checkpoint(tmp_path, Compute.BFLOAT16, placement=PLAIN),
            "graphs": open_checkpoint(tmp_path, Compute.BFLOAT16, placement=GRAPHS),
        }

    def life(self, model: Decoder) -> Tensor:
        """A prompt in chunks, rows one by one, a tree, a path of it, a snapshot, and on."""
        tokens, state, told = random_tokens(90, 1), model.new_state(128), []

        def read(start: int, rows: Tensor, tree: Tree | None = None) -> None:
            told.append(model.forward([Block(rows, start, state, Wants.ALL, tree)]).float().cpu())

        read(0, tokens[:40])
        read(40, tokens[40:66])
        for row in range(66, 72):
            read(row, tokens[row : row + 1])
        read(72, random_tokens(TREE.rows, 7), TREE)
        state.commit([0, 5, 6])
        kept = state.snapshot()
        read(75, random_tokens(4, 8))
        state.restore(kept)
        read(75, random_tokens(20, 9))
        return torch.cat(told)

    def test_they_say_what_the_cpu_says(self, models: dict[str, Decoder], say: Callable[[str], None]) -> None:
        expected = self.life(models["cpu"])
        ours = self.life(models["plain"])
        worst = (ours - expected).abs().max().item()
        say(f"worst difference of a logit {worst:.3f}; logits reach {expected.abs().max().item():.1f}")
        assert worst < 0.4

    def test_graphs_change_no_bit(self, models: dict[str, Decoder]) -> None:
        assert torch.equal(self.life(models["plain"]), self.life(models["graphs"]))

    def test_a_row_has_the_bits_it_gets_alone(self, models: dict[str, Decoder]) -> None:
        model = models["graphs"]
        alone, together = ([started(model, seed, 20 + seed) for seed in range(3)] for _ in range(2))
        for step in range(3):
            blocks = [
                Block(random_tokens(1, 30 + seed + step), 20 + seed + step, state)
                for seed, state in enumerate(together)
            ]
            lone = [
                model.forward([Block(block.tokens, block.start, state)])
                for block, state in zip(blocks, alone, strict=True)
            ]
            assert torch.equal(model.forward(blocks), torch.cat(lone))

    def test_a_round_waits_for_nothing(self, models: dict[str, Decoder]) -> None:
        for name in ("plain", "graphs"):
            model = models[name]
            states = [started(model, seed, 20) for seed in range(2)]
            tokens = [random_tokens(1, 9) for _ in states]
            model.forward([Block(each, 20, state) for each, state in zip(tokens, states, strict=True)])
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                model.forward([Block(each, 21, state) for each, state in zip(tokens, states, strict=True)])
            finally:
                torch.cuda.set_sync_debug_mode("default")


def started(model: Decoder, seed: int, rows: int, window: int = 128) -> SequenceState:
    """A sequence whose first rows are read, the prompt in chunks."""
    state = model.new_state(window)
    vocab = model.config.vocab
    tokens = torch.randint(0, vocab, (rows,), generator=torch.Generator().manual_seed(seed))
    for first in range(0, rows, 512):
        model.forward([Block(tokens[first : first + 512], first, state, Wants.NONE)])
    return state


def layers_that_fit(values: dict[str, Any], bytes_a_layer: float) -> dict[str, Any]:
    """All layers, or as many groups of four as half of the free memory holds."""
    free = torch.cuda.mem_get_info(DEVICE)[0]
    layers = min(values["num_hidden_layers"], int(free / 2 / bytes_a_layer) // 4 * 4)
    assert layers >= 4, f"{free / GIB:.1f} GiB free"
    return values | {"num_hidden_layers": layers}


@pytest.mark.parametrize("format", [Format.NVFP4_MODELOPT, Format.FP8_BLOCKS])
def test_rounds_of_the_27b_hybrid(format: Format, say: Callable[[str], None]) -> None:
    """Milliseconds a round of 1 to 16 rows, bytes read, and how far from what the memory's bandwidth allows; bits alone
    and together, with graphs and without."""
    a_layer = 0.41e9 * (0.5625 if format is Format.NVFP4_MODELOPT else 1.03)
    values = layers_that_fit(HYBRID_27B, a_layer)
    model = random_model(values, GRAPHS, format)
    layers, speed, weights = values["num_hidden_layers"], bandwidth(), weight_bytes(model)
    say(
        f"{format}: {layers} of 64 layers, {weights / 1e9:.2f} GB of weights a round; this device reads "
        f"{speed / 1e9:,.0f} GB/s"
    )
    states = [started(model, seed, CONTEXT, window=2_048) for seed in range(4)]
    captured = model._rounds
    assert captured is not None
    for rows in (1, 2, 3, 4, 8, 16):
        sequences = min(rows, 4)
        each = rows // sequences
        kept = [state.snapshot() for state in states]

        def blocks(sequences: int = sequences, each: int = each) -> list[Block]:
            return [Block(torch.arange(each) + 5, CONTEXT, state, Wants.ALL) for state in states[:sequences]]

        def back(kept: list[Any] = kept) -> None:
            for state, snapshot in zip(states, kept, strict=True):
                state.restore(snapshot)

        joint = model.forward(blocks())
        back()
        lone = []
        for block in blocks():
            for row in range(each):
                tokens = block.tokens[row : row + 1]
                lone.append(model.forward([Block(tokens, CONTEXT + row, block.state, Wants.ALL)]))
        back()
        same_alone = torch.equal(joint, torch.cat(lone))
        model._rounds = Rounds(model._round, PLAIN)
        without = model.forward(blocks())
        back()
        eager = milliseconds(lambda: (model.forward(blocks()), rewind(states, CONTEXT)), times=5)
        back()
        model._rounds = captured
        took = milliseconds(lambda: (model.forward(blocks()), rewind(states, CONTEXT)))
        back()
        read = weights + sequences * (2 * states[0].fixed_bytes + CONTEXT * states[0].bytes_a_token)
        floor = 1000 * read / speed
        say(
            f"{rows:>2} rows of {sequences}: {took:6.2f} ms ({eager:6.2f} without graphs), {read / 1e9:.2f} GB, floor "
            f"{floor:.2f} ms, ratio {took / floor:.2f}; as alone: {same_alone}, as without graphs: "
            f"{torch.equal(joint, without)}"
        )
        assert same_alone and torch.equal(joint, without)
        assert not joint.isnan().any()


def rewind(states: list[SequenceState], rows: int) -> None:
    """For timing alone: as if the rows just read had not been; the memories keep them."""
    for state in states:
        state._position = rows


def test_a_prompt_s_chunk_of_the_27b_hybrid(say: Callable[[str], None]) -> None:
    values = layers_that_fit(HYBRID_27B, 0.41e9 * 0.5625)
    model = random_model(values, PLAIN, Format.NVFP4_MODELOPT)
    tokens = torch.arange(512) + 5
    state = model.new_state(2_048)

    def read() -> None:
        model.forward([Block(tokens, 0, state, Wants.LAST)])

    took = milliseconds(read, times=5)
    say(f"512 rows through {values['num_hidden_layers']} layers: {took:.0f} ms, {512_000 / took:,.0f} rows a second")
