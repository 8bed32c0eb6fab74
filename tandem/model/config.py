"""The numbers that shape a model, read from its weights file and never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only transformer of the Llama family."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab: int
    norm_epsilon: float
    rope_base: float
    window: int  # rows the model was trained for
    bos_token: int | None
    eos_token: int | None

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def queries_a_kv_head(self) -> int:
        return self.heads // self.kv_heads
