"""Softmax attention over a sequence's KV rows, one sequence at a time.

Every query row of a small block attends on its own, over exactly the rows up to its position: the call for a row is
the same whether it comes alone, beside other sequences or inside a block, and so are its bits. A prefill chunk
attends in one call; its bits depend on its length and place.

Heads are grouped: the queries that share a KV head are rows of one product against it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def attend_row(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query row: [heads, head_dim] over [1, kv_heads, rows, head_dim] -> [1, heads x head_dim]"""
    kv_heads, head_dim = keys.shape[1], keys.shape[3]
    mixed = functional.scaled_dot_product_attention(query.view(1, kv_heads, -1, head_dim), keys, values)
    return mixed.view(1, -1)


def attend_chunk(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """A chunk's rows: [chunk, heads, head_dim] over [1, kv_heads, rows, head_dim] -> [chunk, heads x head_dim]

    KV heads are the batch and their queries the heads of the call, so that a KV head is shared by stride, not copied.
    """
    chunk, heads, head_dim = query.shape
    kv_heads, rows = keys.shape[1], keys.shape[2]
    group = heads // kv_heads
    queries = query.view(chunk, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    shared = (kv_heads, group, rows, head_dim)
    mixed = functional.scaled_dot_product_attention(
        queries, keys.transpose(0, 1).expand(shared), values.transpose(0, 1).expand(shared), attn_mask=mask
    )
    return mixed.permute(2, 0, 1, 3).reshape(chunk, heads * head_dim)


def causal_mask(start: int, chunk: int) -> Tensor:
    """bool [chunk, start + chunk]: row i of the chunk sees everything up to itself."""
    return torch.ones(chunk, start + chunk, dtype=torch.bool).tril_(start)
