"""Softmax attention over each sequence's own KV rows.

Every row of a small block attends on its own, over exactly the rows up to its position: the call for a row is the
same whether it comes alone, beside other sequences or inside a block, and so are its bits. A prefill chunk attends in
one call; its bits depend on its place and length.

Heads are grouped: the queries that share a KV head are rows of one product against it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from tandem.model.passes import Span
from tandem.model.placement import moved


def attend(layer: int, queries: Tensor, written: Tensor, spans: Sequence[Span]) -> Tensor:
    """Write a layer's new KV rows, then let every query row look back.

    `queries` [rows, heads, head_dim]; `written` [2, 1, kv_heads, rows, head_dim], keys first.
    Returns [rows, heads x head_dim].
    """
    mixed: list[Tensor] = []
    for span in spans:
        kv = keep(layer, written, span)
        if span.mask is not None:
            keys, values = kv.narrow(3, 0, span.start + span.rows).unbind(0)
            mixed.append(_attend_chunk(queries, keys, values, span.mask))
            continue
        for row in range(span.rows):
            keys, values = _seen(kv, span, row).unbind(0)
            mixed.append(_attend_row(queries[span.first + row], keys, values))
    return torch.cat(mixed) if len(mixed) > 1 else mixed[0]


def keep(layer: int, written: Tensor, span: Span) -> Tensor:
    """Write a block's rows of `written`; returns all KV rows of the layer, [2, 1, kv_heads, window, head_dim]."""
    kv = span.state.kv(layer)
    kv.narrow(3, span.start, span.rows).copy_(written.narrow(3, span.first, span.rows))
    return kv


def _seen(kv: Tensor, span: Span, row: int) -> Tensor:
    """What a row sees: all before its block, and its own path. [2, 1, kv_heads, rows, head_dim]

    Behind a branch the path is gathered into line, so that the row's bits are those it gets on that path alone.
    """
    if span.tree.is_straight(row):
        return kv.narrow(3, 0, span.start + row + 1)
    path = [span.start + ancestor for ancestor in span.tree.path_to(row)]
    return kv.index_select(3, moved(torch.tensor([*range(span.start), *path]), kv.device))


def _attend_row(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[heads, head_dim] over [1, kv_heads, rows, head_dim] -> [1, heads x head_dim]"""
    kv_heads, head_dim = keys.shape[1], keys.shape[3]
    mixed = functional.scaled_dot_product_attention(query.view(1, kv_heads, -1, head_dim), keys, values)
    return mixed.view(1, -1)


def _attend_chunk(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """[chunk, heads, head_dim] over [1, kv_heads, rows, head_dim] -> [chunk, heads x head_dim]

    KV heads are the batch of the call and their queries its heads, so a KV head is shared by stride, not copied.
    """
    chunk, heads, head_dim = queries.shape
    kv_heads, rows = keys.shape[1], keys.shape[2]
    group = heads // kv_heads
    shared = (kv_heads, group, rows, head_dim)
    mixed = functional.scaled_dot_product_attention(
        queries.view(chunk, kv_heads, group, head_dim).permute(1, 2, 0, 3),
        keys.transpose(0, 1).expand(shared),
        values.transpose(0, 1).expand(shared),
        attn_mask=mask,
    )
    return mixed.permute(2, 0, 1, 3).reshape(chunk, heads * head_dim)
