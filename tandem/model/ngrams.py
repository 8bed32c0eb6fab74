"""Per-layer embeddings: what a layer remembers of the last two or three tokens, looked up in a table on disk.

Every n-gram that ends at a row is hashed by several heads, each into a vocabulary of its own (a prime), and the
heads' embeddings are put side by side. The row's streams say how much of it they take; a short dilated convolution
adds what its neighbours brought. The table holds tens of gigabytes and is never loaded: a row needs a few of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt, sqrt
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from tandem.model import delta, exact
from tandem.model.config import NgramConfig
from tandem.model.hyper import StreamNorm
from tandem.model.passes import Pass, Span
from tandem.model.placement import moved
from tandem.model.state import Part, Tail
from tandem.model.weights.checkpoint import Table
from tandem.model.weights.quant import Projection

_GOLDEN: Final = 0x9E3779B97F4A7C15  # of SplitMix64 (Steele, Lea, Flood, 2014), as are the constants in `_scramble`
_LAYER_STEP: Final = 10007  # how far apart the seeds of two layers lie


@dataclass(frozen=True, slots=True, eq=False)
class Hashing:
    """How one layer turns tokens into rows of its table."""

    multipliers: Tensor  # int64 [longest]
    vocabularies: Tensor  # int64 [heads of all lengths]
    offsets: Tensor  # int64 [heads of all lengths]

    def rows(self, history: Tensor) -> Tensor:
        """`history` int64 [rows, longest], newest first -> rows of the table, int64 [rows, heads of all lengths]"""
        scaled = history * self.multipliers
        mixed, hashes = scaled[:, 0], []
        for length in range(1, history.shape[1]):
            mixed = mixed ^ scaled[:, length]
            hashes.append(mixed)
        heads = self.vocabularies.shape[0] // len(hashes)
        return torch.stack(hashes, dim=1).repeat_interleave(heads, dim=1) % self.vocabularies + self.offsets


def hashing(config: NgramConfig, place: int, vocab: int) -> Hashing:
    """The hashing of the `place`-th layer that has one, where the checkpoint does not spell it out."""
    count = config.all_heads
    primes = _primes_from(config.smallest_vocabulary, count * (place + 1))[count * place :]
    vocabularies = torch.tensor(primes)
    bound = max(1, ((1 << 63) - 1) // max(vocab, 1) // 2)
    seed = config.seed + _LAYER_STEP * place
    # The generator is seeded a step in, and steps before it answers.
    multipliers = [2 * (_scramble(seed + _GOLDEN * (index + 2)) % bound) + 1 for index in range(config.longest)]
    return Hashing(torch.tensor(multipliers), vocabularies, vocabularies.cumsum(0) - vocabularies)


def table_rows(config: NgramConfig, place: int) -> int:
    count = config.all_heads
    total = sum(_primes_from(config.smallest_vocabulary, count * (place + 1))[count * place :])
    return -(-total // config.padding) * config.padding


def look_at(history: Tensor, separator: int) -> Tensor:
    """Tokens that lie behind a separator read as separators. [rows, longest], newest first"""
    cut = (history[:, 1:] == separator).cumsum(dim=1) > 0
    return torch.cat([history[:, :1], history[:, 1:].masked_fill(cut, separator)], dim=1)


class NgramMemory:
    """One layer's. Its parts of a state stand last: the tokens before, then the convolution's tail.

    Tokens stay on the host, where the table lies: only what it says of them goes to the device.
    """

    def __init__(
        self,
        config: NgramConfig,
        layer: int,
        hashing: Hashing,
        table: Table,
        keys: Projection,  # [streams x hidden, width]
        values: Projection,  # [hidden, width]
        key_norm: StreamNorm,
        query_norm: StreamNorm,
        conv_norm: StreamNorm,
        conv: Tensor,  # float32 [streams x hidden, taps]
        dtype: torch.dtype,
    ) -> None:
        self._config = config
        self._layer = layer
        self._hashing = hashing
        self._table = table
        self._keys = keys
        self._values = values
        self._key_norm = key_norm
        self._query_norm = query_norm
        self._conv_norm = conv_norm
        self._conv = conv
        self._dtype = dtype

    def new_parts(self) -> list[Part]:
        config = self._config
        return [
            Tail((config.longest - 1,), torch.int64, fill=config.separator),
            Tail((config.reach, self._conv.shape[0]), self._dtype, device=self._conv.device),
        ]

    def products(self) -> Iterator[Projection]:
        yield from (self._keys, self._values)

    def __call__(self, streams: Tensor, run: Pass) -> Tensor:
        """float32 [rows, streams, hidden], to be added to the streams."""
        history = run.filled(torch.cat([self._history(run.tokens[span.place], span) for span in run.spans]))
        embedded = moved(self._table.read(self._hashing.rows(history)).flatten(1).to(self._dtype), streams.device)
        keys = self._key_norm(self._keys(embedded).float().view_as(streams))
        values = self._values(embedded).float()[:, None]
        agreement = (keys * self._query_norm(streams)).sum(dim=-1, keepdim=True) / sqrt(streams.shape[2])
        gates = exact.sigmoid(agreement.abs().clamp_min(1e-6).sqrt() * agreement.sign())
        brought = gates * values
        normed = self._conv_norm(brought).flatten(1).to(self._dtype)
        around = run.filled(torch.cat([self._convolve(normed[span.place], span) for span in run.spans]))
        brought += functional.silu(around.view_as(brought))
        return brought

    def _history(self, tokens: Tensor, span: Span) -> Tensor:
        """Each row's own last tokens, newest first, int64 [rows, longest]; remembers the block's."""
        tail = self._parts(span)[0]
        history = torch.cat([tail.rows, tokens])[span.tree.look_back(self._config.longest - 1)]
        tail.take(tokens, span.settled)
        return look_at(history, self._config.separator)

    def _convolve(self, normed: Tensor, span: Span) -> Tensor:
        """float32 [rows, streams x hidden]"""
        tail = self._parts(span)[1]
        look_back = span.tree.look_back(self._config.reach, normed.device)[:, :: self._config.longest]
        convolved = delta.causal_conv(tail.rows.float(), normed.float(), self._conv, look_back)
        tail.take(normed, span.settled)
        return convolved

    def _parts(self, span: Span) -> tuple[Tail, Tail]:
        tokens, conv = span.state.layers[self._layer][-2:]
        assert isinstance(tokens, Tail) and isinstance(conv, Tail)
        return tokens, conv


def _scramble(value: int) -> int:
    """The output function of SplitMix64."""
    mask = (1 << 64) - 1
    value &= mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ value >> shift) * factor & mask
    return value ^ value >> 31


def _primes_from(smallest: int, count: int) -> list[int]:
    """The first `count` primes that are at least `smallest`."""
    primes: list[int] = []
    candidate = max(smallest, 2)
    while len(primes) < count:
        if all(candidate % divisor for divisor in range(2, isqrt(candidate) + 1)):
            primes.append(candidate)
        candidate += 1
    return primes
