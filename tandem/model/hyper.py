"""Hyper-connections: a row travels as several residual streams, and each layer decides what it reads of them.

A layer's input is a mixture of the normed streams, weighed number by number; its answer goes into each stream with a
weight of its own. Both weights come from the streams themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from tandem.model import exact
from tandem.model.weights.quant import Projection


class StreamNorm:
    """Root mean square norm of each stream, each number with its own weight. float32 in and out."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight = weight  # float32 [streams, hidden]
        self._epsilon = epsilon

    def __call__(self, streams: Tensor) -> Tensor:
        """[rows, streams, hidden] -> the same"""
        return streams * torch.rsqrt(streams.square().mean(dim=-1, keepdim=True) + self._epsilon) * self._weight


class Blend:
    """What is read of the streams, [rows, hidden]."""

    def __init__(self, norm: StreamNorm, narrow: Projection, widen: Projection, dtype: torch.dtype) -> None:
        self._norm = norm
        self._narrow = narrow  # [rank, streams x hidden]
        self._widen = widen  # [streams x hidden, rank]
        self._dtype = dtype

    def products(self) -> Iterator[Projection]:
        yield from (self._narrow, self._widen)

    def __call__(self, streams: Tensor) -> Tensor:
        return self.read(streams)[0]

    def read(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """The mixture and, for who goes on from it, the normed streams [rows, streams x hidden]."""
        normed = self._norm(streams)
        flat = normed.flatten(1).to(self._dtype)
        narrow = functional.silu(self._narrow(flat).float() / streams.shape[1])
        shares = self._widen(narrow.to(self._dtype)).float().sigmoid().view_as(normed)
        return (shares * normed).mean(dim=1).to(self._dtype), flat


class Connection:
    """Blends the streams for a layer and puts the layer's answer back into each."""

    def __init__(self, blend: Blend, inject: Projection) -> None:
        self.blend = blend
        self._inject = inject  # [streams, streams x hidden]

    def products(self) -> Iterator[Projection]:
        yield from self.blend.products()
        yield self._inject

    def read(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's input [rows, hidden], and the weight of its answer in each stream, float32 [rows, streams, 1]."""
        mixed, flat = self.blend.read(streams)
        weights = 2 * exact.sigmoid(self._inject(flat).float() / streams.shape[1])
        return mixed, weights[..., None]
