"""A hybrid model on slots: what cannot be rewound starts over, and writes what it would write anywhere else."""

from __future__ import annotations

from pathlib import Path

import torch
from engine_toy import ask, slot_of
from torch import Tensor

from tandem.engine.choice import choice_for
from tandem.engine.drafters import no_drafting
from tandem.engine.facts import Take
from tandem.engine.round import read_chunk, step
from tandem.engine.slot import Request, Sequence, Slot
from tandem.model.decoder import Decoder
from tandem.model.families import qwen35
from tandem.model.families.architecture import read_architecture
from tandem.model.families.fields import Fields
from tandem.model.placement import HOST
from tandem.model.rope import Rope
from tandem.model.weights.quant import Compute

CHUNK = 8
CONFIG = {
    "model_type": "qwen3_5_text",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "max_position_embeddings": 128,
}


class RandomWeights:
    """A checkpoint that was never written down."""

    placement = HOST

    def __init__(self) -> None:
        self._random = torch.Generator().manual_seed(0)

    def has(self, name: str) -> bool:
        return "language_model" not in name

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return (torch.randn(shape, generator=self._random) * 0.3).to(dtype)


def hybrid() -> Decoder:
    architecture = read_architecture(Fields(Path("config.json"), CONFIG))
    return qwen35.build(RandomWeights(), architecture, Compute.FLOAT32, Rope(8, 10000.0, 128))  # type: ignore[arg-type]


def begin(slot: Slot, prompt: tuple[int, ...], resumed: int = 0) -> Sequence:
    request = ask("a", prompt, 6)
    choice = choice_for(request, 64, 0)
    take, followed = Take(slot.index, resumed, 6, "test"), no_drafting().begin(slot.state, "")
    sequence = Sequence(Request(1, request, 0.0), take, choice, followed, 0.0, resumed=resumed, read=resumed)
    slot.memory.commit(len(prompt) + 6)
    slot.begin(sequence)
    return sequence


def write(model: Decoder, slots: list[Slot]) -> None:
    for slot in slots:
        while slot.sequence is not None and slot.sequence.is_reading:
            read_chunk(model, slot, CHUNK)
    while all(slot.sequence is not None and slot.sequence.end is None for slot in slots):
        step(model, slots, no_drafting(), lambda: 0.0)


def test_the_next_turn_starts_over_and_three_write_what_each_writes_alone() -> None:
    model = hybrid()
    prompts = [tuple((seed * 7 + 3 * row) % 60 + 2 for row in range(20 + seed)) for seed in range(3)]
    alone = []
    reused = slot_of(model.new_state(128), 0)
    for prompt in prompts:  # one after the other on one slot: each finds the state of the one before
        sequence = begin(reused, prompt)
        write(model, [reused])
        assert sequence.end == "length"
        alone.append(sequence.written)
        reused.end(0.0)
        assert reused.resumable(reused.kept.rows) == 0, "a state that went on is nowhere to resume without an anchor"

    slots = [slot_of(model.new_state(128), index) for index in range(3)]
    together = [begin(slot, prompt) for slot, prompt in zip(slots, prompts, strict=True)]
    write(model, slots)
    assert [sequence.written for sequence in together] == alone
    assert len({tuple(written) for written in alone}) == 3
