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


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    heads: int
    kv_heads: int
    head_dim: int
    rope_dim: int  # leading numbers of a head that are turned
    gated: bool  # each head's answer is scaled by a gate the row brings along


@dataclass(frozen=True, slots=True)
class DeltaConfig:
    key_heads: int
    value_heads: int  # a multiple of key_heads; consecutive ones share a key head
    key_dim: int
    value_dim: int
    taps: int  # of the convolution

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        return 2 * self.key_width + self.value_width


@dataclass(frozen=True, slots=True)
class IndexConfig:
    heads: int
    dim: int
    budget: int  # tokens of complete blocks a row attends to, a multiple of `ratio`
    ratio: int  # tokens a block

    @property
    def most_blocks(self) -> int:
        return self.budget // self.ratio

    @property
    def most_rows(self) -> int:
        """Most tokens a row attends to: the budget and an incomplete block."""
        return self.budget + self.ratio - 1


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    experts: int
    chosen: int  # experts a row
    width: int  # feed-forward width of one
    shared_width: int


@dataclass(frozen=True, slots=True)
class NgramConfig:
    layers: tuple[int, ...]  # which layers have one, from 0
    width: int  # of all heads together
    longest: int  # tokens of the longest n-gram
    heads: int  # for each length from 2 up
    smallest_vocabulary: int
    padding: int  # the table's rows are a multiple of it
    parts: int  # tensors the table lies in
    seed: int
    taps: int  # of the convolution, which looks back `longest` rows a tap
    separator: int  # n-grams do not reach across this token

    @property
    def all_heads(self) -> int:
        return self.heads * (self.longest - 1)

    @property
    def reach(self) -> int:
        return (self.taps - 1) * self.longest
