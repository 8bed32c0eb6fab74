"""Gated DeltaNet: attention whose memory of a sequence is one matrix a head, however long the sequence is.

A head keeps S, [key_dim, value_dim]. Row t fades it, corrects what it answers to key k toward value v, and reads it:

    S_t = e^(g_t) S_(t-1) + k_t u_t^T        u_t = b_t (v_t - e^(g_t) S_(t-1)^T k_t)        o_t = S_t^T q_t

with g_t <= 0 the log of the decay and b_t in (0, 1) the rate of the correction (Yang et al., 2024, "Gated Delta
Networks"). Unrolled over the ancestors of t within a block, with G the sum of g along the path from the block's
start and S_0 the memory before it:

    S_t = e^(G_t) S_0 + sum over ancestors i, t included, of e^(G_t - G_i) k_i u_i^T

so all corrections of a block solve one unit triangular system, a row reading only its own ancestors:

    u_t + b_t * sum over strict ancestors i of e^(G_t - G_i) (k_t . k_i) u_i = b_t (v_t - e^(G_t) S_0^T k_t)

A chain and a draft tree differ in nothing but who is an ancestor of whom. The corrections of a block are enough to
make the memory after any of its paths, which is how a round commits what it accepted without running it again.

Knows tensors of one sequence. Does not know where its memory is kept, nor the projections before and after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tandem.model import exact
from tandem.model.placement import moved
from tandem.model.tree import Tree, chain

PIECE: Final = 64
"""Rows of a chain that are solved together. The system is square in it, the passes over S go down with it."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What the rows of one block bring to the recurrence; float32, heads first, one key head a value head."""

    queries: Tensor  # [heads, rows, key_dim], scaled
    keys: Tensor  # [heads, rows, key_dim], of length 1
    values: Tensor  # [heads, rows, value_dim]
    log_decay: Tensor  # [heads, rows], at most 0
    rates: Tensor  # [heads, rows], in (0, 1)

    @property
    def count(self) -> int:
        return self.keys.shape[1]

    def piece(self, start: int, stop: int) -> Rows:
        return Rows(
            self.queries[:, start:stop],
            self.keys[:, start:stop],
            self.values[:, start:stop],
            self.log_decay[:, start:stop],
            self.rates[:, start:stop],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Corrections:
    """What a block would write into the memory: enough for any path of it. Small: rows, not memories."""

    keys: Tensor  # [heads, rows, key_dim]
    corrections: Tensor  # u, [heads, rows, value_dim]
    faded: Tensor  # G, [heads, rows]: log of the decay from the block's start to the row, along its path

    def commit(self, memory: Tensor, path: Sequence[int]) -> None:
        """Bring `memory` [heads, key_dim, value_dim], as it was before the block, to the end of `path`, in place.

        `path` is rows of the block from its root on, in order; an empty one leaves the memory as it is.
        """
        if not path:
            return
        rows = moved(torch.as_tensor(path), memory.device)
        faded = self.faded[:, rows]  # [heads, path]
        keys = self.keys[:, rows] * (faded[:, -1:] - faded).exp()[..., None]
        memory.mul_(faded[:, -1].exp()[:, None, None]).baddbmm_(keys.mT, self.corrections[:, rows])


def step(memory: Tensor, rows: Rows) -> Tensor:
    """One row: the recurrence as it stands. Brings `memory` forward in place; returns [heads, 1, value_dim].

    Elementwise products and sums over one axis, so the bits of a row are its own.
    """
    keys, rates = rows.keys[:, 0, :, None], rows.rates[:, 0, None]
    memory.mul_(exact.exp(rows.log_decay[:, 0])[:, None, None])
    corrections = rates * (rows.values[:, 0] - (memory * keys).sum(dim=1))
    memory.addcmul_(keys, corrections[:, None])
    return (memory * rows.queries[:, 0, :, None]).sum(dim=1, keepdim=True)


def walk(memory: Tensor, rows: Rows) -> Tensor:
    """A chain, row by row. Brings `memory` forward in place; returns [heads, rows, value_dim]."""
    return torch.cat([step(memory, rows.piece(row, row + 1)) for row in range(rows.count)], dim=1)


def scan(memory: Tensor, rows: Rows) -> Tensor:
    """A chain of any length, in pieces. Brings `memory` forward in place; returns [heads, rows, value_dim]."""
    outputs = []
    for start in range(0, rows.count, PIECE):
        piece = rows.piece(start, min(start + PIECE, rows.count))
        output, corrections = read(memory, piece, chain(piece.count))
        corrections.commit(memory, range(piece.count))
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def read(memory: Tensor, rows: Rows, tree: Tree) -> tuple[Tensor, Corrections]:
    """Every row of `tree` reads the memory its own path would have made; `memory` stays as it is.

    Returns what the rows read, [heads, rows, value_dim], and what commits any of their paths.
    """
    ancestors = tree.ancestors_on(memory.device)
    faded = rows.log_decay @ ancestors.T.to(rows.log_decay.dtype)
    # e^(G_t - G_i) for ancestors, 0 elsewhere: masked in the exponent, where a stranger's could overflow.
    between = (faded[:, :, None] - faded[:, None, :]).masked_fill(~ancestors, float("-inf")).exp()
    overlap = rows.keys @ rows.keys.mT
    from_start = faded.exp()[..., None]

    rates = rows.rates[..., None]
    wanted = rates * (rows.values - from_start * (rows.keys @ memory))
    # The diagonal is never read (unitriangular), so `between` may keep its ones there.
    corrections = torch.linalg.solve_triangular(rates * between * overlap, wanted, upper=False, unitriangular=True)

    outputs = from_start * (rows.queries @ memory) + (rows.queries @ rows.keys.mT * between) @ corrections
    return outputs, Corrections(rows.keys, corrections, faded)


def unit(rows: Tensor) -> Tensor:
    """Rows at length 1 along the last axis, float32; the small term keeps a zero row at zero."""
    rows = rows.float()
    return rows * torch.rsqrt(rows.square().sum(dim=-1, keepdim=True) + 1e-6)


def causal_conv(tail: Tensor, rows: Tensor, weight: Tensor, look_back: Tensor) -> Tensor:
    """A depthwise convolution over each row's own past: [rows, channels].

    `tail` [reach, channels] is what came before the block, `weight` [channels, taps] has the newest tap last, and
    `look_back` [rows, taps] says where each tap lies in `cat([tail, rows])`, newest first (`Tree.look_back`, thinned
    to every n-th column for a dilated one). Taps are added one after another, so a row's bits are its own.
    """
    source = torch.cat([tail, rows])
    taps = weight.shape[1]
    total = source[look_back[:, 0]] * weight[:, taps - 1]
    for distance in range(1, taps):
        total = total + source[look_back[:, distance]] * weight[:, taps - 1 - distance]
    return total


def next_tail(tail: Tensor, rows: Tensor, path: Sequence[int] | None = None) -> Tensor:
    """The last `len(tail)` rows after the block, or after `path` of it: the tail of the next block."""
    kept = rows if path is None else rows[moved(torch.as_tensor(path, dtype=torch.int64), rows.device)]
    return torch.cat([tail, kept])[kept.shape[0] :].clone()
