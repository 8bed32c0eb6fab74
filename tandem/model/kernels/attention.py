"""Attention of a few rows over the KV rows of their own sequences, wherever and however long those are.

Lengths and addresses are read from the round's tables on the device, so one captured launch serves every round. A
row's positions are cut into chunks at multiples of `CHUNK`; program s of `SPLITS` takes chunks s, s + SPLITS, ... in
order, and the programs' answers are merged in order: what a row adds up, and how, follows from its own path alone. A
row of a draft tree finds its path's last rows through the tables, so its bits are those it would get on that path.
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from tandem.model.config import AttentionConfig
from tandem.model.kernels.running import DOT, ROWS, launch
from tandem.model.rounds import RoundTables

CHUNK: Final = 64
SPLITS: Final = 32
_GROUP: Final = 16  # queries of a KV head, filled up to the smallest tile of a matrix unit


def attend_rows(config: AttentionConfig, layer: int, queries: Tensor, written: Tensor, tables: RoundTables) -> Tensor:
    """Write a layer's new KV rows, then look back: bfloat16 [16, heads x head_dim].

    `queries` [16, heads, head_dim]; `written` [2, 1, kv_heads, 16, head_dim], keys first.
    """
    kv_heads, dim, group = config.kv_heads, config.head_dim, config.heads // config.kv_heads
    assert group <= _GROUP, f"{group} queries share a KV head; the kernel takes {_GROUP}"
    queries = queries.bfloat16().contiguous()
    fresh = written[:, 0].transpose(1, 2).bfloat16().contiguous()  # [2, 16, kv_heads, head_dim]
    column = tables.column(layer)
    launch(
        _write,
        (ROWS, kv_heads),
        fresh, tables.sequences, tables.starts, tables.firsts, tables.windows, tables.addresses,
        tables.columns, column, KV_HEADS=kv_heads, DIM=dim, ROWS=ROWS, num_warps=1,
    )  # fmt: skip
    shape, device = (ROWS, kv_heads, SPLITS, group), queries.device
    most = torch.empty(shape, device=device)
    weight = torch.empty(shape, device=device)
    mixed = torch.empty(*shape, dim, device=device)
    launch(
        _look_back,
        (ROWS, kv_heads, SPLITS),
        queries, tables.sequences, tables.depths, tables.path, tables.starts, tables.firsts, tables.windows,
        tables.addresses, tables.columns, column, most, weight, mixed, dim**-0.5,
        KV_HEADS=kv_heads, DIM=dim, GROUP=group, GROUPED=_GROUP, CHUNK=CHUNK, SPLITS=SPLITS, ROWS=ROWS, DOT=DOT,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    answer = torch.empty(ROWS, config.heads * dim, dtype=torch.bfloat16, device=device)
    launch(
        _merge,
        (ROWS, kv_heads),
        tables.sequences, tables.depths, tables.starts, most, weight, mixed, answer,
        KV_HEADS=kv_heads, DIM=dim, GROUP=group, GROUPED=_GROUP, CHUNK=CHUNK, SPLITS=SPLITS, num_warps=4,
    )  # fmt: skip
    return tables.filled(answer)


@triton.jit
def _write(
    fresh,
    sequences,
    starts,
    firsts,
    windows,
    addresses,
    columns,
    column,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(sequences + row)
    if sequence >= 0:
        kv = tl.multiple_of(tl.load(addresses + sequence * columns + column).to(tl.pointer_type(tl.bfloat16)), 16)
        window = tl.load(windows + sequence)
        place = tl.load(starts + sequence) + row - tl.load(firsts + sequence)
        dim = tl.arange(0, DIM)
        source = (row * KV_HEADS + head) * DIM + dim
        target = (head * window + place) * DIM + dim
        tl.store(kv + target, tl.load(fresh + source))
        tl.store(kv + KV_HEADS * window * DIM + target, tl.load(fresh + ROWS * KV_HEADS * DIM + source))


@triton.jit
def _look_back(
    queries,
    sequences,
    depths,
    path,
    starts,
    firsts,
    windows,
    addresses,
    columns,
    column,
    most_out,
    weight_out,
    mixed_out,
    scale,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPED: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    DOT: tl.constexpr,
):
    # Rows stand first, so that those of one sequence read a chunk at about the same time: once from memory.
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(sequences + row)
    if sequence >= 0:
        start = tl.load(starts + sequence)
        length = start + tl.load(depths + row) + 1
        chunks = tl.cdiv(length, CHUNK)
        if split < chunks:
            window = tl.load(windows + sequence)
            first = tl.load(firsts + sequence)
            keys = tl.load(addresses + sequence * columns + column).to(tl.pointer_type(tl.bfloat16))
            keys = tl.multiple_of(keys, 16) + head * window * DIM
            values = keys + KV_HEADS * window * DIM
            dim, member = tl.arange(0, DIM), tl.arange(0, GROUPED)
            real = (member < GROUP)[:, None]
            asked = (row * KV_HEADS + head) * GROUP + member
            query = tl.load(queries + asked[:, None] * DIM + dim[None, :], mask=real, other=0.0).to(DOT)
            most = tl.full([GROUPED], float("-inf"), dtype=tl.float32)
            weight = tl.zeros([GROUPED], dtype=tl.float32)
            mixed = tl.zeros([GROUPED, DIM], dtype=tl.float32)
            for chunk in range(split, chunks, SPLITS):
                position = chunk * CHUNK + tl.arange(0, CHUNK)
                seen = position < length
                behind = seen & (position >= start)
                step = tl.load(path + row * ROWS + (position - start), mask=behind, other=0)
                place = tl.where(behind, start + step - first, position)
                source = place[:, None] * DIM + dim[None, :]
                key = tl.load(keys + source, mask=seen[:, None], other=0.0).to(DOT)
                value = tl.load(values + source, mask=seen[:, None], other=0.0).to(DOT)
                scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
                scores = tl.where(seen[None, :], scores, float("-inf"))
                higher = tl.maximum(most, tl.max(scores, axis=1))
                shares = tl.exp(scores - higher[:, None])
                kept = tl.exp(most - higher)
                weight = weight * kept + tl.sum(shares, axis=1)
                fresh = tl.dot(shares.to(tl.bfloat16).to(DOT), value, input_precision="ieee")
                mixed = mixed * kept[:, None] + fresh
                most = higher
            target = ((row * KV_HEADS + head) * SPLITS + split) * GROUP + member
            tl.store(most_out + target, most, mask=member < GROUP)
            tl.store(weight_out + target, weight, mask=member < GROUP)
            tl.store(mixed_out + target[:, None] * DIM + dim[None, :], mixed, mask=real)


@triton.jit
def _merge(
    sequences,
    depths,
    starts,
    most_in,
    weight_in,
    mixed_in,
    answer,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPED: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row, head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(sequences + row)
    if sequence >= 0:
        length = tl.load(starts + sequence) + tl.load(depths + row) + 1
        dim, member = tl.arange(0, DIM), tl.arange(0, GROUPED)
        real = member < GROUP
        most = tl.full([GROUPED], float("-inf"), dtype=tl.float32)
        weight = tl.zeros([GROUPED], dtype=tl.float32)
        mixed = tl.zeros([GROUPED, DIM], dtype=tl.float32)
        for split in range(tl.minimum(tl.cdiv(length, CHUNK), SPLITS)):
            source = ((row * KV_HEADS + head) * SPLITS + split) * GROUP + member
            theirs = tl.load(most_in + source, mask=real, other=0.0)
            higher = tl.maximum(most, theirs)
            kept, taken = tl.exp(most - higher), tl.exp(theirs - higher)
            weight = weight * kept + tl.load(weight_in + source, mask=real, other=1.0) * taken
            brought = tl.load(mixed_in + source[:, None] * DIM + dim[None, :], mask=real[:, None], other=0.0)
            mixed = mixed * kept[:, None] + brought * taken[:, None]
            most = higher
        target = ((row * KV_HEADS + head) * GROUP + member)[:, None] * DIM + dim[None, :]
        tl.store(answer + target, (mixed / weight[:, None]).to(tl.bfloat16), mask=real[:, None])
