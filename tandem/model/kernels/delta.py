"""Gated DeltaNet for a few rows of several sequences: convolution and recurrence where each sequence's memory lies.

The formulas are those of `tandem.model.delta`. Rows that are there to stay are taken one after another, a row's step
being the same wherever it stands; the rows of a draft tree leave the memory alone and solve, row by row, what they and
their ancestors would write into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from tandem.model.config import DeltaConfig
from tandem.model.kernels.running import ROWS, launch
from tandem.model.rounds import RoundTables

_CHANNELS: Final = 128
_VALUES: Final = 32  # numbers of a head's value that one program owns


def convolve(fresh: Tensor, weight: Tensor, layer: int, tables: RoundTables) -> Tensor:
    """float32 [16, channels]: each row over its own path; tails of sequences whose rows stay are brought forward.

    `fresh` bfloat16 [16, channels], `weight` float32 [channels, taps], newest last. The tail is a layer's second part.
    """
    channels, taps = weight.shape
    convolved = torch.zeros(ROWS, channels, device=fresh.device)
    launch(
        _convolve,
        (ROWS, triton.cdiv(channels, _CHANNELS)),
        fresh, fresh.stride(0), weight, tables.depths, tables.path, tables.firsts, tables.counts, tables.settled,
        tables.addresses, tables.columns, tables.column(layer) + 1, convolved, channels,
        TAPS=taps, REACH=triton.next_power_of_2(taps - 1), CHANNELS=_CHANNELS, ROWS=ROWS,
    )  # fmt: skip
    return convolved


@dataclass(frozen=True, slots=True, eq=False)
class RoundRows:
    """As `delta.Rows`, rows first, of a whole round; float32 and contiguous."""

    queries: Tensor  # [16, key_heads, key_dim]
    keys: Tensor  # [16, key_heads, key_dim]
    values: Tensor  # [16, value_heads, value_dim]
    log_decay: Tensor  # [16, value_heads]
    rates: Tensor  # [16, value_heads]


def recur(config: DeltaConfig, rows: RoundRows, layer: int, tables: RoundTables) -> tuple[Tensor, Tensor, Tensor]:
    """What the rows read, float32 [16, value_heads, value_dim]; and of rows of trees their corrections, of the same
    shape, and the log of their decay since the block's start, [16, value_heads]."""
    assert all(each.is_contiguous() for each in (rows.queries, rows.keys, rows.values, rows.log_decay, rows.rates))
    shape, device = rows.values.shape, rows.values.device
    read, corrections = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
    faded = torch.zeros(shape[:2], device=device)
    width = min(_VALUES, triton.next_power_of_2(config.value_dim))
    launch(
        _recur,
        (ROWS, config.value_heads, triton.cdiv(config.value_dim, width)),
        rows.queries, rows.keys, rows.values, rows.log_decay, rows.rates,
        tables.depths, tables.path, tables.firsts, tables.counts, tables.settled,
        tables.addresses, tables.columns, tables.column(layer), read, corrections, faded,
        HEADS=config.value_heads, SHARED=config.value_heads // config.key_heads, KEY_HEADS=config.key_heads,
        KEY_DIM=config.key_dim, VALUE_DIM=config.value_dim, WIDTH=width, ROWS=ROWS,
    )  # fmt: skip
    return read, corrections, faded


@triton.jit
def _convolve(
    fresh,
    stride,
    weight,
    depths,
    path,
    firsts,
    counts,
    settled,
    addresses,
    columns,
    column,
    answer,
    channels,
    TAPS: tl.constexpr,
    REACH: tl.constexpr,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
):
    sequence = tl.program_id(0)
    count = tl.load(counts + sequence)
    if count > 0:
        first = tl.load(firsts + sequence)
        tail = tl.multiple_of(tl.load(addresses + sequence * columns + column).to(tl.pointer_type(tl.bfloat16)), 16)
        channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
        inside = channel < channels
        for number in range(count):
            row = first + number
            depth = tl.load(depths + row)
            total = tl.zeros([CHANNELS], dtype=tl.float32)
            for back in range(TAPS):
                in_block = depth >= back
                source = tl.load(path + row * ROWS + depth - back, mask=in_block, other=0)
                mine = tl.load(fresh + source * stride + channel, mask=inside & in_block, other=0.0).to(tl.float32)
                before = (TAPS - 1 + depth - back) * channels + channel
                theirs = tl.load(tail + before, mask=inside & (depth < back), other=0.0).to(tl.float32)
                tap = tl.load(weight + channel * TAPS + (TAPS - 1 - back), mask=inside, other=0.0)
                total += (mine + theirs) * tap
            tl.store(answer + row * channels + channel, total, mask=inside)
        if tl.load(settled + sequence) > 0:
            slot = tl.arange(0, REACH)
            after = count + slot
            kept = inside[None, :] & (slot < TAPS - 1)[:, None]
            old = kept & (after < TAPS - 1)[:, None]
            new = kept & (after >= TAPS - 1)[:, None]
            place = (first + after - (TAPS - 1))[:, None]
            shifted = tl.load(tail + after[:, None] * channels + channel[None, :], mask=old, other=0.0)
            brought = tl.load(fresh + place * stride + channel[None, :], mask=new, other=0.0)
            tl.debug_barrier()  # all of the old tail is read before any of it is written
            target = tail + slot[:, None] * channels + channel[None, :]
            tl.store(target, tl.where(old, shifted, brought), mask=kept)


@triton.jit
def _recur(
    queries,
    keys,
    values,
    decays,
    rates,
    depths,
    path,
    firsts,
    counts,
    settled,
    addresses,
    columns,
    column,
    read,
    corrections,
    faded,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    count = tl.load(counts + sequence)
    if count > 0:
        first = tl.load(firsts + sequence)
        stays = tl.load(settled + sequence) > 0
        memory = tl.multiple_of(tl.load(addresses + sequence * columns + column).to(tl.pointer_type(tl.float32)), 16)
        key_place = tl.arange(0, KEY_DIM)
        value_place = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
        inside = value_place < VALUE_DIM
        tile = memory + (head * KEY_DIM + key_place)[:, None] * VALUE_DIM + value_place[None, :]
        state = tl.load(tile, mask=inside[None, :], other=0.0)
        for number in range(count):
            row = first + number
            mine = row * HEADS + head
            shared = (row * KEY_HEADS + head // SHARED) * KEY_DIM + key_place
            key, query = tl.load(keys + shared), tl.load(queries + shared)
            wanted = tl.load(values + mine * VALUE_DIM + value_place, mask=inside, other=0.0)
            rate, decay = tl.load(rates + mine), tl.load(decays + mine)
            target = mine * VALUE_DIM + value_place
            if stays:
                state = state * tl.exp(decay)
                correction = rate * (wanted - tl.sum(state * key[:, None], axis=0))
                state += key[:, None] * correction[None, :]
                tl.store(read + target, tl.sum(state * query[:, None], axis=0), mask=inside)
            else:
                depth = tl.load(depths + row)
                since = decay  # of the ancestor: the log of what is left of its correction
                pulled = tl.zeros([WIDTH], dtype=tl.float32)
                seen = tl.zeros([WIDTH], dtype=tl.float32)
                for back in range(depth):
                    ancestor = tl.load(path + row * ROWS + depth - 1 - back)
                    theirs = ancestor * HEADS + head
                    other = tl.load(keys + (ancestor * KEY_HEADS + head // SHARED) * KEY_DIM + key_place)
                    wrote = tl.load(corrections + theirs * VALUE_DIM + value_place, mask=inside, other=0.0)
                    left = tl.exp(since)
                    pulled += left * tl.sum(key * other, axis=0) * wrote
                    seen += left * tl.sum(query * other, axis=0) * wrote
                    since += tl.load(decays + theirs)
                left = tl.exp(since)
                correction = rate * (wanted - left * tl.sum(state * key[:, None], axis=0) - pulled)
                answer = left * tl.sum(state * query[:, None], axis=0) + seen + tl.sum(query * key, axis=0) * correction
                tl.store(corrections + target, correction, mask=inside)
                tl.store(read + target, answer, mask=inside)
                tl.store(faded + mine, since)
                tl.debug_barrier()  # rows behind this one read its correction
        if stays:
            tl.store(tile, state, mask=inside[None, :])
