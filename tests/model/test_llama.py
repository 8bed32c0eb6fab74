"""The promise of the interface: a row's bits are its own, and its numbers are the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_llama import TinyLlama
from torch import Tensor

from tandem.model import Block, Model, SequenceState, Wants, load

SHAPE = TinyLlama().with_kind(Kind.Q4_1)
COMPUTES = ("float32", "bfloat16", "int8", "int4")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    path = SHAPE.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    return {compute: load(path, compute, threads=1) for compute in COMPUTES}  # so small that two threads are slower


@pytest.fixture(params=COMPUTES)
def model(request: pytest.FixtureRequest, models: dict[str, Model]) -> Model:
    return models[request.param]


@dataclass(frozen=True)
class Part:
    """A sequence that has been read up to `before`, and the rows it brings to a call."""

    seed: int
    before: int
    rows: int
    wants: Wants
    window: int


def tokens(seed: int, count: int) -> Tensor:
    return torch.randint(0, SHAPE.vocab, (count,), generator=torch.Generator().manual_seed(seed))


def read(model: Model, part: Part) -> SequenceState:
    """A fresh state holding the rows before the part's own."""
    state = model.new_state(part.window)
    if part.before:
        model.forward([Block(tokens(part.seed, part.before), 0, state, Wants.NONE)])
    return state


def block(part: Part, state: SequenceState) -> Block:
    return Block(tokens(part.seed + 1, part.rows), part.before, state, part.wants)


def kv_rows(state: SequenceState, rows: int) -> list[Tensor]:
    return [tensor[:rows] for tensor in (*state.keys, *state.values)]


def same(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def distance(logits: Tensor, expected: Tensor) -> float:
    """Length of the error over length of what was expected."""
    return ((logits - expected).norm() / expected.norm()).item()


parts = st.builds(
    Part,
    seed=st.integers(0, 1000),
    before=st.integers(0, 70),
    rows=st.sampled_from((1, 1, 1, 2, 3, 7, 16, 17, 40)),
    wants=st.sampled_from(Wants),
    window=st.sampled_from((120, 192)),
)
quick = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestBits:
    @quick
    @given(st.lists(parts, min_size=2, max_size=6))
    def test_a_joint_pass_equals_lone_passes(self, model: Model, together: list[Part]) -> None:
        lone = [(part, read(model, part)) for part in together]
        expected = torch.cat([model.forward([block(part, state)]) for part, state in lone])
        joint = [(part, read(model, part)) for part in together]
        assert torch.equal(model.forward([block(part, state) for part, state in joint]), expected)
        for (part, alone), (_, beside) in zip(lone, joint, strict=True):
            end = part.before + part.rows
            assert same(kv_rows(alone, end), kv_rows(beside, end))

    @quick
    @given(parts.filter(lambda part: part.rows <= 16))
    def test_a_small_block_equals_its_rows_one_at_a_time(self, model: Model, part: Part) -> None:
        assert part.rows <= model.row_bucket
        at_once, stepwise = read(model, part), read(model, part)
        ids = tokens(part.seed + 1, part.rows)
        steps = [model.forward([Block(ids[i : i + 1], part.before + i, stepwise)]) for i in range(part.rows)]
        assert torch.equal(model.forward([Block(ids, part.before, at_once, Wants.ALL)]), torch.cat(steps))
        end = part.before + part.rows
        assert same(kv_rows(at_once, end), kv_rows(stepwise, end))

    def test_the_last_row_is_the_same_whether_all_were_wanted(self, model: Model) -> None:
        part = Part(seed=3, before=20, rows=9, wants=Wants.ALL, window=192)
        every = model.forward([block(part, read(model, part))])
        last = model.forward([Block(tokens(4, 9), 20, read(model, part), Wants.LAST)])
        assert torch.equal(every[-1:], last)

    def test_a_prompt_read_again_on_its_grid_is_the_same(self, model: Model) -> None:
        ids = tokens(5, 130)
        states = [model.new_state(192), model.new_state(140)]
        for state in states:
            for start in range(0, 130, 48):
                model.forward([Block(ids[start : start + 48], start, state, Wants.NONE)])
        assert same(kv_rows(states[0], 130), kv_rows(states[1], 130))

    def test_a_sequence_rewound_forgets_what_came_after(self, model: Model) -> None:
        part = Part(seed=6, before=30, rows=1, wants=Wants.LAST, window=192)
        state = read(model, part)
        expected = model.forward([block(part, state)])
        model.forward([Block(tokens(99, 40), 31, state, Wants.NONE)])
        assert torch.equal(model.forward([block(part, state)]), expected)

    def test_another_thread_computes_the_same_bits(self, model: Model) -> None:
        part = Part(seed=7, before=50, rows=1, wants=Wants.LAST, window=192)
        expected = model.forward([block(part, read(model, part))])
        answers: list[Tensor] = []
        thread = Thread(target=lambda: answers.append(model.forward([block(part, read(model, part))])))
        thread.start()
        thread.join()
        assert torch.equal(answers[0], expected)


class TestNumbers:
    def test_a_different_grid_reads_the_same_numbers(self, models: dict[str, Model]) -> None:
        """Other sums, same mathematics: float32 differs by its rounding only."""
        model = models["float32"]
        ids = tokens(8, 150)
        logits = []
        for chunk in (150, 64, 17, 5, 1):
            state = model.new_state(192)
            pieces = [Block(ids[at : at + chunk], at, state, Wants.ALL) for at in range(0, 150, chunk)]
            logits.append(torch.cat([model.forward([piece]) for piece in pieces]))
        for other in logits[1:]:
            torch.testing.assert_close(other, logits[0], rtol=0, atol=1e-4)

    @pytest.mark.parametrize(
        "shape",
        [
            TinyLlama(),
            TinyLlama(tied=False, kv_heads=4, rope_base=500000.0, epsilon=1e-3),
            TinyLlama(heads=8, kv_heads=1, head_dim=32, vocab=97, layers=3),
            TinyLlama(family="qwen3"),
            TinyLlama(family="qwen3", tied=False, heads=6, kv_heads=3, head_dim=32),
        ],
        ids=["tied", "untied, no groups", "one kv head, odd vocabulary", "qwen3", "qwen3, untied, wider than hidden"],
    )
    def test_float32_is_the_reference(self, shape: TinyLlama, tmp_path: Path) -> None:
        model = load(shape.write(tmp_path / "tiny.gguf"), "float32", threads=1)
        ids = tokens(9, 120) % shape.vocab
        with torch.no_grad():
            expected = shape.reference()(ids[None]).logits[0]
        state = model.new_state(192)
        chunks = [Block(ids[at : at + 50], at, state, Wants.ALL) for at in range(0, 100, 50)]
        steps = [Block(ids[at : at + 1], at, state) for at in range(100, 120)]
        logits = torch.cat([model.forward([each]) for each in (*chunks, *steps)])
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)

    @pytest.mark.parametrize(("compute", "worst"), [("bfloat16", 0.06), ("int8", 0.12), ("int4", 0.12)])
    def test_a_served_compute_stays_near_float32(self, models: dict[str, Model], compute: str, worst: float) -> None:
        ids = tokens(10, 100)

        def logits(model: Model) -> Tensor:
            """Rows 0 to 79 through the wide products, the rest through those of few rows."""
            state = model.new_state(192)
            ways = (Block(ids[:80], 0, state, Wants.ALL), Block(ids[80:90], 80, state, Wants.ALL))
            lone = [Block(ids[at : at + 1], at, state) for at in range(90, 100)]
            return torch.cat([model.forward([each]) for each in (*ways, *lone)])

        assert 0 < distance(logits(models[compute]), logits(models["float32"])) < worst

    @pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
    def test_every_format_that_can_be_written_is_served(self, kind: Kind, tmp_path: Path) -> None:
        """Whatever the format costs is in the file already: int4 of a file stays near float32 of the same file."""
        path = TinyLlama().with_kind(kind).write(tmp_path / "tiny.gguf")
        ids = tokens(11, 12)
        logits = []
        for compute in ("float32", "int4"):
            model = load(path, compute, threads=1)
            logits.append(model.forward([Block(ids, 0, model.new_state(12), Wants.ALL)]))
        assert distance(logits[1], logits[0]) < 0.12


class TestState:
    def test_a_token_costs_what_the_arithmetic_says(self, models: dict[str, Model]) -> None:
        values = 2 * SHAPE.layers * SHAPE.kv_heads * SHAPE.head_dim
        assert models["int4"].new_state(10).bytes_a_token == 2 * values
        assert models["float32"].new_state(64).bytes_a_token == 4 * values

    def test_rows_are_addressed_by_position(self, models: dict[str, Model]) -> None:
        state = models["int4"].new_state(10)
        assert state.keys[0].shape == state.values[-1].shape == (10, SHAPE.kv_heads, SHAPE.head_dim)

    @pytest.mark.parametrize("window", [0, SHAPE.window + 1])
    def test_a_window_the_model_does_not_have_is_refused(self, models: dict[str, Model], window: int) -> None:
        with pytest.raises(ValueError, match=f"window of {window} rows"):
            models["int4"].new_state(window)

    def test_nothing_wanted_is_nothing_returned(self, models: dict[str, Model]) -> None:
        model = models["int4"]
        logits = model.forward([Block(tokens(1, 4), 0, model.new_state(8), Wants.NONE)])
        assert logits.shape == (0, SHAPE.vocab)
        assert logits.dtype is torch.float32


def test_loading_tells_how_far_it_is(tmp_path: Path) -> None:
    heard: list[float] = []
    load(TinyLlama().write(tmp_path / "tiny.gguf"), "int8", threads=1, progress=heard.append)
    assert heard == sorted(heard)
    assert len(heard) > SHAPE.layers
    assert 0 < heard[0] < 1 == heard[-1]
